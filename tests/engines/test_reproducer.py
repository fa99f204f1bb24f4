"""`reproduce`: faults of runtimes hidden in larger graphs, cut down to the few nodes that show them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose, helper, numpy_helper
from openvino_faults import CASES, SEEN, arrays, as_written, cured, gathered

from qcompile.engines.base import BuildRequest
from qcompile.engines.reduction import Case, Values, reduce_case, with_plain_names
from qcompile.engines.registry import engine
from qcompile.engines.reproducer import Reproducer, make_reproducer
from qcompile.errors import ModelError
from qcompile.model.graph.onnx_file import copy_model, read_graph, save_onnx
from qcompile.spec.artifacts import BuildSpec


def hidden(model: onnx.ModelProto, before: int = 8, behind: int = 6) -> onnx.ModelProto:
    """A graph between others, which change its values and lose none."""
    model = compose.add_prefix(model, "inner/")
    graph = model.graph
    [value] = graph.input
    names = [f"x{index}" for index in range(before)] + [value.name]
    front = [
        helper.make_node("Neg", [names[index]], [names[index + 1]], name=f"front{index}")
        for index in range(before)
    ]
    value.name = names[0]
    nodes = [*front, *graph.node]
    for output in graph.output:
        for index in range(behind):
            name = f"{output.name}{index}"
            nodes.append(helper.make_node("Mul", [output.name, "half"], [name], name=f"behind/{name}"))
            output.name = name
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    return model


def reproduced(
    model: onnx.ModelProto, folder: Path, target: Any = "openvino", feeds: Any = None, **spec: Any
) -> Reproducer:
    path = folder / "model.onnx"
    save_onnx(model, path)
    quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    asked = BuildSpec(target=target, precision="int8" if quantized else "fp32", threads=1, **spec)
    samples = [{"x0": next(iter(feeds.values()))}] if feeds else ()
    request = BuildRequest(str(path), folder, asked, samples=samples, graph=read_graph(path))
    return make_reproducer(engine(request.spec.target), request, folder / "fault", 300.0)


def alone(folder: Path) -> subprocess.CompletedProcess[str]:
    """The script with the runtime alone: this package cannot be imported."""
    command = [
        sys.executable,
        "-c",
        "import sys; sys.modules['qcompile'] = None; exec(open('run.py').read())",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


FAULTS = {
    "amax": 3, "mean, factors": 4, "gemm, factors": 8, "conv": 9, "conv, reshape, mean": 6,
    "matmul, gather of rows": 5, "gemm, reshape": 5, "count less one": 3, "l1": 1,
}  # fmt: skip
"""Case of `test_openvino_faults` to its number of nodes."""


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_openvino_is_cut_down_to_its_nodes(case: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    if not openvino.__version__.startswith(SEEN):
        pytest.skip(f"the faults were seen with OpenVINO {SEEN}")
    _, model = CASES[case]
    made = reproduced(hidden(model), tmp_path, feeds=arrays(model))
    assert (made.failure.kind, made.nodes_before > 14) == ("wrong", True)
    assert made.nodes <= FAULTS[case]
    shown = alone(made.folder)
    assert shown.returncode == 1
    assert "AssertionError" in shown.stderr
    small = onnx.load(made.folder / "model.onnx")
    with np.load(made.folder / "inputs.npz") as stored, np.load(made.folder / "expected.npz") as expected:
        found = as_written(small, dict(stored))
        for value, array in zip(small.graph.output, found, strict=True):
            np.testing.assert_allclose(array, expected[value.name], rtol=1e-5, atol=1e-6)
    report = json.loads((made.folder / "report.json").read_text())
    assert report["versions"]["openvino"] == SEEN
    assert len(report["nodes"]) == made.nodes


def test_what_ends_the_process_is_cut_down_in_others(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    if not openvino.__version__.startswith(SEEN):
        pytest.skip(f"the fault was seen with OpenVINO {SEEN}")
    model = gathered("MatMul", "n,l,24", (1, 24, 8))
    [scale] = [tensor for tensor in model.graph.initializer if tensor.name == "w_s"]
    scale.CopyFrom(numpy_helper.from_array(np.full(8, 0.01, np.float32), "w_s"))
    made = reproduced(hidden(model), tmp_path, feeds=arrays(model))
    assert (made.failure.kind, made.failure.words) == ("dies", "SIGSEGV")
    assert made.nodes <= 5
    assert alone(made.folder).returncode == -11


def test_a_graph_that_runs_right_has_nothing_to_cut(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    name, model = CASES["amax"]
    with pytest.raises(ModelError, match="no failure on openvino, at their extents and with dynamic shapes"):
        reproduced(hidden(cured(name, model)), tmp_path, feeds=arrays(model))


def test_what_the_builder_refuses_is_cut_down(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    node = helper.make_node("NonZero", ["x"], ["i"])
    cast = helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node, cast], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = reproduced(hidden(model), tmp_path, "tensorrt-rtx", gpus=("sm86",))
    assert made.failure.kind == "refuses"
    assert [node.op_type for node in onnx.load(made.folder / "model.onnx").graph.node] == ["NonZero"]
    assert "NonZero" in alone(made.folder).stderr


KINDS = ("Abs", "Exp", "Relu", "Sigmoid", "Tanh", "Neg", "Softplus", "Erf", "Sin", "Cos")
BEHIND = ("Add", "Mul", "Sub")


def network() -> Case:
    """Sixty nodes of many kinds, and an input of them."""
    nodes, last = [], "x"
    for index in range(30):
        nodes.append(helper.make_node(KINDS[index % 10], [last], [f"a{index}"], name=f"a{index}"))
        nodes.append(helper.make_node(BEHIND[index % 3], [f"a{index}", "w"], [f"b{index}"]))
        last = f"b{index}"
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 12])
    output = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.linspace(0.1, 0.7, 12, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [value], [output], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return Case(model, {"x": np.random.default_rng(0).standard_normal((4, 12)).astype(np.float32)})


def values_of(case: Case) -> Values:
    model = copy_model(case.model)
    del model.graph.output[:]
    for node in model.graph.node:
        model.graph.output.add().name = node.output[0]
    names = [value.name for value in model.graph.output]
    return dict(zip(names, as_written(model, dict(case.feeds)), strict=True))


def follows(first: str, second: str) -> Callable[[Case], bool]:
    """A planted fault: a runtime that fuses the two wrongly."""

    def shows(case: Case) -> bool:
        values_of(case)  # it must be a graph that runs
        makers = {node.output[0]: node.op_type for node in case.model.graph.node}
        return any(
            node.op_type == second and first in (makers.get(name) for name in node.input)
            for node in case.model.graph.node
        )

    return shows


PLANTED = [
    (first, BEHIND[place % 3])
    for index, first in enumerate(KINDS)
    for place in (index, index + 10)
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PLANTED)
def test_a_planted_fault_of_two_nodes_is_cut_down_to_these(first: str, second: str) -> None:
    found = reduce_case(with_plain_names(network()), values_of, follows(first, second))
    assert [node.op_type for node in found.model.graph.node] == [first, second]
    assert max(max(array.shape) for array in found.feeds.values()) == 1


def test_a_fault_of_large_values_keeps_them() -> None:
    def shows(case: Case) -> bool:
        return any(float(np.abs(array).max()) > 2 for array in values_of(case).values())

    found = reduce_case(with_plain_names(network()), values_of, shows)
    assert found.nodes == 1
    assert shows(found)
