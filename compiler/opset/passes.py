"""A pass: a step from graph to graph, with what it needs and what it promises; each rewrite has its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from ...model.graph.graph import ONNX_DOMAINS, every_graph
from ...model.graph.onnx_file import Graph
from .scope import ModelRewrite


@dataclass(frozen=True)
class Pass:
    """A step from graph to graph.

    Attributes:
        change: Edits a graph in place, its weights loaded; returns the nodes that it rewrote, or what else
            it changed.
        needs: Whether there is anything for it in a graph, which is only looked at.
        leaves: What is wrong with the graph behind it; empty where what the pass promises is true.
        compared: What users are told while the change is compared with what was before; empty: it is exact.
        on_source: Whether the change is compared on the user's model, and not on the graph.
        operator: The operator that it writes in others, for readers that lack it; empty for other passes.
    """

    name: str
    change: Callable[[Graph], Sequence[str]]
    needs: Callable[[Graph], object] = lambda _: True
    leaves: Callable[[Graph], str] = lambda _: ""
    compared: str = ""
    on_source: bool = True
    operator: str = ""


def form_pass(operator: str, rewrite: ModelRewrite) -> Pass:
    """Return the pass that writes an operator in others, exactly."""
    return Pass(
        f"{operator} in other operators",
        lambda graph: rewrite(graph.model),
        needs=lambda graph: operator in operators_of(graph),
        operator=operator,
    )


def operators_of(graph: Graph) -> set[str]:
    """Return all operators of ONNX in a graph, those inside nodes included."""
    graphs = every_graph(graph.model.graph)
    return {node.op_type for inner in graphs for node in inner.node if node.domain in ONNX_DOMAINS}


def replace_model(graph: Graph, model: onnx.ModelProto) -> list[str]:
    """Put a model in place of a graph's; return the file's name where it is another."""
    if model is graph.model:
        return []
    graph.edited(model)
    return [str(graph.path.name)]
