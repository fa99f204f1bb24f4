"""`qcompile export`: write a PyTorch model as one checked ONNX file."""

from .export import export

__all__ = ["export"]
