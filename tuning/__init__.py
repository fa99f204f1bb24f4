"""Choose the layers to quantize: rank them by damage, and mix precisions within an accuracy budget."""

from .tune import TuneResult, tune

__all__ = ["TuneResult", "tune"]
