"""PyTorch: run a module eagerly, as the baseline, or in another mode; build TorchScript artifacts."""

from .engine import PyTorch, TorchScript
from .runner import MODES, Mode, PyTorchRunner

__all__ = ["MODES", "Mode", "PyTorch", "PyTorchRunner", "TorchScript"]
