"""`qcompile diff --layers`: the first tensor that diverges, with a few taps at a time and statistics only.

sides ─▶ pairing ─▶ search ◀─▶ runs ─▶ worker (job, tapped) ─▶ outcome
"""

from .compare import layer_diff
from .outcome import Layer, LayerDiff

__all__ = ["Layer", "LayerDiff", "layer_diff"]
