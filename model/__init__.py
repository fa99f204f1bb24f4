"""Model files: MODEL spellings, ONNX files and graphs, sessions, output errors."""
