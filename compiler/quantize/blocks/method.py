"""`--precision nvfp4` and `mxfp8`: matrix products whose operands are quantized in blocks, for TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ....calibration import Method, Ranges, parse_method
from ....errors import CalibrationError, QuantizationError
from ....model.graph import count_weighted, weighted_nodes
from ....model.onnx_file import save_onnx
from ....spec.words import BlockFormat
from ...opset.fit import in_newer_opset
from ..layer_precisions import in_mixed_precision, layer_precisions
from ..match_nodes import match_nodes
from ..prepare import prepare_graph
from ..request import Outcome, QuantizeRequest
from .formats import BLOCK_SIZE
from .placement import plan_blocks
from .rewrite import LOWEST_OPSET, to_blocks

if TYPE_CHECKING:
    import onnx


def quantize_in_blocks(request: QuantizeRequest) -> Outcome:
    """Quantize the products of stored weights; what they leave in float may become float16 or bfloat16.

    Raises:
        QuantizationError: If there is no product to quantize, or less was reached than planned.
        CalibrationError: If an activation of NVFP4 has no range.
    """
    kind = cast("BlockFormat", request.spec.precision)
    model = in_newer_opset(request.model, request.path, LOWEST_OPSET[kind], data=request.spec.data)
    ready = prepare_graph(model)
    layers = layer_precisions(request, ready.graph)
    excluded = {name: layer.reason for name, layer in layers.items()}
    excluded |= match_nodes(ready.graph, request.spec.exclude, only=request.spec.only)
    planned, left = plan_blocks(ready, kind, excluded)
    if not planned:
        name, reason = next(iter(left.items()), ("", "no MatMul or Gemm"))
        raise QuantizationError(
            f"nothing to quantize: {f'node {name!r}: ' if name else ''}{reason}",
            hint="simplify first" if not left else "choose `precision` int8 or fp8, or keep it in float",
            reasons=left,
        )
    amax = _amax(ready, planned, request) if kind == "nvfp4" else dict.fromkeys(planned, 0.0)
    graph, kept, missed = in_mixed_precision(request, ready, layers)
    to_blocks(graph, kind, amax)
    reached = {node.name for node in weighted_nodes(graph).get(kind, ())}
    lost = [name for name in planned if name not in reached]
    if lost:
        raise QuantizationError(
            f"{len(lost)} of {len(planned)} planned nodes stayed in float: {', '.join(lost[:5])}", nodes=lost
        )
    proof: dict[str, object] = {
        "nodes_by_precision": count_weighted(graph),
        "left_in_float": left,
        "left_in_fp32": kept,
        "block_size": BLOCK_SIZE[kind],
    }
    return Outcome(lambda path: save_onnx(graph, path), proof, missed)


def _amax(model: onnx.ModelProto, planned: tuple[str, ...], request: QuantizeRequest) -> dict[str, float]:
    """Node to the largest magnitude of its activation, by the method that was asked for."""
    assert request.ranges is not None, "check_ranges comes first"
    method = parse_method(request.spec.method) if request.spec.method else None
    read = {node.name: node.input[0] for node in model.graph.node if node.name in set(planned)}
    limits = {tensor: _limit(request.ranges, tensor, method) for tensor in dict.fromkeys(read.values())}
    return {name: limits[tensor] for name, tensor in read.items()}


def _limit(ranges: Ranges, tensor: str, method: Method | None) -> float:
    if tensor not in ranges.names():
        raise CalibrationError(
            f"tensor {tensor!r} needs a scale and has no range",
            hint="ranges cover the tensors that their targets scale: calibrate for `target` tensorrt",
            tensor=tensor,
        )
    low, high = ranges.limits(tensor, method, symmetric=True)
    return max(-low, high)
