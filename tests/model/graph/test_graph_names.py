"""New names meet none that a graph has, and every node has one of its own."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from written_models import model_of, text_model

from qcompile.model.graph.graph import every_graph
from qcompile.model.graph.graph_names import Aliases, rename_inputs
from qcompile.model.graph.onnx_file import read_graph

BRANCHES = """(float[n] x, bool c) => (float[n] y) {
    x_s = Neg(x)
    y = If (c) <
        then_branch = yes () => (float[n] t) { x_scale = Abs(x_s) t = Exp(x_scale) },
        else_branch = no () => (float[n] e) { e = Add(x_s, x) }
    > }"""


def branches() -> onnx.ModelProto:
    return model_of(BRANCHES)


def names_of(model: onnx.ModelProto) -> list[str]:
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    return [name for node in nodes for name in (*node.input, *node.output)]


@settings(deadline=None, max_examples=50)
@given(
    st.permutations(["x", "x_s", "x_scale", "<0>", "<1>", "y", "x/1", "1"]), st.sampled_from(["_scale", "/1"])
)
def test_names_that_a_library_makes_of_aliases_meet_no_name_of_the_model(names: list[str], end: str) -> None:
    model = branches()
    given_names = dict(zip(("x", "x_s", "x_scale", "y", "t", "e"), names, strict=False))
    for graph in every_graph(model.graph):
        for value in (*graph.input, *graph.output):
            value.name = given_names.get(value.name, value.name)
        for node in graph.node:
            node.output[:] = [given_names.get(name, name) for name in node.output]
    rename_inputs(model.graph, given_names)
    before = model.SerializeToString(deterministic=True)
    aliases = Aliases(model)
    source = model.graph.input[0].name
    assert source == aliases.of[given_names["x"]]
    made = [f"{source}{end}", f"constant{end}", "x_s"]  # a library makes names of its own, too
    model.graph.node.extend(helper.make_node("Relu", [source], [name], name) for name in made)
    assert aliases.text(f"no {source}") == f"no {given_names['x']}"
    aliases.undo(model)
    added = [model.graph.node.pop() for _ in made]
    assert model.SerializeToString(deterministic=True) == before
    assert {node.input[0] for node in added} == {given_names["x"]}
    results = {node.output[0] for node in added}
    assert len(results) == len(made)
    assert not results & {*names_of(model), model.graph.input[1].name}


@pytest.mark.parametrize("name", ["", "layer"])
def test_nodes_that_are_read_have_names_of_their_own(name: str, tmp_path: Path) -> None:
    model = text_model("(float[n] x) => (float[n] y) { a = Neg(x) b = Abs(a) y = Neg(b) }")
    for node in model.graph.node:
        node.name = name
    onnx.save(model, tmp_path / "m.onnx")
    graph = read_graph(tmp_path / "m.onnx")
    assert len({node.name for node in graph.model.graph.node} - {""}) == 3
    assert not graph.is_file
