"""BLEU and chrF with intervals, and whether a difference is more than chance."""
