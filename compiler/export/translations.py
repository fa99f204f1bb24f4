"""What PyTorch's exporter lacks, or writes wrongly, of a captured model.

`prims.prod`                       has no form: `torch.cumprod` of n numbers is made of it, n x n of them
`prims.lgamma`                     has no form: here by Lanczos' series
`einsum` of several types          keeps them, which ONNX's Einsum does not take: here all are cast to one
`scatter_reduce` with "mean"       is written to overwrite: here a sum by a count, as a layer over a graph
                                   takes the mean of the messages of all edges that lead to a node
ScatterND of `torch.istft`         has int32 indices, which ONNX does not allow
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...model.pytorch import import_torch


def product(tensor: Any, axes: Sequence[int], output_dtype: int | None = None) -> Any:  # noqa: ARG001
    """`prims.prod`, without the axes that it reduces."""
    from onnxscript import opset18

    return opset18.ReduceProd(tensor, opset18.Constant(value_ints=list(axes)), keepdims=0)


def translations() -> dict[Any, Any]:
    """Return the forms of operators that PyTorch's exporter lacks, or writes wrongly, by the operator."""
    torch = import_torch()
    return {
        torch.ops.prims.prod.default: product,
        torch.ops.prims.lgamma.default: log_gamma,
        torch.ops.aten.einsum.default: einsum,
    }


def einsum(equation: str, tensors: Sequence[Any], path: object = None) -> Any:  # noqa: ARG001
    """`einsum`, whose operands PyTorch gives the type that holds them all."""
    from onnxscript import opset18

    types = [tensor.dtype for tensor in tensors]
    widest = max(types, key=lambda dtype: (dtype.is_floating_point(), dtype.bitwidth))
    operands = [
        tensor if tensor.dtype == widest else opset18.Cast(tensor, to=widest.value) for tensor in tensors
    ]
    return opset18.Einsum(*operands, equation=equation)


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
    # Of the sine of the distance to a whole number: the sine of a large x has no digits left.
    whole = op.Round(tensor)
    sine = op.Abs(op.Sin(op.Mul(pi, op.Sub(tensor, whole))))
    return op.Where(low, op.Sub(op.Log(op.Div(pi, sine)), value), value)


def widen_indices(model: Any) -> None:
    """Cast int32 indices of ScatterND to int64 in an `onnx_ir.Model`, in place."""
    import onnx_ir as ir

    for node in list(model.graph):
        if node.op_type == "ScatterND" and node.inputs[1].dtype == ir.DataType.INT32:
            cast = ir.node("Cast", [node.inputs[1]], {"to": ir.DataType.INT64.value})
            model.graph.insert_before(node, cast)
            node.replace_input_with(1, cast.outputs[0])


def without_scatter_means(program: Any) -> Any:
    """Return an `ExportedProgram` without such scatters; itself where there are none."""
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
    if not include_self:  # of what is written to; the rest stays
        self, count = self.scatter(dim, index, 0), count.scatter(dim, index, 0)
    total = self.scatter_add(dim, index, src)
    count = count.scatter_add(dim, index, torch.ones_like(src))
    return torch.div(total, count, rounding_mode=None if total.is_floating_point() else "floor")
