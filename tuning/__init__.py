"""Choose the layers to quantize: rank them by damage, and mix precisions within an accuracy budget."""

from .tune import Tuned, tune

__all__ = ["Tuned", "tune"]
