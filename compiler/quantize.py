"""`qcompile quantize`: a float ONNX file becomes INT8 (static or dynamic) or FP16, and is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..artifact import Artifact, Check, Manifest, commit, tool_versions, writing
from ..calibration import Data, Ranges, load_ranges, observe, parse_method
from ..calibration.taps import choose_taps
from ..calibration.tensorrt_cache import is_cache, read_cache
from ..errors import CalibrationError, InvalidOption, QuantizationError
from ..model.fidelity import fidelity, worst
from ..model.graph import WEIGHTED, count_weighted, graph_precision, producers, weighted_nodes
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
from .dynamic_int8 import quantize_dynamic
from .placement import Placement, Target, plan
from .precision import to_half
from .prepare import prepared
from .static_int8 import activation_limits, quantize_static

if TYPE_CHECKING:
    import onnx

Precision = Literal["int8", "fp16"]
Mode = Literal["static", "dynamic"]

_POOR_SNR_DB = 10.0
_LOOKED_AT = 16  # samples in which FP16 looks for activations that overflow


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    ranges: str | Path | Ranges | None = None,
    target: Target = "onnxruntime",
    precision: Precision = "int8",
    mode: Mode = "static",
    method: str | None = None,
    exclude: Sequence[str] = (),
    data: str | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Quantize an ONNX file for a target, or convert it to FP16.

    Args:
        model: Float ONNX file; for static INT8 the very file that was calibrated.
        output: ONNX file to write.
        ranges: Ranges file, required for static INT8; for FP16 it finds activations that overflow.
        target: "onnxruntime" or "tensorrt" (also TensorRT-RTX).
        precision: "int8" or "fp16".
        mode: "static" or "dynamic", for INT8.
        method: Another method than the ranges file's own, as `minmax` or `percentile:99.9`.
        exclude: Names, globs or operator types of nodes that stay in float.
        data: Samples to measure the signal-to-noise ratio on; made input otherwise.
        progress: Told of every step.

    Returns:
        The file and its manifest: what was quantized, what was left in float and why, and the
        signal-to-noise ratio against the float model.

    Raises:
        CalibrationError: If ranges are missing, or belong to another model.
        QuantizationError: If less was quantized than planned, or the result computes NaN.
        InvalidOption: If the options contradict each other.
    """
    model, output = Path(model), Path(output)
    loaded = _open_ranges(Path(ranges), model) if isinstance(ranges, str | Path) else ranges
    proto = load_onnx(model, external_data=False)
    digest = digest_model(model, proto)
    add_external_data(proto, model)
    _check_options(precision, mode, target, loaded, model, digest)
    if data is not None:
        next(iter(Data(data, model_io(proto).inputs)))  # before the work, not after it
    found = graph_precision(proto)
    if found != "fp32":
        raise InvalidOption(f"{model}: its graph is {found} already", hint="quantize the float model instead")
    progress(f"quantize to {precision}")
    warnings = _unfused(proto) if precision == "int8" and mode == "static" else []
    with writing(output) as path:
        if precision == "fp16":
            if loaded is None and data is None:
                warnings.append("no data was given: values beyond float16's 65504 were not looked for")
            elif loaded is None and data is not None:
                progress("look for values beyond float16")
                loaded = observe(model, Data(data, model_io(proto).inputs, limit=_LOOKED_AT))
            elif loaded is not None:
                warnings += _unobserved(proto, loaded)
            proof = _to_fp16(proto, path, exclude, loaded)
        elif mode == "dynamic":
            planned, reached = quantize_dynamic(prepared(proto), path, exclude=tuple(exclude))
            proof = {"planned": planned, "quantized": reached}
        else:
            assert loaded is not None  # _check_options
            proof = _to_int8(proto, path, target, loaded, method, exclude)
        check_onnx(path)
        progress("compare with the float model")
        check, snr_db = _compare(model, path, model_io(proto).inputs, data)
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
                io=model_io(proto),
                sources={"model": digest} | _ranges_source(loaded),
                tools=tool_versions("onnx", "onnxruntime", "numpy"),
                options={
                    "mode": mode if precision == "int8" else "",
                    "method": _method(method, loaded) if mode == "static" else "",
                    "exclude": list(exclude),
                },
                proof={**proof, "operators": count_operators(load_onnx(path))},
                checks=[check],
                warnings=warnings,
            ),
        )
    return Artifact(output, manifest)


def _unfused(proto: onnx.ModelProto) -> list[str]:
    """A BatchNormalization behind a Conv stays in float, between two conversions: simplify fuses it."""
    made_by = producers(proto.graph)
    makers = [made_by.get(n.input[0]) for n in proto.graph.node if n.op_type == "BatchNormalization"]
    count = sum(maker is not None and maker.op_type == "Conv" for maker in makers)
    if not count:
        return []
    return [f"{count} BatchNormalization behind a Conv stay in float: simplify first, then calibrate"]


def _unobserved(proto: onnx.ModelProto, ranges: Ranges) -> list[str]:
    """Ranges hold what INT8 scales, which is less than what may overflow in float16."""
    every = set(choose_taps(proto).names)
    left = every - set(ranges.names())
    if not left:
        return []
    return [
        f"{len(left)} of {len(every)} activations are not in the ranges: values beyond float16's 65504 were "
        "not looked for there; --data without --ranges looks everywhere"
    ]


def _open_ranges(path: Path, model: Path) -> Ranges:
    return read_cache(path, model) if is_cache(path) else load_ranges(path)


def _check_options(
    precision: str, mode: str, target: str, ranges: Ranges | None, model: Path, digest: str
) -> None:
    if precision not in ("int8", "fp16") or mode not in ("static", "dynamic"):
        raise InvalidOption(f"precision {precision!r}, mode {mode!r}: int8 or fp16, static or dynamic")
    if precision == "int8" and mode == "dynamic" and target != "onnxruntime":
        raise InvalidOption(
            f"dynamic INT8 for {target}: TensorRT has no such mode; static is required",
            hint="calibrate, then quantize with --mode static --ranges FILE",
        )
    if precision == "int8" and mode == "static" and ranges is None:
        raise InvalidOption(
            "static INT8 needs the ranges of the activations",
            hint="run qcompile calibrate first and give --ranges FILE",
            option="--ranges",
        )
    if ranges is not None and ranges.fixed and precision == "fp16":
        raise InvalidOption(
            "TensorRT's calibration cache holds scales, not the largest values, which FP16 asks for",
            hint="give a ranges file, or --data",
            option="--ranges",
        )
    if ranges is not None and ranges.fixed and target != "tensorrt":
        raise InvalidOption(
            f"TensorRT's calibration cache holds symmetric scales, which {target} would waste half of",
            hint="calibrate with qcompile calibrate, or quantize with --target tensorrt",
            option="--ranges",
        )
    if ranges is not None and ranges.model != digest:
        raise CalibrationError(
            f"{model}: the ranges were observed on another model "
            f"({ranges.model[:19]}…, this is {digest[:19]}…)",
            hint="calibrate this very file; simplify comes before calibrate",
            file=model,
        )


def _to_fp16(
    proto: onnx.ModelProto, path: Path, exclude: Sequence[str], ranges: Ranges | None
) -> dict[str, object]:
    half, kept = to_half(proto, block=exclude, ranges=ranges)
    if all(node.name in kept for node in half.graph.node if not node.name.startswith("cast/")):
        raise QuantizationError("no node could become float16", hint="see --exclude and the model's types")
    save_onnx(half, path)
    return {"nodes_by_precision": count_weighted(half), "left_in_float": kept}


def _to_int8(
    proto: onnx.ModelProto,
    path: Path,
    target: Target,
    ranges: Ranges,
    method: str | None,
    exclude: Sequence[str],
) -> dict[str, object]:
    chosen = parse_method(method) if method else None
    ready = prepared(proto)
    placement = plan(ready, target, exclude=exclude)
    operators = {node.name: node.op_type for node in ready.graph.node}
    planned = _weighted(placement, operators)
    if not planned:
        left = placement.left_in_float
        name, reason = next(iter(left.items()), ("", "no Conv, ConvTranspose, MatMul or Gemm"))
        raise QuantizationError(
            f"nothing to quantize: {f'node {name!r}: ' if name else ''}{reason}",
            hint="simplify first" if "simplify" in reason else "choose another target, or keep it in float",
            reasons=dict(left),
        )
    scaled = activation_limits(ready, placement, ranges, chosen)
    result = quantize_static(ready, placement, scaled)
    nodes = weighted_nodes(result)
    reached = {node.name for node in nodes["int8"]}
    missed = [name for name in planned if name not in reached]
    if missed:
        raise QuantizationError(
            f"{len(missed)} of {len(planned)} planned nodes stayed in float: {', '.join(missed[:5])}",
            hint="exclude them by name if that is wanted",
            nodes=missed,
        )
    save_onnx(result, path)
    return {
        "nodes_by_precision": count_weighted(result),
        "left_in_float": dict(placement.left_in_float),
    }


def _weighted(placement: Placement, operators: Mapping[str, str]) -> list[str]:
    return [name for name in placement.nodes if operators[name] in WEIGHTED]


def _compare(model: Path, path: Path, inputs: Any, data: str | None) -> tuple[Check, float]:
    """Signal-to-noise ratio against the float model; fails on NaN that was not there before."""
    feeds: Feeds = next(iter(Data(data, inputs))).feeds if data else made_feeds(inputs)
    reference, quantized = OnnxReference(model), OnnxReference(path)
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


def _method(method: str | None, ranges: Ranges | None) -> str:
    if ranges is None:
        return ""
    return "as in the cache" if ranges.fixed else str(method or ranges.method)


def _ranges_source(ranges: Ranges | None) -> dict[str, str]:
    return {"calibration data": ranges.data} if ranges else {}
