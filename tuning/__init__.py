"""Which layers to quantize: ranked by the damage each does, mixed until an accuracy budget is kept."""

from .tune import Tuned, tune

__all__ = ["Tuned", "tune"]
