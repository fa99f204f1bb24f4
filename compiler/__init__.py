"""From a model to an ONNX file that a target can use: export, simplify, balance, quantize."""

from .balancing.balance import balance
from .export import export
from .quantize import quantize
from .simplify import simplify

__all__ = ["balance", "export", "quantize", "simplify"]
