"""The encoder-decoder Transformer of "Attention Is All You Need", its data, its training, and the
eager reference that every other backend is checked against."""
