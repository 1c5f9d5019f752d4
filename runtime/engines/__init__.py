"""TensorRT engines: built in a subprocess, proved from the builder's log, kept beside the bundle.

Nothing here imports a GPU library, torch or onnx when it is imported itself.
"""
