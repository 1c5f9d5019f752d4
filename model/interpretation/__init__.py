"""What attention attends to: heat maps, and word alignments from the same weights."""
