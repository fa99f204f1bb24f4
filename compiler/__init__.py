"""From a model to an ONNX file that a target can use: export, simplify, quantize."""

from .export import export
from .quantize import quantize
from .simplify import simplify

__all__ = ["export", "quantize", "simplify"]
