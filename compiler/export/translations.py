"""What PyTorch's exporter lacks, or writes wrongly, of a captured model.

`prims.prod`                       has no form: `torch.cumprod` of n numbers is made of it, n x n of them
`scatter_reduce` with "mean"       is written to overwrite: here a sum by a count, as a layer over a graph
                                   takes the mean of the messages of all edges that lead to a node
ScatterND of `torch.istft`         has int32 indices, which ONNX does not allow
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.pytorch import import_torch


def product(tensor: Any, axes: Sequence[int], output_dtype: int | None = None) -> Any:  # noqa: ARG001
    """`prims.prod`, without the axes that it reduces."""
    from onnxscript import opset18

    return opset18.ReduceProd(tensor, opset18.Constant(value_ints=list(axes)), keepdims=0)


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
