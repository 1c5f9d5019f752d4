"""What a serving box installs: bundle, tokenizer, search, backends, translator, CLI.

Imports neither torch nor onnx, and none of the sibling packages (an import contract holds this).
"""
