"""The type `Pass`: a change of a graph, with its precondition and postcondition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from ...model.graph.graph import ONNX_DOMAINS, every_graph
from ...model.graph.onnx_file import Graph
from .scope import ModelRewrite


@dataclass(frozen=True)
class Pass:
    """A change of a graph.

    Attributes:
        change: Edits a graph in place, its weights loaded; returns names of rewritten nodes or other changes.
        needs: Returns whether the pass applies to a graph; must not edit it.
        find_problem: Returns the problem of a graph that violates the postcondition; empty if it holds.
        comparison_message: Progress message while outputs are compared; empty if the pass is exact.
        on_source: Whether to compare on the user's model instead of the graph.
        operator: The operator that the pass replaces, for parsers that lack it; empty for other passes.
    """

    name: str
    change: Callable[[Graph], Sequence[str]]
    needs: Callable[[Graph], object] = lambda _: True
    find_problem: Callable[[Graph], str] = lambda _: ""
    comparison_message: str = ""
    on_source: bool = True
    operator: str = ""


def form_pass(operator: str, rewrite: ModelRewrite) -> Pass:
    """Return a pass that replaces an operator by others with the same outputs."""
    return Pass(
        f"{operator} in other operators",
        lambda graph: rewrite(graph.model),
        needs=lambda graph: operator in operators_of(graph),
        operator=operator,
    )


def operators_of(graph: Graph) -> set[str]:
    """Return the types of all ONNX operators in a graph, including its subgraphs."""
    graphs = every_graph(graph.model.graph)
    return {node.op_type for inner in graphs for node in inner.node if node.domain in ONNX_DOMAINS}


def replace_model(graph: Graph, model: onnx.ModelProto) -> list[str]:
    """Replace the model of a graph; return the file's name if the model differs, else nothing."""
    if model is graph.model:
        return []
    graph.edited(model)
    return [str(graph.path.name)]
