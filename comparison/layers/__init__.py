"""`qcompile diff --layers`: find the first tensor that diverges; few taps per run, statistics only.

sides ─▶ pairing ─▶ search ◀─▶ runs ─▶ worker (job, tapped) ─▶ outcome
"""

from .compare import layer_diff
from .outcome import Layer, LayerDiff

__all__ = ["Layer", "LayerDiff", "layer_diff"]
