"""Passes run in order on a graph in memory; one that fails, or leaves a broken graph, is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from written_models import model_of

from qcompile.building.passes import find_broken_edge, fitting_passes, run_passes
from qcompile.compiler.opset.passes import Pass
from qcompile.core.progress import silent
from qcompile.engines.registry import capabilities_of, engine
from qcompile.errors import InvalidOption, ModelError
from qcompile.model.graph.onnx_file import Graph, read_graph
from qcompile.spec.artifacts import BuildSpec

TEXT = "(float[n,4] x) => (float[n,4] y) { a = Relu(x) b = Neg(a) y = Add(a, b) }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    onnx.save(model_of(TEXT, named=True), tmp_path / "m.onnx")
    return read_graph(tmp_path / "m.onnx")


def rename(graph: Graph) -> list[str]:
    for node in graph.model.graph.node:
        node.name += "_renamed"
    return [node.name for node in graph.model.graph.node]


def nothing(_: Graph) -> Sequence[str]:
    return ()


def test_passes_run_in_order_and_a_graph_that_none_changes_stays_its_file(graph: Graph) -> None:
    skipped = Pass("skipped", rename, needs=lambda graph: graph.opset > 99)
    counts, warnings = run_passes([Pass("looked", nothing), skipped], graph, graph, silent)
    assert (counts, warnings, graph.is_file) == ({"looked": 0, "skipped": 0}, [], True)
    counts, _ = run_passes([Pass("names", rename), Pass("looked", nothing)], graph, graph, silent)
    assert list(counts.items()) == [("names", 3), ("looked", 0)]
    assert not graph.is_file
    assert set(graph.producers["y"].name.split("_")) == {"add2", "renamed"}


def test_a_pass_that_fails_is_named_with_those_in_front_of_it(graph: Graph) -> None:
    def fail(_: Graph) -> list[str]:
        raise KeyError("tensor")

    with pytest.raises(ModelError) as caught:
        run_passes(
            [Pass("names", rename), Pass("looked", nothing), Pass("forms", fail)], graph, graph, silent
        )
    assert caught.value.message == f"{graph.path}: pass 'forms' failed, after names: 'tensor'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_refusal_of_a_pass_stays_what_it_is(graph: Graph) -> None:
    def refuse(_: Graph) -> list[str]:
        raise InvalidOption("no input is named 'z'")

    with pytest.raises(InvalidOption, match=r"^no input is named 'z'$"):
        run_passes([Pass("types", refuse)], graph, graph, silent)


def swap(graph: Graph) -> list[str]:
    nodes = list(graph.model.graph.node)
    del graph.model.graph.node[:]
    graph.model.graph.node.extend(reversed(nodes))
    return ["all"]


def twice(graph: Graph) -> list[str]:
    graph.model.graph.node[1].output[0] = "a"
    return ["neg1"]


def unmade(graph: Graph) -> list[str]:
    del graph.model.graph.node[2]
    return ["add2"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (swap, "Add 'add2' reads 'a' before any node writes it"),
        (twice, "Neg 'neg1' writes 'a', which already exists"),
        (unmade, "no node writes output 'y'"),
    ],
)
def test_a_pass_that_leaves_a_broken_graph_is_named(change: object, problem: str, graph: Graph) -> None:
    assert find_broken_edge(graph) == ""
    with pytest.raises(ModelError, match=rf"pass 'edit' failed: {problem}"):
        run_passes([Pass("edit", change)], graph, graph, silent)  # type: ignore[arg-type]


def test_what_a_pass_promises_is_checked(graph: Graph) -> None:
    old = Pass(
        "opset", nothing, find_problem=lambda graph: f"opset {graph.opset}" if graph.opset > 12 else ""
    )
    with pytest.raises(ModelError, match="pass 'opset' failed: opset 17"):
        run_passes([old], graph, graph, silent)


def test_a_change_that_computes_something_else_never_comes_out(graph: Graph) -> None:
    def negate(graph: Graph) -> list[str]:
        graph.model.graph.node[1].op_type = "Abs"
        return ["neg1"]

    with pytest.raises(ModelError, match="its outputs differ in other operators"):
        run_passes([Pass("abs", negate, comparison_message="compare")], graph, graph, silent)
    assert graph.model.graph.node[1].op_type == "Neg"


def test_the_passes_are_those_of_the_capabilities_and_the_spec(graph: Graph) -> None:
    names = {}
    for target in ("onnxruntime", "openvino"):
        spec = BuildSpec(target=target)  # type: ignore[arg-type]
        runtime = engine(spec.target)
        names[target] = [
            item.name for item in fitting_passes(spec, runtime, capabilities_of(runtime), "fp32", graph, [])
        ]
    lacking = [f"{name} in other operators" for name in ("STFT", "DFT", "Dropout")]
    assert names == {"onnxruntime": [], "openvino": lacking}
