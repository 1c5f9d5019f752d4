"""What training says when it goes wrong: where, on which lines, why probably, and what to do."""
