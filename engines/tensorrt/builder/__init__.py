"""Build an ONNX file into a plan: parse, configure, build, verify."""
