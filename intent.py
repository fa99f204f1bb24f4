"""The verbs that bring rooms together which do not know each other.

`build`: the graph is brought to the precision the target needs (`compiler/`), then built and proven
(`engines/`). `calibrate`: what quantization will scale (`compiler/`) is observed (`calibration/`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .artifact import Artifact
from .errors import InvalidOption
from .progress import Progress, silent

if TYPE_CHECKING:
    from .calibration import Data
    from .engines.base import Precision
    from .engines.tensorrt.calibrator import Calibration

CALIBRATORS = ("ours", "entropy", "minmax")

Shapes = Mapping[str, tuple[int, ...]]


def calibrate(
    model: str | Path,
    data: str | Data,
    output: str | Path,
    *,
    targets: Sequence[str] = ("onnxruntime", "openvino", "tensorrt"),
    method: str = "auto",
    samples: int | None = None,
    shard: str = "1/1",
    threads: int = 0,
    resume: bool = True,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Observe what quantization for the targets will scale, and write a ranges file.

    Args:
        model: Float ONNX file.
        data: Spelling of the samples (`calibration.batches`), or `Data`.
        output: Ranges file to write.
        targets: What the model will be quantized for: "onnxruntime", "openvino", "tensorrt". Fewer are
            observed faster.
        method, samples, shard, threads, resume, checkpoint, progress: As
            `calibration.calibrate.calibrate`.

    Returns:
        The ranges file and its manifest.

    Raises:
        DataError, CalibrationError, ModelError, InvalidOption: As `calibration.calibrate.calibrate`.
    """
    from .calibration import calibrate as observe_and_write
    from .compiler.int8.wanted import wanted_tensors
    from .model.onnx_file import check_onnx
    from .model.outline import read_outline

    outline = read_outline(Path(model))
    try:
        wanted = wanted_tensors(outline, targets)  # type: ignore[arg-type]  # checked there
    except (IndexError, KeyError, TypeError, ValueError):
        check_onnx(outline.path)  # a damaged file says here what is wrong with it
        raise
    return observe_and_write(
        outline,
        data,
        output,
        method=method,
        samples=samples,
        shard=shard,
        wanted=wanted,
        threads=threads,
        resume=resume,
        checkpoint=checkpoint,
        progress=progress,
    )


def build(
    model: str | Path,
    output: str | Path,
    *,
    target: str,
    precision: str = "fp32",
    ranges: str | Path | None = None,
    method: str | None = None,
    gpus: Sequence[str] = (),
    min_shapes: Shapes | None = None,
    opt_shapes: Shapes | None = None,
    max_shapes: Shapes | None = None,
    inputs: Sequence[str] = (),
    threads: int = 0,
    rest: str = "fp32",
    allow_fallback: bool = False,
    calibrator: str = "",
    data: str | None = None,
    calibration_cache: Path | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Build an artifact for a target and prove that its precision was reached.

    Args:
        model: ONNX file; for "torchscript" a MODEL spelling.
        output: File to write.
        target: Name of the engine.
        precision: "fp32", "fp16", "bf16", "int8" or "int4" (weights alone).
        ranges: Ranges file: a float ONNX file is then quantized to INT8 for the target first.
        method: Another method than the ranges file's own.
        gpus: Compute capabilities to build for ("sm86"), where the target can choose.
        min_shapes, opt_shapes, max_shapes: Input name to shape, for dynamic inputs.
        inputs: Inputs of a MODEL that does not declare them.
        threads: Threads of a CPU runtime; 0 lets it choose.
        rest: What INT8 leaves in float is computed in: "fp32", "fp16" or "bf16".
        allow_fallback: Keep an artifact that did not reach the precision, with a warning.
        calibrator: How INT8 gets its scales where TensorRT has weak types (8.5 to 10). Empty: as Q/DQ in
            the graph. "ours": TensorRT reads ours, from `ranges`. "entropy", "minmax": TensorRT's own
            calibrators run the float graph on `data`.
        data: Samples for TensorRT's own calibrators.
        calibration_cache: Where to write the scales that they found.
        progress: Told of every step.

    Returns:
        The artifact and its manifest with the proof.

    Raises:
        InvalidOption: If the graph has not the precision and cannot be given it.
        EngineUnavailable, BuildError, IntentNotReached: See `engines.build.build_engine`.
    """
    from .engines.base import PRECISIONS, BuildRequest
    from .engines.build import build_engine, require_builder
    from .engines.registry import engine

    if precision not in PRECISIONS:
        raise InvalidOption(f"precision {precision!r}: one of {', '.join(PRECISIONS)} is required")
    chosen = PRECISIONS[PRECISIONS.index(precision)]
    require_builder(target)
    with tempfile.TemporaryDirectory(prefix="qcompile-build-") as folder:
        graph, calibration = str(model), None
        if calibrator:
            _check_calibrator(calibrator, target, precision, ranges, data, calibration_cache)
            calibration = _native(Path(model), calibrator, ranges, method, data)
        elif data is not None or calibration_cache is not None:
            raise InvalidOption("--data and --calibration-cache are for --calibrator entropy or minmax")
        elif engine(target).takes == "onnx":
            needed = engine(target).graph_precision(chosen)
            graph = _typed(Path(model), needed, target, ranges, method, rest, Path(folder), progress)
        request = BuildRequest(
            graph, Path(output), chosen, str(model), min_shapes or {}, opt_shapes or {}, max_shapes or {},
            list(dict.fromkeys(gpu.lower() for gpu in gpus)), inputs, threads, progress,
            rest, calibration,
        )  # fmt: skip
        return build_engine(
            target, request, allow_fallback=allow_fallback, calibration_cache=calibration_cache
        )


def _check_calibrator(
    calibrator: str,
    target: str,
    precision: str,
    ranges: str | Path | None,
    data: str | None,
    calibration_cache: Path | None,
) -> None:
    from .engines.tensorrt.adapter import MODULES, load_adapter

    if calibrator not in CALIBRATORS:
        raise InvalidOption(f"--calibrator {calibrator!r}: one of {', '.join(CALIBRATORS)} is required")
    if precision != "int8" or target not in MODULES:
        raise InvalidOption(f"--calibrator is for --precision int8 and target {' or '.join(MODULES)}")
    load_adapter(target).require_calibrators()
    native = calibrator != "ours"
    if native and (data is None or ranges is not None):
        raise InvalidOption(f"--calibrator {calibrator}: TensorRT calibrates; give --data and no --ranges")
    if not native and (ranges is None or data is not None or calibration_cache is not None):
        raise InvalidOption("--calibrator ours: give --ranges, no --data and no --calibration-cache")


def _native(
    model: Path, calibrator: str, ranges: str | Path | None, method: str | None, data: str | None
) -> Calibration:
    """How TensorRT gets the scales of a float graph: from our ranges, or from samples."""
    from .calibration import Data, load_ranges, parse_method
    from .calibration.tensorrt_cache import format_cache
    from .engines.tensorrt.adapter import load_adapter
    from .engines.tensorrt.calibrator import Calibration
    from .model.graph import graph_precision
    from .model.outline import read_outline

    outline = read_outline(model)
    found = graph_precision(outline.model)
    if found != "fp32":
        raise InvalidOption(f"{model}: its graph is {found} already; a calibrator takes the float graph")
    if ranges is None:
        assert data is not None  # _check_calibrator
        batches = Data(data, outline.io.inputs, batch_size=1)
        return Calibration("minmax" if calibrator == "minmax" else "entropy", batches)
    loaded = load_ranges(Path(ranges))
    if loaded.model != outline.fingerprint():
        raise InvalidOption(f"{model}: {ranges} was observed on another model", hint="calibrate this file")
    version = load_adapter("tensorrt").version
    scales = format_cache(loaded, version=version, method=parse_method(method) if method else None)
    return Calibration("entropy", scales=scales.encode())


def _typed(
    model: Path,
    needed: Precision,
    target: str,
    ranges: str | Path | None,
    method: str | None,
    rest: str,
    folder: Path,
    progress: Progress,
) -> str:
    """Return an ONNX file of the needed precision: the given one, or one made from it."""
    from .compiler import quantize
    from .compiler.int8.placement import graph_target
    from .model.graph import graph_precision
    from .model.outline import read_outline

    found = graph_precision(read_outline(model).model)
    placement = graph_target(target)
    if found == needed:
        return str(model)
    if found != "fp32":
        raise InvalidOption(
            f"{model}: its graph is {found} already; {needed} was asked for",
            hint=f"give --precision {found}, or build from the float model",
        )
    typed = folder / model.name
    if needed == "fp16" or needed == "bf16":
        quantize(model, typed, precision=needed, target=placement, progress=progress)
        return str(typed)
    if needed == "int4":
        raise InvalidOption(
            f"{model}: holds no weights of 4 bits, and int4 was asked for",
            hint="quantize it first: qcompile quantize --mode weights --precision int4",
        )
    if ranges is None:
        raise InvalidOption(
            f"{model}: holds no quantized layer, and int8 was asked for",
            hint="quantize it first, or give --ranges FILE (qcompile calibrate makes it)",
            option="--ranges",
        )
    quantize(
        model,
        typed,
        ranges=ranges,
        method=method,
        target=placement,
        rest="fp32" if target == "openvino" else rest,  # which is told while it loads
        progress=progress,
    )
    return str(typed)
