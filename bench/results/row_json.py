"""Rows as JSON: the form that `results.json` has had since version 1, read into types and written from them.

In the file the unit of a group stands at its key (`latency_ms.median`), in the types at each figure
(`latency.median_ms`). A figure that is null or NaN counts as not measured; unknown keys are those of another
version. `results.schema.json` is the form's JSON Schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...figures import number
from ..statistics.speedup import Positive, Speedup, split_launches, verdict_of
from .row import (
    Accuracy,
    ClassChange,
    ColdStart,
    CurvePoint,
    Difference,
    Energy,
    GpuLatency,
    Latency,
    Row,
    WarmUp,
)

_QUANTILES = 101
_WITH_UNIT: dict[str, type] = {"latency": Latency, "gpu_latency": GpuLatency, "cold_start": ColdStart}
_AXES = {"batches": "batch_size", "concurrency": "clients", "in_flight": "streams"}
_KEYS = """name artifact engine precision runs_on status reason size_bytes latency_ms throughput_per_s load_ms
    peak_memory_bytes contains speedup accuracy difference round_medians_ms launch_rounds warnings mode device
    interpreter packages latency_quantiles_ms gpu_latency_ms warm_up cold_start_ms gpu_memory_bytes energy
    batches concurrency in_flight size_ratio layers_by_precision output_tail parameters weights_bytes
    memory_ratio machine layer_times_ms""".split()
_REQUIRED = ("name", "artifact", "engine", "round_medians_ms", "launch_rounds")
"""Keys whose null is no missing figure: it is refused."""


class _Rounds(msgspec.Struct):
    round_medians_ms: list[Positive] = []
    launch_rounds: list[Annotated[int, Meta(ge=0, le=1 << 31)]] = []


def row_json(row: Row) -> dict[str, Any]:
    """Return the `artifacts` entry of `results.json`."""
    value, memory = asdict(row), row.memory
    cold_start = row.cold_start and _without_unit(row.cold_start) | {"total": row.cold_start.total_ms}
    value |= {axis: [_point_json(axis, point) for point in getattr(row, axis)] for axis in _AXES}
    value |= {
        "latency_ms": row.latency and _without_unit(row.latency),
        "latency_quantiles_ms": list(row.latency.quantiles_ms) if row.latency else [],
        "gpu_latency_ms": row.gpu_latency and _without_unit(row.gpu_latency),
        "cold_start_ms": cold_start,
        "peak_memory_bytes": memory and memory.peak_bytes,
        "gpu_memory_bytes": memory and memory.gpu_bytes,
        "accuracy": row.accuracy and accuracy_json(row.accuracy),
        "difference": row.difference and difference_json(row.difference),
        "energy": row.energy
        and {name: item for name, item in value["energy"].items() if item not in (None, "")},
        "warnings": list(row.warnings),
        "round_medians_ms": row.round_medians_ms,
        "launch_rounds": [len(launch.round_medians_ms) for launch in row.launches],
    }
    return {key: value[key] for key in _KEYS}


def accuracy_json(accuracy: Accuracy) -> dict[str, Any]:
    """Return the `accuracy` of an entry."""
    drop = accuracy.drop
    return {
        "metric": accuracy.metric,
        "value": accuracy.value,
        **({} if drop is None else {"drop_points": drop.value, "low": drop.low, "high": drop.high}),
        "samples": accuracy.samples,
        "agreement": accuracy.agreement,
        "per_class": [asdict(one) for one in accuracy.per_class] or None,
        "higher_is_better": accuracy.higher_is_better,
    }


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return the `difference` of an entry.

    `snr_db`, `max_abs_error` and `mean_abs_error` are null where they are infinite; `state` says which
    infinity.
    """
    snr, mean = difference.snr_db, difference.mean_abs_error
    state = "equal" if snr == math.inf else "not finite" if snr == -math.inf else "finite"
    return {
        "output": difference.output,
        "snr_db": _finite(snr),
        # Beside a ratio that is null, it says in older files that the ratio is infinite.
        **({} if snr is None else {"state": state, "max_abs_error": _finite(difference.max_abs_error)}),
        **({} if mean is None else {"mean_abs_error": _finite(mean)}),
        "agreement": difference.agreement,
        "passed": difference.passed,
        "criterion": difference.criterion,
    }


def read_row(entry: Mapping[str, Any]) -> Row:
    """Read an `artifacts` entry of any version."""
    value = _present({key: item for key, item in entry.items() if key not in _REQUIRED})
    value = _positive(Row, value) | {key: entry[key] for key in _REQUIRED if key in entry}
    if str(entry.get("engine")).startswith("tensorrt"):
        value.setdefault("device", "cuda:0")  # older files tell no device, and engines ran on a GPU then, too
    value |= {axis: _curve(value.get(axis, []), count) for axis, count in _AXES.items()}
    value |= {key: _group(kind, _with_unit(value.get(f"{key}_ms"))) for key, kind in _WITH_UNIT.items()}
    if isinstance(value["latency"], dict):
        value["latency"]["quantiles_ms"] = _quantiles(value.get("latency_quantiles_ms", ()))
    row = msgspec.convert(
        value
        | {
            "launches": _launches(entry),
            "memory": _memory(value),
            "warm_up": _group(WarmUp, value.get("warm_up"), stable=False),
            "speedup": _group(Speedup, value.get("speedup"), rounds=0, verdict="no difference"),
            "accuracy": _accuracy(value.get("accuracy")),
            "difference": _difference(value.get("difference")),
            "energy": _group(Energy, value.get("energy")) or None,
            "layer_times_ms": _times(value.get("layer_times_ms", {})),
        },
        Row,
    )
    if row.speedup and not value["speedup"].get("verdict"):  # files of a 95% interval hold that of a 99% one
        row = replace(
            row, speedup=replace(row.speedup, verdict=verdict_of(row.speedup.low, row.speedup.high))
        )
    return row


def _without_unit(group: Latency | GpuLatency | ColdStart) -> dict[str, Any]:
    """The group as the file has it, without figures that older files do not hold and what is no number."""
    figures = _present(asdict(group)).items()
    named = {key.removesuffix("_ms"): value for key, value in figures if key != "quantiles_ms"}
    return {"min": named.pop("min"), **named} if "min" in named else named


def _with_unit(table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    return {key if key == "calls" else f"{key}_ms": value for key, value in table.items()}


def _group(kind: type, table: Any, **defaults: Any) -> Any:
    """The figures that are there; None where one is missing that the type requires."""
    if not isinstance(table, Mapping):
        return table  # None, or what the types refuse
    present = defaults | _positive(kind, _present(table))
    required = {field.name for field in fields(kind) if field.default is MISSING}
    return present if required <= present.keys() else None


def _curve(points: Any, axis: str) -> list[Any]:
    tables = [one for one in points if isinstance(one, Mapping)] if isinstance(points, list) else []
    groups = (_group(CurvePoint, {**one, "count": one.get(axis)}, p99_ms=None) for one in tables)
    return [group for group in groups if group]


def _point_json(axis: str, point: CurvePoint) -> dict[str, Any]:
    names = ("median_ms", "p90_ms", "p99_ms", "throughput_per_s")
    return _present({_AXES[axis]: point.count} | {name: getattr(point, name) for name in names})


def _launches(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rounds of each launch. Verdicts rest on them: damaged ones are refused."""
    rounds = msgspec.convert(entry, _Rounds)
    medians = rounds.round_medians_ms
    launches = split_launches(medians, rounds.launch_rounds) if medians else []
    return [{"round_medians_ms": launch} for launch in launches]


def _quantiles(values: Any) -> Any:
    """All 101 of them, or none."""
    if not isinstance(values, list | tuple):
        return values
    return sorted(values) if len([*filter(number, values)]) == len(values) == _QUANTILES else ()


def _accuracy(table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    present = _present(table)
    if "drop_points" in present:
        ends = {end: present[end] for end in ("low", "high") if end in present}
        present["drop"] = {"value": present["drop_points"], **ends}
    if isinstance(classes := present.get("per_class"), list):
        present["per_class"] = [group for one in classes if (group := _group(ClassChange, one)) is not None]
    return _group(Accuracy, present)


def _difference(table: Any) -> Any:
    """Older files hold no `state`: equal outputs have an error of 0 there, infinite ones null."""
    if not table or not isinstance(table, Mapping):
        return table or None
    present, state = {"passed": False, **_present(table)}, table.get("state")
    if "snr_db" not in present and (state or "max_abs_error" in table):
        equal = state == "equal" if state else present.get("max_abs_error") == 0.0
        present["snr_db"] = math.inf if equal else -math.inf
        if not equal:
            present.setdefault("max_abs_error", math.inf)
            if "mean_abs_error" in table:
                present.setdefault("mean_abs_error", math.inf)
    return present


def _memory(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    return _present({f"{kind}_bytes": entry.get(f"{kind}_memory_bytes") for kind in ("peak", "gpu")}) or None


def _times(table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    return {name: ms for name, ms in _present(table).items() if not _is_nothing(ms)}


def _present(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was not measured: null, NaN or infinite."""
    return {
        name: value
        for name, value in figures.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def _positive(kind: type, table: dict[str, Any]) -> dict[str, Any]:
    """Without the figures of a type that are 0 or less, and cannot be: they count as not measured."""
    above = {field.name for field in fields(kind) if "Positive" in str(field.type)}
    return {key: value for key, value in table.items() if key not in above or not _is_nothing(value)}


def _is_nothing(value: object) -> bool:
    figure = number(value)
    return figure is not None and figure <= 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
