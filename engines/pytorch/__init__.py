"""PyTorch: a MODEL as it is, which is the baseline, and in its other modes; TorchScript as an artifact."""

from .engine import PyTorch, TorchScript
from .runner import MODES, Mode, PyTorchRunner

__all__ = ["MODES", "Mode", "PyTorch", "PyTorchRunner", "TorchScript"]
