"""OpenVINO on the CPU: it compiles an ONNX file, with its Q/DQ pairs, when the file is loaded."""

from .engine import OpenVino

__all__ = ["OpenVino"]
