"""Quantization-aware training: fake quantization in PyTorch, and its scales in ONNX."""
