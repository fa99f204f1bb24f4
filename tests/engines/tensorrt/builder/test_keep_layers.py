"""Named layers of weak networks: floats are forced, integers left alone, and what is not there is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx
from onnx import helper, numpy_helper
from simulated_machine import Machine

from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.network import _layers_by_node, parse
from qcompile.engines.tensorrt.log import make_log
from qcompile.errors import InvalidOption

OnMachine = Callable[..., Machine]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """h + float(int(h) + 1) of a product h, times w; with a Constant that the parser folds away."""
    node = helper.make_node
    nodes = [
        node(
            "Constant", [], ["shape"], "head/constant", value=numpy_helper.from_array(np.array([-1, 8]), "")
        ),
        node("MatMul", ["x", "w"], ["h"], "head/product"),
        node("Cast", ["h"], ["i"], "head/to_int", to=onnx.TensorProto.INT32),
        node("Add", ["i", "one"], ["j"], "head/integers"),
        node("Cast", ["j"], ["f"], "head/to_float", to=onnx.TensorProto.FLOAT),
        node("Add", ["h", "f"], ["s"], "head/sum"),
        node("Reshape", ["s", "shape"], ["r"], "head/reshape"),
        node("MatMul", ["r", "w"], ["y"], "tail"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [2, 8])], [value("y", 1, [2, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"),
         numpy_helper.from_array(np.ones(1, np.int32), "one")],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8), path)
    return path


def forced(here: Machine) -> int:
    """How many layers were given a precision."""
    return sum(call.member == "precision" and call.written for call in here.module.recorded_calls)


def output_types(here: Machine) -> set[str]:
    return {dtype.name for _, dtype in here.told("set_output_type")}


@pytest.mark.parametrize(("version", "options"), [("8.5.3", None), ("10.16", {"typing": "weak"})])
def test_a_glob_forces_what_computes_floats_and_says_what_is_not_there(
    version: str, options: dict[str, Any] | None, machine: OnMachine, model: Path
) -> None:
    here = machine(version)
    manifest = here.build(model, "fp16", layers={"head/*": "fp32"}, options=options).manifest
    assert forced(here) == 4  # the product, the cast to float, the sum and the reshape
    assert output_types(here) == {"FLOAT"}
    assert "1 of 7 named layers are not in the network: head/constant" in manifest.warnings


def test_a_name_that_left_no_layer_is_refused(machine: OnMachine, model: Path) -> None:
    with pytest.raises(InvalidOption, match=r"`layers`: the network has no layer head/constant$"):
        machine("8.5.3").build(model, "fp16", layers={"head/constant": "fp32"})


def test_a_pattern_of_which_nothing_is_left_is_refused(machine: OnMachine, model: Path) -> None:
    with pytest.raises(InvalidOption, match=r"`layers`: the network has no layer head/constant$"):
        machine("8.5.3").build(model, "fp16", layers={"*constant": "fp32"})


def test_a_name_of_integers_forces_nothing(machine: OnMachine, model: Path) -> None:
    here = machine("8.5.3")
    here.build(model, "fp16", layers={"head/integers": "fp32", "head/product": "fp32"})
    assert forced(here) == 1


def test_the_layers_of_a_node_are_found_by_name_number_and_metadata(tmp_path: Path) -> None:
    """As TensorRT-RTX's real parser names them: the first after the node, others with a number behind."""
    node = helper.make_node("Mod", ["x", "d"], ["y"], "rest")
    other = helper.make_node("Shape", ["x"], ["s"], "extent", start=0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, other], "g", [value("x", 6, [4]), value("d", 6, [4])], [value("y", 6, [4]), value("s", 7, [1])]
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    adapter, log = load_adapter("tensorrt-rtx"), make_log(tensorrt_rtx)
    network = tensorrt_rtx.Builder(log.logger).create_network(adapter.network_flags())
    kept = parse(adapter, network, log, path)
    found = _layers_by_node(network, {"rest", "extent", "none"})
    names = {node: [layer.name for layer in layers] for node, layers in found.items()}
    assert names["rest"] == ["rest"]
    assert names["extent"][0] == "extent"
    assert re.fullmatch(r"extent_\d+", names["extent"][1])
    assert set(names) == {"rest", "extent"}
    assert kept
