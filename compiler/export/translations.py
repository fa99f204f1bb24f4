"""ONNX forms of operators that PyTorch's exporter lacks or writes wrongly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...model.sources.pytorch import import_torch


def product(tensor: Any, axes: Sequence[int], output_dtype: int | None = None) -> Any:  # noqa: ARG001
    """`prims.prod`: the reduced axes are dropped. `torch.cumprod` of n numbers uses it on an n x n matrix."""
    from onnxscript import opset18

    return opset18.ReduceProd(tensor, opset18.Constant(value_ints=list(axes)), keepdims=0)


def translations() -> dict[Any, Any]:
    """Return the ONNX form of each operator that PyTorch's exporter lacks or writes wrongly."""
    torch = import_torch()
    return {
        torch.ops.prims.prod.default: product,
        torch.ops.prims.lgamma.default: log_gamma,
        torch.ops.aten.einsum.default: einsum,
        torch.ops.aten.column_stack.default: column_stack,
        torch.ops.aten.squeeze.dim: squeeze,
        torch.ops.aten.squeeze.dims: squeeze,
    }


def einsum(equation: str, tensors: Sequence[Any], path: object = None) -> Any:  # noqa: ARG001
    """`einsum`: ONNX requires operands of one type, to which PyTorch promotes them."""
    from onnxscript import opset18

    return opset18.Einsum(*_cast_to_widest(tensors), equation=equation)


def column_stack(tensors: Sequence[Any]) -> Any:
    """`column_stack` as Concat, with vectors as columns; PyTorch writes a loop over a sequence."""
    from onnxscript import opset18 as op

    column = op.Constant(value_ints=[-1, 1])
    columns = [op.Reshape(tensor, column) if len(tensor.shape) < 2 else tensor for tensor in tensors]
    return op.Concat(*_cast_to_widest(columns, tensors), axis=1)


def squeeze(tensor: Any, dim: int | Sequence[int]) -> Any:
    """`squeeze` of axes with extent 1; PyTorch also squeezes dynamic axes, which are assumed not to be 1."""
    from onnxscript import opset18 as op

    axes = [dim] if isinstance(dim, int) else list(dim)
    ones = [axis for axis in axes if tensor.shape is None or (len(tensor.shape) and tensor.shape[axis] == 1)]
    return op.Squeeze(tensor, op.Constant(value_ints=ones)) if ones else op.Identity(tensor)


def _cast_to_widest(tensors: Sequence[Any], typed: Sequence[Any] | None = None) -> list[Any]:
    """Return the tensors cast to the widest type, which `typed` provides for tensors without a type."""
    from onnxscript import opset18 as op

    types = [tensor.dtype for tensor in typed or tensors]
    widest = max(types, key=lambda dtype: (dtype.is_floating_point(), dtype.bitwidth))
    return [
        tensor if dtype == widest else op.Cast(tensor, to=widest.value)
        for tensor, dtype in zip(tensors, types, strict=True)
    ]


_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Coefficients for g = 7 and nine terms (Press et al., Numerical Recipes, section 6.1; Godfrey 2001)."""


def log_gamma(tensor: Any) -> Any:
    """`lgamma`: ln |gamma(x)|, below 1/2 by reflection: gamma(x) gamma(1 - x) = pi / sin(pi x)."""
    from onnxscript import opset18 as op

    def number(value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), tensor)

    one, pi = number(1.0), number(math.pi)
    low = op.Less(tensor, number(0.5))
    x = op.Sub(op.Where(low, op.Sub(one, tensor), tensor), one)
    series = number(_LANCZOS[0])
    for index, coefficient in enumerate(_LANCZOS[1:], 1):
        series = op.Add(series, op.Div(number(coefficient), op.Add(x, number(index))))
    t = op.Add(x, number(7.5))
    power = op.Sub(op.Mul(op.Add(x, number(0.5)), op.Log(t)), t)
    value = op.Add(op.Add(power, number(0.5 * math.log(2 * math.pi))), op.Log(series))
    # The sine of the distance to the nearest integer: sin(pi x) loses all digits for a large x.
    whole = op.Round(tensor)
    sine = op.Abs(op.Sin(op.Mul(pi, op.Sub(tensor, whole))))
    return op.Where(low, op.Sub(op.Log(op.Div(pi, sine)), value), value)


def complete_file(path: Path) -> None:
    """Apply `complete_types` to a file in place; external weights are not moved."""
    import onnx_ir as ir

    model = ir.load(path)
    if complete_types(model):
        ir.save(model, path)


def complete_types(model: Any) -> bool:
    """Cast int32 indices of ScatterND to int64, make EyeLike of int64, in place; return whether any changed.

    ONNX forbids int32 indices, which `torch.istft` writes, and ONNX Runtime lacks a boolean EyeLike.
    """
    import onnx_ir as ir

    changed = False
    for node in list(model.graph.all_nodes()):
        if node.op_type == "ScatterND" and node.inputs[1].dtype == ir.DataType.INT32:
            changed = True
            cast = ir.node("Cast", [node.inputs[1]], {"to": ir.DataType.INT64.value})
            node.graph.insert_before(node, cast)
            node.replace_input_with(1, cast.outputs[0])
        if node.op_type == "EyeLike" and _type_of_eye(node) == ir.DataType.BOOL:
            changed = True
            (eye,) = node.outputs
            like = ir.node("Cast", [node.inputs[0]], {"to": ir.DataType.INT64.value})
            node.graph.insert_before(node, like)
            node.replace_input_with(0, like.outputs[0])
            node.attributes["dtype"] = ir.AttrInt64("dtype", ir.DataType.INT64.value)
            cast = ir.node("Cast", [eye], {"to": ir.DataType.BOOL.value})
            cast.outputs[0].dtype, cast.outputs[0].shape = ir.DataType.BOOL, eye.shape
            ir.convenience.replace_all_uses_with(eye, cast.outputs[0])
            cast.replace_input_with(0, eye)
            eye.dtype = ir.DataType.INT64
            node.graph.insert_after(node, cast)
    return changed


def _type_of_eye(node: Any) -> Any:
    if "dtype" in node.attributes:
        return node.attributes["dtype"].as_int()
    producer = node.inputs[0].producer()  # files of the older exporter lack types of intermediate values
    if producer is not None and producer.op_type == "ConstantOfShape" and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor().dtype
    return node.outputs[0].dtype


def without_scatter_means(program: Any) -> Any:
    """Return an `ExportedProgram` without `scatter_reduce` of "mean", which PyTorch writes as overwriting.

    It becomes a sum divided by a count, for example for the mean of the messages to a node of a graph layer.
    Programs without it are returned unchanged.
    """
    torch = import_torch()
    reduce = torch.ops.aten.scatter_reduce.two
    targets = (reduce, torch.ops.aten.scatter_reduce_.two)
    graphs = [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]
    nodes = (node for graph in graphs for node in graph.nodes if node.target in targets)
    if not any("mean" in (*node.args, *node.kwargs.values()) for node in nodes):
        return program
    return program.run_decompositions({reduce: _mean})


def _mean(self: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "mean":
        return NotImplemented
    torch = import_torch()
    count = torch.ones_like(self)
    if not include_self:  # clear only the positions that are written
        self, count = self.scatter(dim, index, 0), count.scatter(dim, index, 0)
    total = self.scatter_add(dim, index, src)
    count = count.scatter_add(dim, index, torch.ones_like(src))
    return torch.div(total, count, rounding_mode=None if total.is_floating_point() else "floor")
