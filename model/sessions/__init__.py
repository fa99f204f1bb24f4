"""Sessions of ONNX Runtime, and made-up inputs for them."""
