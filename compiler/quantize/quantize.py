"""`qcompile quantize`: a float ONNX file becomes INT8, FP8, INT4, FP16 or BF16, and is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ...artifact import Artifact, Check, Manifest, commit, tool_versions, writing
from ...calibration import Ranges, load_ranges
from ...calibration.tensorrt_cache import is_cache, read_cache
from ...data.batches import Data
from ...errors import InvalidOption, QuantizationError
from ...model.graph import graph_precision
from ...model.onnx_file import (
    add_external_data,
    check_onnx,
    count_operators,
    digest_model,
    load_onnx,
    model_io,
)
from ...progress import Progress, silent
from .int8.placement import Target
from .int8.static import Processor
from .judge import Judge
from .methods import quantize_graph
from .request import HALVES, Mode, Precision, QuantizeRequest, WeightOptions, check_options, check_ranges


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
    balance: bool = True,
    search: bool = True,
    max_damage: float | None = None,
    data: str | None = None,
    allow_loss: bool = False,
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
        weights: Block size, rounding and form, for mode "weights"; static INT8 takes the rounding.
        balance: Whether static INT8 is tried on the model with its channels evened out, too, where there is
            data; it is kept where the outputs gain by it.
        search: Whether static INT8 is quantized in several ways where there is data, and the one with the
            best outputs kept; otherwise it is quantized as asked for.
        max_damage: Static INT8 leaves layers in float, the most damaging first, until the outputs'
            signal-to-noise ratio on the data is at least this, in dB.
        data: Samples to measure the signal-to-noise ratio on; random input otherwise. The correction of
            biases and GPTQ learn from them.
        allow_loss: Keep a result that loses more on the data than `diff` lets pass, with a warning.
        progress: Told of every step.

    Returns:
        The file and its manifest: what was quantized, what was left in float and why, what the runtime
        executes in which precision, and the signal-to-noise ratio against the float model.

    Raises:
        CalibrationError: If ranges are missing, or belong to another model.
        QuantizationError: If less was quantized than planned, the result computes NaN, or loses too much.
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
    request = QuantizeRequest(
        model, proto, digest, target, precision, mode, processor, loaded, method, exclude, only,
        layers or {}, rest, weights or WeightOptions(), correct_bias, data, progress, weight_type,
        in_float or {}, balance=balance, max_damage=max_damage,
        allow_loss=allow_loss, search=search,
    )  # fmt: skip
    check_ranges(request)
    if data is not None:
        next(iter(Data(data, io.inputs)))  # before the work, not after it
    present = graph_precision(proto)
    if present != "fp32":
        raise InvalidOption(
            f"{model}: its graph is {present} already", hint="quantize the float model instead"
        )
    progress(f"quantize to {precision}")
    with writing(output) as path:
        outcome = quantize_graph(request)
        outcome.write(path)
        warnings = list(outcome.warnings)
        check_onnx(path)
        progress("compare with the float model")
        check, poor = _compare(request, path)
        if poor and not (allow_loss or data is None):
            raise QuantizationError(
                f"{model}: {poor}",
                hint="try another `method`, `exclude` or `layers`, or `qcompile tune`; `allow_loss` keeps it",
            )
        if poor:
            ask = (
                "" if data is not None else "; random input may lie outside the ranges: `data` gives samples"
            )
            warnings.append(f"{poor}{ask}")
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


def _options(request: QuantizeRequest) -> dict[str, Any]:
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
        "search": static and request.search and request.data is not None,
        "balance": static and request.balance and request.search and request.data is not None,
        "max_damage": request.max_damage if static else None,
        "correct_bias": static and request.correct_bias and request.data is not None,
        "weight_type": request.weight_type if integer and request.mode == "dynamic" else "",
        "weights": asdict(request.weights) if request.mode == "weights" else {},
    }


def _method(method: str | None, ranges: Ranges | None) -> str:
    if ranges is None:
        return ""
    return "as in the cache" if ranges.fixed else str(method or ranges.method)


def _compare(request: QuantizeRequest, path: Path) -> tuple[Check, str]:
    """Return the SNR check against the float model, and the outputs that `diff` would reject, as text.

    Raises:
        QuantizationError: On NaN or infinity that was not there before.
    """
    judged = Judge(request).file(path)
    if judged.broken:
        raise QuantizationError(
            f"{request.path}: output {judged.broken!r} became NaN or infinite",
            hint="exclude the layers concerned",
            tensor=judged.broken,
        )
    on = "the data" if request.data else "random input"
    failed = [f"output {one.output!r} has {one.measured} on {on}; {one.criterion} is required"
              for one in judged.failed]  # fmt: skip
    poor = "; ".join(failed) if request.precision in ("int8", "fp8", "int4") else ""
    lowest = min(judged.outputs, key=lambda one: one.snr_db)
    detail = f"{lowest.snr_db:.1f} dB at output {lowest.output!r} on {on}"
    return Check("signal-to-noise ratio", not (poor and request.data), detail), poor
