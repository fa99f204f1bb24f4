"""Rows as JSON: the form that `results.json` has had since version 1, read into types and written from them.

A figure that is no number (a file may hold null, NaN or words) counts as not measured. Verdicts rest on the
rounds: damaged ones are refused. `results.schema.json` is the form's JSON Schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from ...figures import number
from ..statistics.launches import split_launches
from ..statistics.speedup import Speedup, Verdict, verdict_of
from .row import (
    Accuracy,
    ClassChange,
    ColdStart,
    CurvePoint,
    Difference,
    Energy,
    GpuLatency,
    Interval,
    Latency,
    Launch,
    Memory,
    NoEnergy,
    Row,
    Status,
    WarmUp,
)

_QUANTILES = 101
_TEXTS = (
    "artifact",
    "precision",
    "runs_on",
    "mode",
    "device",
    "interpreter",
    "reason",
    "output_tail",
    "contains",
    "machine",
)


def row_json(row: Row) -> dict[str, Any]:
    """Return the `artifacts` entry of `results.json`."""
    latency, memory = row.latency, row.memory or Memory(None, None)
    return {
        "name": row.name,
        "artifact": row.artifact,
        "engine": row.engine,
        "precision": row.precision,
        "runs_on": row.runs_on,
        "status": row.status,
        "reason": row.reason,
        "size_bytes": row.size_bytes,
        "latency_ms": latency and _present(
            min=latency.min_ms, median=latency.median_ms, p90=latency.p90_ms, p99=latency.p99_ms,
            max=latency.max_ms, calls=latency.calls,
        ),
        "throughput_per_s": row.throughput_per_s,
        "load_ms": row.load_ms,
        "peak_memory_bytes": memory.peak_bytes,
        "contains": row.contains,
        "speedup": row.speedup and dict(vars(row.speedup)),
        "accuracy": row.accuracy and accuracy_json(row.accuracy),
        "difference": row.difference and difference_json(row.difference),
        "round_medians_ms": row.round_medians_ms,
        "launch_rounds": [len(launch.round_medians_ms) for launch in row.launches],
        "warnings": list(row.warnings),
        "mode": row.mode,
        "device": row.device,
        "interpreter": row.interpreter,
        "packages": dict(row.packages),
        "latency_quantiles_ms": list(latency.quantiles_ms) if latency else [],
        "gpu_latency_ms": row.gpu_latency and {
            "compute": row.gpu_latency.compute_ms,
            "with_transfers": row.gpu_latency.with_transfers_ms,
            "enqueue": row.gpu_latency.enqueue_ms,
        },
        "warm_up": row.warm_up and dict(vars(row.warm_up)),
        "cold_start_ms": row.cold_start and {
            "process": row.cold_start.process_ms,
            "load": row.cold_start.load_ms,
            "first_result": row.cold_start.first_result_ms,
            "total": row.cold_start.total_ms,
        },
        "gpu_memory_bytes": memory.gpu_bytes,
        "energy": _energy_json(row.energy),
        "batches": [_point_json("batch_size", point) for point in row.batches],
        "concurrency": [_point_json("clients", point) for point in row.concurrency],
        "in_flight": [_point_json("streams", point) for point in row.in_flight],
        "size_ratio": row.size_ratio,
        "layers_by_precision": None if row.layers_by_precision is None else dict(row.layers_by_precision),
        "output_tail": row.output_tail,
        "parameters": row.parameters,
        "weights_bytes": row.weights_bytes,
        "memory_ratio": row.memory_ratio,
        "machine": row.machine,
        "layer_times_ms": dict(row.layer_times_ms),
    }  # fmt: skip


def read_row(value: Mapping[str, Any]) -> Row:
    """Read an `artifacts` entry of any version whose types are right (`file_types`).

    Raises:
        ValueError: If its rounds are damaged.
    """
    texts = {key: str(value[key]) for key in _TEXTS if value.get(key) is not None}
    engine = str(value["engine"])
    if engine.startswith("tensorrt"):
        texts.setdefault("device", "cuda:0")  # older files tell no device, and engines ran on a GPU then, too
    status = value.get("status", "measured")
    if status not in get_args(Status):
        raise ValueError(f"status of {value['name']}")
    peak, gpu = _whole(value.get("peak_memory_bytes")), _whole(value.get("gpu_memory_bytes"))
    layers = value.get("layers_by_precision")
    return Row(
        name=str(value["name"]),
        engine=engine,
        status=status,
        **texts,
        size_bytes=_whole(value.get("size_bytes")),
        size_ratio=_positive(value.get("size_ratio")),
        parameters=_whole(value.get("parameters")),
        weights_bytes=_whole(value.get("weights_bytes")),
        launches=_read_launches(value),
        latency=_read_latency(value),
        throughput_per_s=_positive(value.get("throughput_per_s")),
        speedup=_read_speedup(_mapping(value.get("speedup"))),
        accuracy=_read_accuracy(_mapping(value.get("accuracy"))),
        difference=_read_difference(_mapping(value.get("difference"))),
        memory=None if peak is None and gpu is None else Memory(peak, gpu),
        memory_ratio=_positive(value.get("memory_ratio")),
        energy=_read_energy(_mapping(value.get("energy"))),
        gpu_latency=_read_all(
            GpuLatency, value.get("gpu_latency_ms"), "compute", "with_transfers", "enqueue"
        ),
        warm_up=_read_warm_up(_mapping(value.get("warm_up"))),
        cold_start=_read_all(ColdStart, value.get("cold_start_ms"), "process", "load", "first_result"),
        load_ms=number(value.get("load_ms")),
        batches=_read_curve(value.get("batches"), "batch_size"),
        concurrency=_read_curve(value.get("concurrency"), "clients"),
        in_flight=_read_curve(value.get("in_flight"), "streams"),
        packages={str(name): str(version) for name, version in _mapping(value.get("packages")).items()},
        layers_by_precision=dict(layers) if isinstance(layers, Mapping) else None,
        layer_times_ms={
            name: taken_ms
            for name, value in _mapping(value.get("layer_times_ms")).items()
            if (taken_ms := _positive(value)) is not None
        },
        warnings=tuple(str(text) for text in value.get("warnings") or ()),
    )


def accuracy_json(accuracy: Accuracy) -> dict[str, Any]:
    """Return the `accuracy` of an entry."""
    drop = accuracy.drop
    return {
        "metric": accuracy.metric,
        "value": accuracy.value,
        **({} if drop is None else {"drop_points": drop.value, "low": drop.low, "high": drop.high}),
        "samples": accuracy.samples,
        "agreement": accuracy.agreement,
        "per_class": [dict(vars(one)) for one in accuracy.per_class] or None,
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
        **({} if snr is None else {"state": state}),
        # Beside a ratio that is null, it says in older files that the ratio is infinite.
        **({} if snr is None else {"max_abs_error": _finite(difference.max_abs_error)}),
        **({} if mean is None else {"mean_abs_error": _finite(mean)}),
        "agreement": difference.agreement,
        "passed": difference.passed,
        "criterion": difference.criterion,
    }


def _energy_json(energy: Energy | NoEnergy | None) -> dict[str, Any] | None:
    if isinstance(energy, NoEnergy):
        return {"unavailable": energy.reason}
    return None if energy is None else dict(vars(energy))


def _point_json(axis: str, point: CurvePoint) -> dict[str, Any]:
    return _present(
        **{axis: point.count}, median_ms=point.median_ms, p90_ms=point.p90_ms, p99_ms=point.p99_ms,
        throughput_per_s=point.throughput_per_s,
    )  # fmt: skip


def _read_launches(value: Mapping[str, Any]) -> tuple[Launch, ...]:
    medians, counts = value.get("round_medians_ms", []), value.get("launch_rounds", [])
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError(f"launch_rounds of {value['name']}")
    if not all(0.0 < median < math.inf for median in medians):
        raise ValueError(f"round_medians_ms of {value['name']}")
    return tuple(Launch(tuple(launch)) for launch in split_launches(medians, counts)) if medians else ()


def _read_latency(value: Mapping[str, Any]) -> Latency | None:
    latency = _mapping(value.get("latency_ms"))
    median = _positive(latency.get("median"))
    if median is None:
        return None
    p90, p99, least, most = (_positive(latency.get(key)) for key in ("p90", "p99", "min", "max"))
    quantiles = [_positive(item) for item in value.get("latency_quantiles_ms") or ()]
    whole = tuple(sorted(item for item in quantiles if item is not None))
    shown = whole if len(whole) == len(quantiles) == _QUANTILES else ()
    return Latency(median, p90, p99, least, most, _whole(latency.get("calls")), shown)


def _read_speedup(speedup: Mapping[str, Any]) -> Speedup | None:
    value, low, high = (_positive(speedup.get(key)) for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return None
    verdict = speedup.get("verdict")
    return Speedup(
        value,
        low,
        high,
        _whole(speedup.get("rounds")) or 0,
        # As it was said: files of a 95% interval hold the verdict of a 99% one.
        cast("Verdict", verdict) if verdict in get_args(Verdict) else verdict_of(low, high),
        number(speedup.get("correlation_rounds")) or 1.0,
        _whole(speedup.get("launches")) or 1,
    )


def _read_accuracy(accuracy: Mapping[str, Any]) -> Accuracy | None:
    value = number(accuracy.get("value"))
    if value is None:
        return None
    drop = number(accuracy.get("drop_points"))
    return Accuracy(
        str(accuracy["metric"]),
        value,
        None if drop is None else Interval(drop, number(accuracy.get("low")), number(accuracy.get("high"))),
        _whole(accuracy.get("samples")),
        number(accuracy.get("agreement")),
        _read_classes(accuracy.get("per_class")),
        accuracy.get("higher_is_better", True) is True,
    )


def _read_classes(value: object) -> tuple[ClassChange, ...]:
    changes = []
    for item in map(_mapping, value if isinstance(value, list) else ()):
        label, samples = _whole(item.get("label")), _whole(item.get("samples"))
        before, after = number(item.get("baseline")), number(item.get("value"))
        if label is not None and samples is not None and before is not None and after is not None:
            changes.append(ClassChange(label, before, after, samples))
    return tuple(changes)


def _read_difference(difference: Mapping[str, Any]) -> Difference | None:
    """Older files hold no `state`: equal outputs have an error of 0 there, infinite ones null."""
    if not difference:
        return None
    snr, error = number(difference.get("snr_db")), number(difference.get("max_abs_error"))
    mean = number(difference.get("mean_abs_error"))
    state = difference.get("state")
    if snr is None and (state or "max_abs_error" in difference):
        equal = state == "equal" if state else error == 0.0
        snr = math.inf if equal else -math.inf
        error = math.inf if error is None and not equal else error
        mean = math.inf if mean is None and not equal and "mean_abs_error" in difference else mean
    return Difference(
        difference.get("passed") is True,
        str(difference.get("output", "")),
        snr,
        error,
        number(difference.get("agreement")),
        str(difference.get("criterion", "")),
        mean,
    )


def _read_energy(stored: Mapping[str, Any]) -> Energy | NoEnergy | None:
    energy = number(stored.get("mj_per_sample"))
    if energy is not None:
        return Energy(energy, str(stored.get("source", "")))
    return NoEnergy(str(stored["unavailable"])) if stored.get("unavailable") else None


def _read_warm_up(warm_up: Mapping[str, Any]) -> WarmUp | None:
    calls, seconds = _whole(warm_up.get("calls")), number(warm_up.get("seconds"))
    if calls is None or seconds is None:
        return None
    return WarmUp(calls, seconds, warm_up.get("stable") is True)


def _read_curve(value: object, axis: str) -> tuple[CurvePoint, ...]:
    points = []
    for item in value if isinstance(value, list) else ():
        point = _mapping(item)
        count, median = _whole(point.get(axis)), _positive(point.get("median_ms"))
        throughput = _positive(point.get("throughput_per_s"))
        if count and median and throughput:
            p90, p99 = _positive(point.get("p90_ms")), _positive(point.get("p99_ms"))
            points.append(CurvePoint(count, median, p99, throughput, p90))
    return tuple(points)


def _read_all(kind: Any, value: object, *keys: str) -> Any:
    """A type all of whose figures are required; None where one is not there."""
    figures = [number(_mapping(value).get(key)) for key in keys]
    return None if None in figures else kind(*figures)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _present(**figures: float | None) -> dict[str, Any]:
    """Without the figures that older files do not hold."""
    return {name: value for name, value in figures.items() if value is not None}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _positive(value: object) -> float | None:
    figure = number(value)
    return figure if figure is not None and figure > 0 else None


def _whole(value: object) -> int | None:
    figure = number(value)
    return int(figure) if figure is not None and figure >= 0 and figure == int(figure) else None
