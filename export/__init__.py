"""From a checkpoint to a bundle: the two ONNX graphs, their checks, their INT8 and FP16 copies."""
