"""Search for the layers that make a runtime refuse a whole graph.

Passes of a runtime can fail on a few layers of a graph that is valid ONNX, with an error that names none of
them. Groups of layers are offered to it, halved where they are refused: n layers of which k are refused
cost about 2 k log2(n / k) trials, each of which quantizes and compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import BuildError
from .base import BuildRequest, Engine

TRIALS = 48


def missed_or_refused(
    engine: Engine,
    request: BuildRequest,
    planned: Sequence[str],
    left: Mapping[str, str],
    without: Callable[[Mapping[str, str]], Path],
) -> Mapping[str, str]:
    """Return the layers that an engine computes in float, or for which it refuses the graph, with reasons.

    Args:
        engine: Which tells what it makes of a graph.
        request: With the quantized graph; its source is the float model.
        planned: Names of the layers that were to be quantized.
        left: Those of them that are in float already, with reasons.
        without: Quantizes with the layers it is given left in float, and returns the graph.
    """
    try:
        return engine.missed_layers(request)
    except BuildError as error:
        refusal = error

    layers = [layer for layer in planned if layer not in left]

    def takes(some: Sequence[str]) -> bool:
        request.progress("find the layers that it refuses")
        others = dict.fromkeys([layer for layer in layers if layer not in some], "is not tried yet")
        return _taken(engine, replace(request, model=str(without({**left, **others}))))

    if not layers or not _taken(engine, replace(request, model=request.source)):
        raise refusal
    refused = refused_layers(layers, takes)
    if refused is None or len(refused) == len(layers):
        raise refusal
    reason = f"{engine.name} refuses the graph with it in INT8: {refusal.message.rpartition(': ')[2]}"
    return dict.fromkeys(refused, reason)


def _taken(engine: Engine, request: BuildRequest) -> bool:
    try:
        engine.missed_layers(request)
    except BuildError:
        return False
    return True


def refused_layers(
    layers: Sequence[str], takes: Callable[[Sequence[str]], bool], *, trials: int = TRIALS
) -> list[str] | None:
    """Return layers without which the runtime takes the graph; None where so many trials do not find them.

    Args:
        layers: Names, in the order of execution. All together are refused.
        takes: Whether the graph is taken with these layers alone as planned, and the others in float.
        trials: How often `takes` may be called.
    """
    taken: list[str] = []
    refused: list[str] = []
    groups = [list(half) for half in _halves(layers)]
    for _ in range(trials):
        if not groups:
            return refused
        group = groups.pop(0)
        if takes([*taken, *group]):
            taken += group
        elif len(group) == 1:
            refused += group
        else:
            groups[:0] = _halves(group)
    return refused if not groups else None


def _halves(group: Sequence[str]) -> list[list[str]]:
    middle = len(group) // 2
    return [half for half in (list(group[:middle]), list(group[middle:])) if half]
