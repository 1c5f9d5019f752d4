"""Latency and quality of translators side by side, each number with its signature."""
