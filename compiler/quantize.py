"""`qcompile quantize`: a float ONNX file becomes INT8, FP8, INT4, FP16 or BF16, and is checked."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..artifact import Artifact, Check, Manifest, commit, tool_versions, writing
from ..calibration import Data, Ranges, load_ranges
from ..calibration.tensorrt_cache import is_cache, read_cache
from ..errors import InvalidOption, QuantizationError
from ..model.fidelity import fidelity, worst
from ..model.graph import graph_precision
from ..model.made_input import made_feeds
from ..model.onnx_file import (
    add_external_data,
    check_onnx,
    count_operators,
    digest_model,
    load_onnx,
    model_io,
    save_onnx,
)
from ..progress import Progress, silent
from ..shapes import Feeds
from .check import OnnxReference
from .half.emulate import in_float32
from .int8.placement import Target
from .int8.static import Processor
from .modes import carry_out
from .request import HALVES, Mode, Precision, Request, WeightOptions, check_options, check_ranges

_POOR_SNR_DB = 10.0


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    ranges: str | Path | Ranges | None = None,
    target: Target = "onnxruntime",
    precision: Precision = "int8",
    mode: Mode = "static",
    processor: Processor = "vnni",
    method: str | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    layers: Mapping[str, str] | None = None,
    in_float: Mapping[str, str] | None = None,
    rest: str = "fp32",
    correct_bias: bool = True,
    weights: WeightOptions | None = None,
    weight_type: Literal["int8", "uint8"] = "int8",
    data: str | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Quantize an ONNX file for a target, or convert it to FP16 or BF16.

    Args:
        model: Float ONNX file; for static INT8 the very file that was calibrated.
        output: ONNX file to write.
        ranges: Ranges file, required for static INT8 and FP8; for FP16 it finds activations that overflow.
        target: "onnxruntime", "openvino", or "tensorrt" (also TensorRT-RTX).
        precision: "int8", "fp8" (E4M3, for TensorRT), "int4", "fp16" or "bf16".
        mode: For integers: "static", "dynamic", or "weights" for weights alone.
        processor: What a static INT8 graph for ONNX Runtime will run on: "vnni", "avx2" or "arm".
        method: Another method than the ranges file's own, as `minmax` or `percentile:99.9`.
        exclude: Names, globs or operator types of nodes that stay in float.
        only: The same, for the nodes that may be quantized; empty for all.
        layers: Name, glob or operator type to the precision of those nodes: "fp32", "fp16", "bf16", or "int8"
            for some of what an earlier pattern leaves in float. The last that names a node decides.
        in_float: Name of each node that the runtime was found to compute in float, to the reason: static INT8
            leaves them alone.
        rest: What static INT8 or FP8 leaves in float becomes this: "fp32", "fp16" or "bf16".
        correct_bias: Whether static INT8 takes its mean error off the biases, where there is data.
        weight_type: Of dynamic INT8: "int8" or "uint8".
        weights: Block size, rounding and form, for mode "weights".
        data: Samples to measure the signal-to-noise ratio on; made input otherwise. The correction of
            biases and GPTQ learn from them.
        progress: Told of every step.

    Returns:
        The file and its manifest: what was quantized, what was left in float and why, what the runtime
        executes in which precision, and the signal-to-noise ratio against the float model.

    Raises:
        CalibrationError: If ranges are missing, or belong to another model.
        QuantizationError: If less was quantized than planned, or the result computes NaN.
        InvalidOption: If the options contradict each other.
    """
    model, output = Path(model), Path(output)
    check_options(
        precision=precision, mode=mode, target=target, processor=processor, rest=rest, layers=layers or {}
    )
    loaded = _open_ranges(Path(ranges), model) if isinstance(ranges, str | Path) else ranges
    proto = load_onnx(model, external_data=False)
    digest = digest_model(model, proto)
    add_external_data(proto, model)
    io = model_io(proto)
    request = Request(
        model, proto, digest, target, precision, mode, processor, loaded, method, exclude, only,
        layers or {}, rest, weights or WeightOptions(), correct_bias, data, progress, weight_type,
        in_float or {},
    )  # fmt: skip
    check_ranges(request)
    if data is not None:
        next(iter(Data(data, io.inputs)))  # before the work, not after it
    found = graph_precision(proto)
    if found != "fp32":
        raise InvalidOption(f"{model}: its graph is {found} already", hint="quantize the float model instead")
    progress(f"quantize to {precision}")
    with writing(output) as path:
        outcome = carry_out(request)
        outcome.write(path)
        warnings = list(outcome.warnings)
        check_onnx(path)
        progress("compare with the float model")
        check, snr_db = _compare(request, path)
        if not check.passed:
            raise QuantizationError(f"{model}: {check.detail}", hint="exclude the layers concerned")
        if data is not None and snr_db < _POOR_SNR_DB:
            warnings.append(
                f"only {check.detail}: much of the signal is lost; try another --method or --exclude"
            )
        manifest = commit(
            path,
            Manifest(
                kind="onnx",
                stage="quantize",
                target=target,
                precision=precision,
                io=io,
                sources={"model": digest} | ({"calibration data": loaded.data} if loaded else {}),
                tools=tool_versions("onnx", "onnxruntime", "numpy"),
                options=_options(request),
                proof={**outcome.proof, "operators": count_operators(load_onnx(path))},
                checks=[check],
                warnings=warnings,
            ),
        )
    return Artifact(output, manifest)


def _open_ranges(path: Path, model: Path) -> Ranges:
    return read_cache(path, model) if is_cache(path) else load_ranges(path)


def _options(request: Request) -> dict[str, Any]:
    """What was asked for, for the manifest."""
    integer = request.precision not in HALVES
    static = integer and request.mode == "static"
    return {
        "mode": request.mode if integer else "",
        "method": _method(request.method, request.ranges) if request.mode == "static" else "",
        "processor": request.processor if static and request.target == "onnxruntime" else "",
        "exclude": list(request.exclude),
        "only": list(request.only),
        "layers": dict(request.layers),
        "rest": request.rest if static else "",
        "correct_bias": static and request.correct_bias and request.data is not None,
        "weight_type": request.weight_type if integer and request.mode == "dynamic" else "",
        "weights": asdict(request.weights) if request.mode == "weights" else {},
    }


def _method(method: str | None, ranges: Ranges | None) -> str:
    if ranges is None:
        return ""
    return "as in the cache" if ranges.fixed else str(method or ranges.method)


def _reference(request: Request, path: Path) -> OnnxReference:
    """What runs the result: ONNX Runtime's CPU, which has next to no kernels for bfloat16."""
    optimize = request.target == "onnxruntime"
    if "bf16" not in (request.precision, request.rest, *request.layers.values()):
        return OnnxReference(path, optimize=optimize)
    with tempfile.TemporaryDirectory(prefix="qcompile-emulated-") as folder:
        emulated = Path(folder) / path.name
        save_onnx(in_float32(load_onnx(path)), emulated)
        return OnnxReference(emulated, optimize=optimize)


def _compare(request: Request, path: Path) -> tuple[Check, float]:
    """Signal-to-noise ratio against the float model; fails on NaN that was not there before."""
    data, inputs = request.data, model_io(request.model).inputs
    feeds: Feeds = next(iter(Data(data, inputs))).feeds if data else made_feeds(inputs)
    reference = OnnxReference(request.path)
    quantized = _reference(request, path)
    expected = dict(zip(reference.names, reference(feeds), strict=True))
    found = dict(zip(quantized.names, quantized(feeds), strict=True))
    for name, array in found.items():
        broken = array.dtype.kind == "f" and not np.isfinite(array).all()
        if broken and np.isfinite(expected[name]).all():
            return Check("finite outputs", False, f"output {name!r} became NaN or infinite"), -np.inf
    name, value = worst({name: fidelity(expected[name], found[name]) for name in expected})
    on = "the data" if data else "made input"
    detail = f"{value.snr_db:.1f} dB at output {name!r} on {on}"
    return Check("signal-to-noise ratio", True, detail), value.snr_db
