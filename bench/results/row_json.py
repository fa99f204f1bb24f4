"""Rows as JSON: `Row` is written as the newest version has it, and read from entries of any version.

A figure that is null or NaN counts as not measured; unknown keys are those of another version.
`results.schema.json` is the form's JSON Schema.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...figures import number
from ..statistics.speedup import Speedup, verdict_of
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
_AXES = {"batches": "batch_size", "concurrency": "clients", "in_flight": "streams"}
_REQUIRED = ("name", "artifact", "engine", "round_medians_ms", "launch_rounds")
"""Keys whose null is no missing figure: it is refused."""


def row_json(row: Row) -> dict[str, Any]:
    """Return the `artifacts` entry of `results.json`."""
    figures: dict[str, Any] = msgspec.to_builtins(row)
    value: dict[str, Any] = {
        key: list(item) if isinstance(item, tuple) else item for key, item in figures.items()
    }
    value |= {axis: [_point_json(axis, point) for point in getattr(row, axis)] for axis in _AXES}
    if "min" in (latency := value["latency_ms"] or {}):
        value["latency_ms"] = {"min": latency["min"], **latency}
    value["accuracy"] = row.accuracy and accuracy_json(row.accuracy)
    value["difference"] = row.difference and difference_json(row.difference)
    return value


def accuracy_json(accuracy: Accuracy) -> dict[str, Any]:
    """Return the `accuracy` of an entry."""
    value: dict[str, Any] = msgspec.to_builtins(accuracy)
    drop = value.pop("drop")
    ends = {"drop_points": drop.pop("value"), **drop} if drop else {}
    return {
        "metric": value.pop("metric"),
        "value": value.pop("value"),
        **ends,
        **value,
        "per_class": list(value["per_class"]) or None,
    }


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return the `difference` of an entry: infinite figures are null, `state` says which infinity."""
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


def upgraded(entry: Any) -> Any:
    """Return an `artifacts` entry of any version in the form of `Row`, without what was not measured."""
    if not isinstance(entry, Mapping):
        return entry  # what the types refuse
    value = _positive(Row, _present({key: item for key, item in entry.items() if key not in _REQUIRED}))
    value |= {key: entry[key] for key in _REQUIRED if key in entry}
    if str(entry.get("engine")).startswith("tensorrt"):
        value.setdefault("device", "cuda:0")  # older files tell no device, and engines ran on a GPU then, too
    value |= {axis: _curve(value.get(axis, []), count) for axis, count in _AXES.items()}
    latency = _group(Latency, value.get("latency_ms"))
    return value | {
        "latency_ms": latency,
        "latency_quantiles_ms": _quantiles(value.get("latency_quantiles_ms", ())) if latency else (),
        "gpu_latency_ms": _group(GpuLatency, value.get("gpu_latency_ms")),
        "cold_start_ms": _group(ColdStart, value.get("cold_start_ms")),
        "warm_up": _group(WarmUp, value.get("warm_up"), stable=False),
        "speedup": _speedup(value.get("speedup")),
        "accuracy": _accuracy(value.get("accuracy")),
        "difference": _difference(value.get("difference")),
        "energy": _group(Energy, value.get("energy")) or None,
        "layer_times_ms": _times(value.get("layer_times_ms", {})),
    }


def _group(kind: type[Struct], table: Any, **defaults: Any) -> Any:
    """The figures that are there; None where one is missing that the type requires."""
    if not isinstance(table, Mapping):
        return table  # None, or what the types refuse
    present = defaults | _positive(kind, _present(table))
    return present if _keys(kind)[0] <= present.keys() else None


def _curve(points: Any, axis: str) -> list[Any]:
    tables = [one for one in points if isinstance(one, Mapping)] if isinstance(points, list) else []
    groups = (_group(CurvePoint, {**one, "count": one.get(axis)}, p99_ms=None) for one in tables)
    return [group for group in groups if group]


def _point_json(axis: str, point: CurvePoint) -> dict[str, Any]:
    names = ("median_ms", "p90_ms", "p99_ms", "throughput_per_s")
    return _present({_AXES[axis]: point.count} | {name: getattr(point, name) for name in names})


def _quantiles(values: Any) -> Any:
    """All 101 of them, or none."""
    if not isinstance(values, list | tuple):
        return values
    return sorted(values) if len([*filter(number, values)]) == len(values) == _QUANTILES else ()


def _speedup(table: Any) -> Any:
    """Files of a 95% interval hold its verdict, or none: then it is that of the interval."""
    if not isinstance(table, Mapping):
        return table
    low, high = number(table.get("low")), number(table.get("high"))
    verdict = verdict_of(low, high) if low is not None and high is not None else "no difference"
    return _group(Speedup, table, rounds=0, verdict=verdict)


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


def _positive(kind: type[Struct], table: dict[str, Any]) -> dict[str, Any]:
    """Without the figures of a type that are 0 or less, and cannot be: they count as not measured."""
    above = _keys(kind)[1]
    return {key: value for key, value in table.items() if key not in above or not _is_nothing(value)}


@functools.cache
def _keys(kind: type[Struct]) -> tuple[set[str], set[str]]:
    """The keys that a type requires, and those whose values are above 0."""
    fields = msgspec.structs.fields(kind)
    required = {one.encode_name for one in fields if one.required}
    return required, {one.encode_name for one in fields if "gt=0" in str(one.type)}


def _is_nothing(value: object) -> bool:
    figure = number(value)
    return figure is not None and figure <= 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
