"""Rewrites for any axes, pads and parts: what comes out in opset 17 computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from two_opsets import assert_the_same, operators

from qcompile.compiler.opset.lower import lower_opset
from qcompile.errors import UnsupportedOperator
from qcompile.tensors import Feeds

REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(REDUCTIONS),
    axes=st.none() | st.lists(st.integers(0, 2), max_size=3, unique=True),
    negative=st.booleans(),
    keepdims=st.integers(0, 1),
    noop=st.integers(0, 1),
    as_node=st.booleans(),
    version=st.sampled_from([18, 20, 23, 25]),
)
def test_a_reduction_keeps_its_axes_whatever_form_they_have(
    kind: str, axes: list[int] | None, negative: bool, keepdims: int, noop: int, as_node: bool, version: int
) -> None:
    values = None if axes is None else np.array([a - 3 * negative for a in axes], np.int64)
    nodes, stored, operands = [], [], ["x"]
    if values is not None:
        operands.append("axes")
        if as_node:
            nodes.append(helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(values)))
        else:
            stored.append(numpy_helper.from_array(values, "axes"))
    reduce = helper.make_node(
        f"Reduce{kind}", operands, ["y"], "reduce", keepdims=keepdims, noop_with_empty_axes=noop
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])
    reduced = 0 if noop and not axes else len(axes or (0, 1, 2))
    rank = 3 if keepdims else 3 - reduced
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    graph = helper.make_graph([*nodes, reduce], "g", [x], [y], stored)
    before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    feeds: Feeds = {"x": np.random.default_rng(0).uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)}
    if noop and not axes and kind in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
        with pytest.raises(UnsupportedOperator, match="noop_with_empty_axes"):
            lower_opset(before, 17)
        return
    after = assert_the_same(before, 17, feeds)
    lowered = next((node for node in after.graph.node if node.op_type.startswith("Reduce")), None)
    if kind != "Sum" and lowered is not None:
        assert len(lowered.input) == 1
        given = {attribute.name: list(attribute.ints) for attribute in lowered.attribute}
        assert given.get("axes", []) == ([] if values is None else values.tolist())


@settings(max_examples=40, deadline=None)
@given(
    axes=st.lists(st.integers(-3, 2), min_size=1, max_size=3, unique_by=lambda axis: axis % 3),
    pads=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    mode=st.sampled_from(["constant", "edge", "reflect"]),
    stored=st.booleans(),
)
def test_pads_of_some_axes_are_those_of_all(
    axes: list[int], pads: list[int], mode: str, stored: bool
) -> None:
    given = np.array(pads[: len(axes)] + pads[-len(axes) :], np.int64)
    tensors = [numpy_helper.from_array(np.array(axes, np.int64), "axes")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4, 5])]
    if stored:
        tensors.append(numpy_helper.from_array(given, "pads"))
    else:
        inputs.append(helper.make_tensor_value_info("pads", TensorProto.INT64, [len(given)]))
    node = helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"], "pad", mode=mode)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph([node], "g", inputs, [y], tensors)
    before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feeds: Feeds = {"x": np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)}
    assert_the_same(before, 17, feeds if stored else feeds | {"pads": given})


@settings(max_examples=40, deadline=None)
@given(extent=st.integers(1, 12), count=st.integers(1, 4), known=st.booleans(), axis=st.sampled_from([0, -2]))
def test_parts_are_as_large_as_they_were(extent: int, count: int, known: bool, axis: int) -> None:
    assume(-(-extent // count) * (count - 1) < extent)  # ONNX Runtime makes no empty part
    names = [f"y{index}" for index in range(count)]
    node = helper.make_node("Split", ["x"], names, "split", num_outputs=count, axis=axis)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [extent if known else "n", 2])
    ys = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2]) for name in names]
    graph = helper.make_graph([node], "g", [x], ys)
    before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    after = assert_the_same(before, 17, {"x": np.arange(2.0 * extent, dtype=np.float32).reshape(extent, 2)})
    assert ("Shape" in operators(after)) is not known
