"""From an ONNX file to a plan: parse, configure, build, and prove."""
