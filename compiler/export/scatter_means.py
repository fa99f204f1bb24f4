"""Write `scatter_reduce` with "mean" as a sum by a count: PyTorch's exporter overwrites instead of averaging.

A layer over a graph takes the mean of the messages of all edges that lead to a node.
"""

from __future__ import annotations

from typing import Any

from ...model.pytorch import import_torch


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
