"""ONNX in memory: files, checks, graphs with their producers and consumers, edits."""
