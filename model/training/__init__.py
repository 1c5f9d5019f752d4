"""Training: data to batches, updates, saves, validations, and what is chosen at the end."""
