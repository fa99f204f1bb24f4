"""Batch size, metric and time limit of a proposal, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from ...spec.words import AUTO
from .batch import batch_size
from .choose import Line, Proposed
from .data_facts import DataFacts
from .model_facts import ModelFacts

CALIBRATION_SAMPLES = 256
_SECONDS_EACH = 8.0
_SECONDS = (20.0, 120.0)


def bench_lines(
    model: ModelFacts,
    data: DataFacts,
    artifacts: Sequence[Proposed],
    *,
    metric: str = "auto",
    max_drop: float | None = None,
    max_time_s: float | None = None,
) -> list[Line]:
    """Return the keys of `[bench]`."""
    lines: list[Line] = [("batch_size", *batch_size(model, data.samples))]
    first = artifacts[0].name
    if model.is_onnx:
        lines.append(("baseline", first, "there is no PyTorch model to compare with"))
    if data.evaluation:
        lines.append(_metric(data, metric))
        if max_drop is not None:
            lines.append(
                ("max_drop", max_drop, "the report recommends nothing that may lose more, in points")
            )
    if max_time_s is not None:
        lines.append(("max_time_s", max_time_s, "as asked for"))
    else:
        seconds = min(max(_SECONDS_EACH * (len(artifacts) + 1), _SECONDS[0]), _SECONDS[1])
        why = f"{_SECONDS_EACH:g} s for each of {len(artifacts) + 1} rows; more narrows the intervals"
        lines.append(("max_time_s", seconds, why))
    return lines


def _metric(data: DataFacts, asked: str) -> Line:
    return ("metric", asked, "as asked for") if asked != AUTO else ("metric", data.metric, data.why_metric)
