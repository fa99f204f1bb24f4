"""Layers that cost more time in INT8 than in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engines.registry import engine
from ..tensors import Feeds
from .trials import Trial


def slower_layers(
    int8: Trial, in_float: Trial, layers: Sequence[str], feeds: Feeds, threads: int
) -> list[str]:
    """Return the layers that are slower in an INT8 artifact than in a float one, the costliest first.

    Args:
        int8, in_float: Built for runtimes that tell the time of each kernel.
        layers: Names of the layers that may be quantized.
        feeds: One input.
        threads: As they are measured with.
    """
    times = [
        by_layer(engine(trial.target).kernel_times(str(trial.path), feeds, threads=threads), layers)
        for trial in (int8, in_float)
    ]
    return compare_times(*times)


def compare_times(int8_ms: Mapping[str, float], float_ms: Mapping[str, float]) -> list[str]:
    """Return the names in both whose INT8 time is the longer one, by what they lose."""
    lost = {name: int8_ms[name] - taken for name, taken in float_ms.items() if name in int8_ms}
    return sorted((name for name, loss in lost.items() if loss > 0), key=lambda name: -lost[name])


def by_layer(kernels_ms: Mapping[str, float], layers: Sequence[str]) -> dict[str, float]:
    """Return layer to the time of its kernels: those whose names begin with the layer's, the longest one."""
    times: dict[str, float] = {}
    known = sorted(layers, key=len, reverse=True)
    for kernel, taken in kernels_ms.items():
        layer = next((name for name in known if kernel.startswith(name)), None)
        if layer is not None:
            times[layer] = times.get(layer, 0.0) + taken
    return times
