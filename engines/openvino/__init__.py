"""OpenVINO on the CPU: it reads the ONNX file itself, Q/DQ included, and compiles it when it is loaded."""

from .engine import OpenVino

__all__ = ["OpenVino"]
