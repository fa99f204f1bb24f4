"""Q/DQ arithmetic in plain numpy, written from the text of ONNX's operators, and nothing of qcompile."""
