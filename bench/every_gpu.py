"""`devices` all: each GPU of the machine is measured for itself, one after the other, and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..engines.gpu import device_text, find_gpus, why_no_gpu
from ..errors import EngineUnavailable
from ..spec.words import CUDA_GRAPH
from .results.join import join_results
from .results.results import BenchInterrupted, Results, earlier_runs, save_results


def measure_every_gpu(measure: Callable[..., Results], options: Mapping[str, Any]) -> Results:
    """Measure on every GPU of this machine.

    What runs on the processor alone is measured once, beside the first GPU; the baseline beside each.

    Args:
        measure: `benchmark`.
        options: Its arguments, with `devices` all.

    Raises:
        EngineUnavailable: If there is no GPU.
        BenchInterrupted: After Ctrl-C, with what was measured until then; `output` is written.
    """
    gpus = find_gpus()
    if not gpus:
        raise EngineUnavailable(
            f"`devices` all: {why_no_gpu() or 'there is no GPU'}",
            hint="run it on a machine with an NVIDIA GPU, or give `devices` cpu",
            engine="cuda",
        )
    output, history = options["output"], options["history"]
    asked = dict(options) | {"output": None, "history": None}
    parts: dict[str, Results] = {}
    stopped: BenchInterrupted | None = None
    for number in range(len(gpus)):
        device = device_text(number)
        try:
            parts[device] = measure(**asked | {"devices": (device,)})
        except BenchInterrupted as interrupted:
            parts[device], stopped = interrupted.results, interrupted
            break
        asked |= _on_the_others(parts[device], asked)
    results = join_results(parts, history=earlier_runs(history or output))
    if output is not None:
        save_results(results, Path(output))
    if stopped is not None:
        raise BenchInterrupted(results) from stopped
    return results


def _on_the_others(first: Results, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for further GPUs: what ran on the first, and the baseline."""
    alone = asked["models"] or {}
    modes = ("eager",) if asked["cuda_graph"] else ("eager", CUDA_GRAPH)  # without rows that are added
    kept = {
        row.name: row.artifact
        for row in first.rows
        if row.mode in modes
        and row.name not in alone
        and (row.device != "cpu" or row.name == first.baseline)
        and row.name not in {one.name for one in asked["unbuilt"]}
    }
    return {"artifacts": kept, "baseline": first.baseline, "unbuilt": ()}
