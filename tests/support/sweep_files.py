"""Results of a sweep of two models, two shapes and four artifacts, with each state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from qcompile.bench.results.sweep_results import (
    CellAccuracy,
    CellLatency,
    CellResult,
    CellSpeedup,
    head,
    write_results,
)

ARTIFACTS = (
    ("onnxruntime", "fp32", ""),
    ("openvino", "fp16", ""),
    ("openvino", "int8", ""),
    ("tensorrt-rtx", "int8", "sm86"),
)


def write_sweep_json(
    path: Path,
    *,
    name: str = "fleet",
    models: Sequence[str] = ("small", "large"),
    planned: int = 16,
    reason: str = "the builder found no tactic",
) -> Path:
    """Write the file: the last artifact fails, but for the first model's first shape, which forbids it."""
    cells = [
        _cell(model, shape, number, reason, impossible=(model, shape) == (models[0], "b1"))
        for model in models
        for shape in ("b1", "b8")
        for number in range(len(ARTIFACTS))
    ]
    about = head(name, created="2026-01-01T00:00:00+00:00", planned=planned, finished=len(cells) >= planned)
    write_results(path, about, map(msgspec.json.encode, cells))
    return path


def _cell(model: str, shape: str, number: int, reason: str, *, impossible: bool) -> CellResult:
    target, precision, gpu = ARTIFACTS[number]
    artifact = "-".join(filter(None, (target, precision, gpu)))
    cell = CellResult(
        name=f"{model}-{shape}-{artifact}", model=model, shape=shape, target=target, precision=precision,
        gpu=gpu, state="done",
    )  # fmt: skip
    if number == 3:
        state = "impossible" if impossible else "failed"
        return msgspec.structs.replace(cell, state=state, reason=reason)
    latency = 4.0 / (1.0, 1.3, 1.6)[number]
    drop = (0.0, 0.1, 0.4)[number]
    return msgspec.structs.replace(
        cell,
        artifact=f"{model}/{shape}/{artifact}.onnx",
        digest="sha256:" + "0" * 64,
        size_bytes=10_000_000 // (number + 1),
        batch_size=int(shape[1:]),
        inputs={"x": f"{shape[1:]}x3x32x32"},
        measurement=f"{model}/{shape}/results.json",
        latency=CellLatency(
            median_ms=latency, low_ms=latency * 0.98, high_ms=latency * 1.02, p99_ms=latency * 2
        ),
        speedup=CellSpeedup(
            baseline="onnxruntime-fp32", value=4.0 / latency, low=3.9 / latency, high=4.1 / latency,
            verdict="faster",
        )
        if number
        else None,
        accuracy=CellAccuracy(
            metric="top1", value=0.9 - drop / 100, drop=drop, drop_low=drop - 0.2, drop_high=drop + 0.2
        )
        if number
        else None,
        built_on="builder",
        measured_on="quiet",
    )  # fmt: skip
