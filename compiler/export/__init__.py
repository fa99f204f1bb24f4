"""`qcompile export`: from a PyTorch model to one checked ONNX file."""

from .export import export

__all__ = ["export"]
