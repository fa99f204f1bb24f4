"""OpenVINO on the CPU: it reads the ONNX file with its Q/DQ and compiles it when the file is loaded."""

from .engine import OpenVino

__all__ = ["OpenVino"]
