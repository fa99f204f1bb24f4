"""Results files for tests of the report: made-up figures of the shape that a bench writes, from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qcompile.bench.results.statistics import speedup

ROUNDS = 25

# name, engine, precision, milliseconds, bytes, drop of accuracy in points
ROWS: tuple[tuple[str, str, str, float, int | None, float], ...] = (
    ("pytorch", "pytorch", "fp32", 31.8, None, 0.0),
    ("torchscript", "torchscript", "fp32", 29.4, 44_870_000, 0.0),
    ("pytorch-compile", "pytorch", "fp32", 22.1, None, 0.0),
    ("onnx-fp32", "onnxruntime", "fp32", 15.2, 44_650_000, 0.0),
    ("onnx-bf16", "onnxruntime", "bf16", 15.9, 22_400_000, 0.1),
    ("onnx-int8-dynamic", "onnxruntime", "int8", 18.3, 11_310_000, 0.3),
    ("onnx-int8-static", "onnxruntime", "int8", 4.23, 11_340_000, 0.2),
    ("onnx-int8-minmax", "onnxruntime", "int8", 4.25, 11_900_000, 2.9),
    ("openvino-int8", "openvino", "int8", 3.61, 11_520_000, 1.8),
    ("openvino-int4-weights", "openvino", "int4", 14.1, 6_240_000, 4.6),
)


def results_json(rows: int = len(ROWS)) -> dict[str, Any]:
    """A whole file of version 2: `rows` measured artifacts, one that failed and one that cannot run here."""
    rng = np.random.default_rng(0)
    named = [
        (f"{name}-{index // len(ROWS)}" if index >= len(ROWS) else name, *rest)
        for index in range(rows)
        for name, *rest in [ROWS[index % len(ROWS)]]
    ]
    drift = 1 + 0.02 * np.sin(np.linspace(0, 6, ROUNDS))
    entries = [_entry(rng, row, drift) for row in named]
    base = np.asarray(entries[0]["round_medians_ms"])
    for entry in entries[1:]:
        ratios = np.sort(base / np.asarray(entry["round_medians_ms"]))
        low, value, high = float(ratios[7]), float(np.median(ratios)), float(ratios[-8])
        verdict = "faster" if low > 1.01 else "slower" if high < 0.99 else "no difference"
        entry["speedup"] = {
            "value": value, "low": low, "high": high, "rounds": ROUNDS, "verdict": verdict,
            "correlation_rounds": 1.0, "launches": ROUNDS // 5,
        }  # fmt: skip
    entries += [_failed(), _not_run()]
    return {
        "kind": "qcompile.results",
        "schema_version": 2,
        "created": "2026-11-21T10:00:00+00:00",
        "interrupted": False,
        "baseline": "pytorch",
        "settings": {
            "threads": 2, "inputs": {"image": "8x3x224x224"}, "batch_size": 8, "data": "data.py:evaluation",
            "evaluation": "data.py:evaluation", "metric": "top1", "precision_target": 0.01,
            "max_time_s": 60.0, "confidence": 0.95,
            "command": ["qcompile", "bench", "out/onnx-fp32.onnx", "--baseline", "model.py:build"],
            "recipe": 'version = 1\nname = "digits"\n\n[model]\nsource = "model.py:build"\n',
        },
        "environment": _environment(),
        "artifacts": entries,
        "history": _history(rng, entries),
    }  # fmt: skip


def nothing_json() -> dict[str, Any]:
    """A file in which nothing was measured."""
    value = results_json(1)
    return {**value, "artifacts": value["artifacts"][1:], "baseline": "rtx-int8", "settings": {},
            "environment": {}, "history": []}  # fmt: skip


def recommendable(name: str, ms: float, seed: int = 0, **options: Any) -> dict[str, Any]:
    """A measured artifact with 25 rounds around `ms`."""
    rounds = ms * np.random.default_rng([seed, *name.encode()]).normal(1, 0.003, ROUNDS)
    return {
        "name": name, "artifact": name, "engine": "onnxruntime", "status": "measured",
        "latency_ms": {"median": ms}, "round_medians_ms": rounds.tolist(), "launch_rounds": [5] * 5,
        "size_bytes": 1000, **options,
    }  # fmt: skip


def results_of(*artifacts: dict[str, Any], **top: Any) -> dict[str, Any]:
    """A file of these alone, the first being the baseline; the others are compared with it."""
    base = np.reshape(artifacts[0]["round_medians_ms"], (5, 5)).tolist()
    for one in artifacts[1:]:
        if one["status"] == "measured":
            ratio = speedup(base, np.reshape(one["round_medians_ms"], (5, 5)).tolist())
            one["speedup"] = {
                "value": ratio.value, "low": ratio.low, "high": ratio.high, "rounds": ROUNDS,
                "verdict": ratio.verdict,
            }  # fmt: skip
    value = {**results_json(1), "history": [], "environment": {}, **top}
    return {**value, "artifacts": list(artifacts), "baseline": artifacts[0]["name"]}


def layers_json() -> dict[str, Any]:
    """A file of layers with 40 tensors, of which the third is the first bad one."""
    rng = np.random.default_rng(5)
    snr = np.sort(rng.uniform(4, 46, 40))
    tensors = [
        {
            "tensor": f"/backbone/layer{index % 4 + 1}/block.{index}/conv{index % 3}/Conv_output_0",
            "operator": ("Conv", "Add", "Gemm")[index % 3], "node": f"node_{index}", "snr_db": float(value),
            "max_abs_error": float(10 ** (-value / 20)), "max_abs": 3.2, "elements": 802_816,
        }
        for index, value in enumerate(snr)
    ]  # fmt: skip
    first = {key: tensors[2][key] for key in ("tensor", "operator", "node")}
    return {
        "kind": "qcompile.layers", "schema_version": 1, "reference": "model.onnx",
        "artifact": "model.int8.onnx", "first_bad": first, "tensors": tensors, "runs": 6,
        "peak_memory_bytes": 412_000_000,
    }  # fmt: skip


def write(path: Path, value: dict[str, Any]) -> Path:
    """Write JSON and return its path."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _entry(rng: np.random.Generator, row: tuple[Any, ...], drift: Any) -> dict[str, Any]:
    name, engine, precision, ms, size, drop = row
    calls = ms * np.sort(rng.lognormal(0, 0.03, 2000)) * (1 + 0.25 * (rng.random(2000) > 0.985))
    quantiles = np.quantile(calls, np.linspace(0, 1, 101))
    samples = 8
    return {
        "name": name, "artifact": f"out/{name}.onnx", "engine": engine, "precision": precision,
        "runs_on": "CPU", "status": "measured", "reason": "", "size_bytes": size,
        "latency_ms": {
            "min": quantiles[0], "median": quantiles[50], "p90": quantiles[90], "p99": quantiles[99],
            "max": quantiles[100], "calls": 2000,
        },
        "latency_quantiles_ms": quantiles.tolist(),
        "throughput_per_s": samples * 1e3 / ms, "load_ms": 120 + 40 * ms,
        "peak_memory_bytes": int(9e7 + (size or 2e8)), "contains": f"host to host: one call of {engine}",
        "speedup": None,
        "accuracy": _accuracy(drop, is_baseline=name == "pytorch"),
        "difference": {
            "output": "logits", "snr_db": 120.0 if precision == "fp32" else 41.9 - 3 * drop,
            "max_abs_error": 0.2, "agreement": 1 - drop / 80, "passed": drop < 4, "criterion": "SNR",
        },
        "mode": name.rpartition("-")[2] if engine == "pytorch" and "-" in name else "eager",
        "round_medians_ms": (ms * drift * rng.lognormal(0, 0.004, ROUNDS)).tolist(),
        "launch_rounds": [5] * (ROUNDS // 5),
        "warnings": [],
        "warm_up": {"calls": 12, "seconds": 0.4, "stable": True},
        "cold_start_ms": {"process": 210.0, "load": 90 + 3 * ms, "first_result": 2.4 * ms,
                          "total": 300 + 5.4 * ms},
        "gpu_memory_bytes": None,
        "gpu_latency_ms": {"compute": ms * 0.7, "with_transfers": ms * 0.9, "enqueue": ms * 0.1},
        "energy": {"unavailable": "this system tells no energy (no intel-rapl in /sys/class/powercap)"},
        "batches": [
            {**_point("batch_size", n, ms * (0.25 + 0.75 * n / 8), ms * n / 6, n), "p90_ms": ms * n / 7}
            for n in (1, 2, 4, 8, 16, 32)
        ],
        "concurrency": [
            _point("clients", n, ms * (0.9 + 0.35 * n), ms * n * 1.2, 8 * n) for n in (1, 2, 4)
        ],
        "in_flight": [_point("streams", n, ms * (0.8 + 0.3 * n), ms * n * 1.1, 8 * n) for n in (1, 2, 4)],
        "size_ratio": 44_870_000 / size if size else None,
        "layers_by_precision": _layers(precision),
        "layer_times_ms": {f"/features/{i}/conv/Conv": ms / 2 ** (i + 1) for i in range(14)},
        "output_tail": "",
    }  # fmt: skip


def _point(key: str, n: int, median_ms: float, p99_ms: float, samples: int) -> dict[str, Any]:
    return {key: n, "median_ms": median_ms, "p99_ms": p99_ms, "throughput_per_s": samples * 1e3 / median_ms}


def _accuracy(drop: float, *, is_baseline: bool) -> dict[str, Any]:
    classes = [
        {"label": label, "baseline": 0.95, "value": 0.95 - drop / 100 * (10 - label) / 4, "samples": 100}
        for label in range(10)
    ]
    return {
        "metric": "top1", "value": 0.9460 - drop / 100, "drop_points": drop,
        "low": None if is_baseline else drop - 0.5, "high": None if is_baseline else drop + 0.6,
        "samples": 1000, "agreement": None if is_baseline else 1 - drop / 80,
        "per_class": classes if drop >= 1 else None, "higher_is_better": True,
    }  # fmt: skip


def _layers(precision: str) -> dict[str, dict[str, int]]:
    if precision == "fp32":
        return {"fp32": {"Conv": 20, "Gemm": 1, "Add": 8}}
    return {precision: {"Conv": 19, "Gemm": 1}, "fp32": {"Conv": 1, "Add": 8}}


def _failed() -> dict[str, Any]:
    return {
        "name": "onnx-int8-broken", "artifact": "out/broken.onnx", "engine": "onnxruntime",
        "precision": "int8", "status": "failed", "size_bytes": 11_000_000,
        "reason": "the worker ended with signal 9",
        "output_tail": "loading\n<b>Killed</b> & gone\n",
    }  # fmt: skip


def _not_run() -> dict[str, Any]:
    return {
        "name": "rtx-int8", "artifact": "out/rtx-int8.engine", "engine": "tensorrt-rtx", "precision": "int8",
        "runs_on": "GPU sm86, sm89", "status": "not run", "size_bytes": 12_800_000,
        "reason": "no NVIDIA driver (libcuda.so.1 is missing)",
    }  # fmt: skip


def _environment() -> dict[str, Any]:
    return {
        "processor": "AMD EPYC 9R14", "architecture": "x86_64", "cores": 2, "cores_usable": 2,
        "features": ["avx2", "avx512f", "avx512_vnni"], "threads": 2, "governor": "performance",
        "memory_bytes": 25_276_502_016,
        "system": "Linux-6.8-x86_64-with-glibc2.36", "python": "3.11.7", "gpu": None,
        "packages": {"qcompile": "0.1.0", "torch": "2.13.0", "onnxruntime": "1.31.1", "openvino": "2026.4.1"},
        "before": {"load_average_1min": 0.12, "frequency_mhz": 3700.0, "gpu": None},
        "after": {"load_average_1min": 2.31, "frequency_mhz": 3695.0, "gpu": None},
        "noise": {"noisy": True, "reasons": [
            "other processes took 12% of the processor: end them, or measure at another time"
        ]},
    }  # fmt: skip


def _history(rng: np.random.Generator, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs = []
    for day in range(11, 21):
        found = {}
        for entry in entries[:9]:
            if not entry.get("speedup"):
                continue
            value = entry["speedup"]["value"] * float(rng.normal(1, 0.01)) * (1 if day > 14 else 0.85)
            found[entry["name"]] = {
                "median_ms": 1.0, "speedup": value, "low": value * 0.99, "high": value * 1.01,
                "accuracy": 0.94,
            }  # fmt: skip
        runs.append({"created": f"2026-11-{day}T10:00:00+00:00", "machine": "AMD EPYC", "artifacts": found})
    return runs
