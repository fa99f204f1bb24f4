"""The one decision which graph an engine needs, and the making of it.

lower ─▶ quantized or cast (`compiler`) ─▶ `fitting`: what the parser reads ─▶ `constraints` left over
"""

from .lower import LoweredGraph, first_samples, load_lowered, lower, writes_types

__all__ = ["LoweredGraph", "first_samples", "load_lowered", "lower", "writes_types"]
