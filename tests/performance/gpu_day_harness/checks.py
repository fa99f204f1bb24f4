"""The checks of the day, each run in a process of its own by `gpu_day.py`.

A check raises nothing for what this TensorRT does not have: it must then refuse it by name, which is a pass.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from day import Day, Failed, NotRun
from kit import SIZES
from placement import pairs, with_two

FP32_DB, FP16_DB, INT8_DB = 60.0, 30.0, 15.0
"""Least closeness to ONNX Runtime on the same graph."""

_PACKAGES = (
    "tensorrt", "tensorrt-rtx", "pycuda", "numpy", "onnx", "onnxruntime", "torch", "safetensors", "msgspec",
    "ml-dtypes", "protobuf", "pytest",
)  # fmt: skip
_BERT = ",".join(f"{name}:1x32..4x32..8x32" for name in ("tokens", "mask"))
_IMAGES = "image:1x3x{0}x{0}..4x3x{0}x{0}..8x3x{0}x{0}"
_RESIDUAL = "x:1x16x16x16..4x16x16x16..8x16x16x16"
_ROUNDS = 200


def environment(day: Day) -> None:
    """Machine, packages and TensorRT's names."""
    from qcompile.engines.gpu import find_gpu, why_no_gpu
    from qcompile.version import tool_versions

    gpu = find_gpu()
    day.see(
        python=sys.version,
        platform=platform.platform(),
        gpu=gpu.as_json() if gpu else why_no_gpu(),
        packages=tool_versions(*_PACKAGES),
        nvidia_smi=_output("nvidia-smi"),
    )
    adapter = day.adapter
    day.see(
        tensorrt=adapter.name,
        strongly_typed=adapter.strongly_typed,
        calibrators=adapter.has_calibrators(),
        highest_opset=adapter.highest_opset,
        progress_monitor=adapter.has_progress_monitor,
        shares_profiles=adapter.shares_profiles(),
        mismatch=_names_beside_the_recorded(adapter),
    )


def tiny(day: Day) -> None:
    """One small engine is built, run and closed; the next step loads it."""
    day.attempt("built and run", _compare, day, "residual", "tiny", "fp32", _RESIDUAL, FP32_DB)
    day.require()


def tiny_loaded(day: Day) -> None:
    """The same engine is loaded, run and closed in a process that has built nothing, twice."""
    _load(day, "tiny", "residual", "once", "twice")


def bert(day: Day) -> None:
    """LayerNormalization: of opset 17, spelled out in opset 16, and in float16."""
    in_graph = day.adapter.strongly_typed
    half = "bert.fp16" if in_graph else "bert"
    for source, precision, least in (
        ("bert", "fp32", FP32_DB), ("bert.opset16", "fp32", FP32_DB), (half, "fp16", FP16_DB),
    ):  # fmt: skip
        name = f"{source}.{precision}"
        day.attempt(name, _compare, day, source, name, precision, _BERT, least)
    day.require("bert.opset16.fp32", f"{half}.fp16")


def group_norm(day: Day) -> None:
    """GroupNorm, which TensorRT 8.5 builds from a plugin; the next check loads it again."""
    about = ("group_norm", "group_norm", "fp32", _IMAGES.format(32), FP32_DB)
    day.attempt("built and run here", _compare, day, *about)
    day.require()


def group_norm_fresh(day: Day) -> None:
    """The same engine in a process that has built nothing: its plugins must be there all the same."""
    _load(day, "group_norm", "group_norm", "loaded in a fresh process")


def int64_calibration(day: Day) -> None:
    """TensorRT's own calibrator on int64 samples."""
    options: dict[str, Any] = {
        "calibrator": "native",
        "data": str(day.kit / "integers.samples.npz"),
        "calibration_cache": day.folder / "integers.cache",
        "allow_fallback": True,
    }

    def calibrate() -> dict[str, Any]:
        (day.folder / "integers.cache").unlink(missing_ok=True)
        engine = day.build("integers.onnx", "integers", "int8", profile="tokens:1x16..4x16..8x16", **options)
        return {
            "cache": (day.folder / "integers.cache").read_text()[:2000],
            **day.compare(engine, "integers", INT8_DB),
        }

    if day.adapter.has_calibrators():
        day.attempt("calibrated on int64", calibrate)
    else:
        day.attempt("refused by name", _refused, "no INT8 calibrators", calibrate)
    day.require()


def shape_tensor(day: Day) -> None:
    """A shape tensor of two values, of 32 and of 64 bits."""

    def check(kind: str) -> dict[str, Any]:
        profile = "x:1x3x8x8..4x3x8x8..4x3x8x8,size:4x4..5x12..16x16"
        engine = day.build(f"shaped.{kind}.onnx", f"shaped.{kind}", profile=profile)
        names = [f"{height}x{width}" for height, width in SIZES]
        close = {name: day.compare(engine, f"shaped.{kind}.{name}", FP32_DB) for name in names}
        return {"snr_db": {name: one["snr_db"] for name, one in close.items()}}

    for kind in ("int32", "int64"):
        day.attempt(kind, check, kind)
    day.require()


def two_runners(day: Day) -> None:
    """Two runners of one engine, closed in the order they were opened, and in the opposite one."""

    def check(first_closed: int) -> dict[str, Any]:
        feeds, expected = day.batch("residual")
        runners = [day.open(engine) for _ in range(2)]
        found = [runner.infer(feeds) for runner in runners]
        runners[first_closed].close()
        found.append(runners[1 - first_closed].infer(feeds))
        runners[1 - first_closed].close()
        return {"snr_db": [day.closeness(expected, one, FP32_DB)["snr_db"] for one in found]}

    engine = day.build("residual.onnx", "residual", profile=_RESIDUAL)
    day.attempt("first opened, first closed", check, 0)
    day.attempt("first opened, last closed", check, 1)
    day.require()


def residual_qdq(day: Day) -> None:
    """ResNet-50 in INT8 with Q/DQ on the residual branch alone, and on both inputs of the adds."""
    for name, profile in (("residual", _RESIDUAL), ("resnet50", _IMAGES.format(224))):
        if not (day.kit / f"{name}.int8.onnx").is_file():
            continue  # left out of the kit
        model = onnx.load(day.graph(f"{name}.int8.onnx"))
        amax = json.loads((day.kit / f"{name}.amax.json").read_text())
        for placement, graph in (("one", model), ("two", with_two(model, amax))):
            onnx.save(graph, day.folder / f"{name}.{placement}.onnx")
            day.see(**{f"{name}.{placement}": {"pairs_of_qdq": pairs(graph)}})
            day.attempt(f"{name}.{placement}", _int8, day, f"{name}.{placement}", f"{name}.int8", profile)
    day.require()


def cuda_graphs(day: Day) -> None:
    """A CUDA graph computes what the plain run does, is kept over shapes and addresses, and is timed."""

    def check() -> dict[str, Any]:
        feeds, _ = day.batch("residual")
        with day.open(engine) as plain, day.open(engine, cuda_graph=True) as graph:
            for rows in (4, 1, 3, 4, 2, 4):
                part = {key: value[:rows] for key, value in feeds.items()}
                if not np.array_equal(graph.infer(part)["y"], plain.infer(part)["y"]):
                    raise Failed(f"batch {rows}: other outputs than without a graph")
            return {
                "plain_ms": _milliseconds(plain.time(feeds, _ROUNDS)),
                "graph_ms": _milliseconds(graph.time(feeds, _ROUNDS)),
            }

    engine = day.build("residual.onnx", "graphed", profile=_RESIDUAL)
    day.attempt("graph", check)
    day.require()


def refit(day: Day) -> None:
    """New weights for a built engine."""

    def check() -> dict[str, Any]:
        import qcompile

        engine = day.build("residual.onnx", "refittable", profile=_RESIDUAL, tensorrt={"refit": True})
        before = day.compare(engine, "residual", FP32_DB)
        new = qcompile.refit(engine, day.graph("residual.retrained.onnx"), day.folder / "refitted.engine")
        return {"before": before, **day.compare(new.path, "residual.retrained", FP32_DB)}

    if day.gpus and day.target == "tensorrt-rtx":
        day.see(without_gpu="TensorRT-RTX builds engines that take new weights only where a GPU is")
        raise NotRun("no GPU here to build it on")
    day.attempt("refit", check)
    day.require()


def version_compatible(day: Day) -> None:
    """An engine that newer TensorRT loads, with the lean runtime inside."""
    if day.target == "tensorrt-rtx":
        raise NotRun("the lean runtime is not in TensorRT-RTX's package")
    _option(day, {"version_compatible": True}, "VERSION_COMPATIBLE", "version compatible")


def hardware_compatible(day: Day) -> None:
    """An engine for Ampere and newer."""
    _option(day, {"hardware_compatible": "ampere+"}, "HardwareCompatibilityLevel", "ampere+")


def timing_cache(day: Day) -> None:
    """A cache is written, read again, and one that is garbage costs no engine."""
    cache = day.folder / "timing.cache"

    def build(name: str) -> dict[str, Any]:
        day.build("residual.onnx", name, profile=_RESIDUAL, tensorrt={"timing_cache": str(cache)})
        return {"cache_bytes": cache.stat().st_size if cache.is_file() else 0}

    if not day.adapter.keeps_timing_caches:
        raise NotRun(f"{day.adapter.name} keeps no timing cache")
    cache.unlink(missing_ok=True)
    day.attempt("written", build, "cached")
    day.attempt("read", build, "cached.again")
    cache.write_bytes(b"garbage" * 100)
    day.attempt("garbage", build, "cached.garbage")
    day.require()


def two_profiles(day: Day) -> None:
    """Two optimization profiles: the proof asks the inspector at both, and both run."""

    def check() -> dict[str, Any]:
        engine = day.build("residual.onnx", "profiles", profile=f"{one} {_RESIDUAL.replace('x:1x', 'x:2x')}")
        feeds, expected = day.batch("residual")
        with day.open(engine) as runner:
            return {
                str(rows): day.closeness(
                    {"y": expected["y"][:rows]}, runner.infer({"x": feeds["x"][:rows]}), FP32_DB
                )["snr_db"]
                for rows in (1, 4, 1)
            }

    one = "..".join(["x:1x16x16x16", *["1x16x16x16"] * 2])
    day.attempt("two profiles", check)
    day.require()


def _compare(
    day: Day, source: str, name: str, precision: str, profile: str, least_db: float
) -> dict[str, Any]:
    engine = day.build(f"{source}.onnx", name, precision, profile=profile)
    return day.compare(engine, source, least_db)


def _load(day: Day, name: str, reference: str, *times: str) -> None:
    engine = day.folder / f"{name}.engine"
    if not engine.is_file():
        raise NotRun(f"the check {name} built no engine")
    for time in times:
        day.attempt(time, day.compare, engine, reference, FP32_DB)
    day.require()


def _int8(day: Day, file: str, reference: str, profile: str) -> dict[str, Any]:
    # Where types are weak, the layers beside INT8 may be in float16; elsewhere the graph says float32.
    more = {} if day.adapter.strongly_typed else {"float_precision": "fp16"}
    engine = day.build(f"{file}.onnx", file, "int8", profile=profile, allow_fallback=True, **more)
    close = day.compare(engine, reference, INT8_DB)
    return {**close, **_times(day, engine, reference)}


def _option(day: Day, options: dict[str, Any], member: str, name: str) -> None:
    def check() -> dict[str, Any]:
        engine = day.build("residual.onnx", name.replace(" ", "_"), profile=_RESIDUAL, tensorrt=options)
        return day.compare(engine, "residual", FP32_DB)

    module = day.adapter.module
    if hasattr(module.BuilderFlag, member) or (hasattr(module, member) and day.target == "tensorrt"):
        day.attempt(name, check)
    else:
        day.attempt(f"{name} refused by name", _refused, "has no", check)
    day.require()


def _refused(words: str, action: Callable[[], Any]) -> dict[str, Any]:
    from qcompile.errors import InvalidOption

    try:
        action()
    except InvalidOption as error:
        if words not in str(error):
            raise
        return {"refused": str(error)}
    raise Failed("it was taken, and this TensorRT does not have it")


def _times(day: Day, engine: Path, reference: str) -> dict[str, Any]:
    feeds, _ = day.batch(reference)
    with day.open(engine) as runner:
        on_gpu = runner.gpu_times(feeds, _ROUNDS)
        return {
            "host_ms": _milliseconds(runner.time(feeds, _ROUNDS)),
            "gpu_ms": _milliseconds(on_gpu.compute),
        }


def _milliseconds(nanoseconds: Any) -> float:
    return round(float(np.median(nanoseconds)) / 1e6, 4)


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _names_beside_the_recorded(adapter: Any) -> dict[str, Any]:
    """Names of the module that the file of this version in tests/support/trt_api has not, and the reverse."""
    folder = Path(__file__).resolve().parents[3] / "tests/support/trt_api"
    path = folder / f"{adapter.module.__name__}-{adapter.version}.json"
    if not path.is_file():
        return {"no file": path.name}
    recorded = set(json.loads(path.read_text())["names"])
    here = {name for name in vars(adapter.module) if not name.startswith("_")}
    return {"here alone": sorted(here - recorded), "recorded alone": sorted(recorded - here)}
