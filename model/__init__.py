"""The model as a file: what MODEL may be, ONNX files, their graphs, and how close two outputs are."""
