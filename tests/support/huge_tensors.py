"""Graphs of a few bytes that make tensors of many values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Made = tuple[list[onnx.NodeProto], dict[str, np.ndarray]]


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _constant_of_shape(n: int) -> Made:
    return [helper.make_node("ConstantOfShape", ["n"], ["t"], "make")], {"n": _ints(n)}


def _computed(n: int) -> Made:
    """The shape is the product of two constants."""
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["n"], "mul"),
        helper.make_node("ConstantOfShape", ["n"], ["t"], "make"),
    ]
    return nodes, {"a": _ints(n // 4), "b": _ints(4)}


def _expand(n: int) -> Made:
    return [helper.make_node("Expand", ["one", "n"], ["t"], "make")], {
        "one": np.ones(1, np.float32),
        "n": _ints(n),
    }


def _tile(n: int) -> Made:
    return [helper.make_node("Tile", ["one", "n"], ["t"], "make")], {
        "one": np.ones(1, np.float32),
        "n": _ints(n),
    }


def _range(n: int) -> Made:
    scalars = {"from": np.float32(0), "to": np.float32(n), "step": np.float32(1)}
    return [helper.make_node("Range", list(scalars), ["t"], "make")], {
        k: np.array(v) for k, v in scalars.items()
    }


def _pad(n: int) -> Made:
    return [helper.make_node("Pad", ["one", "n"], ["t"], "make")], {
        "one": np.ones(1, np.float32),
        "n": _ints(0, n - 1),
    }


def _resize(n: int) -> Made:
    node = helper.make_node("Resize", ["one", "", "", "n"], ["t"], "make", mode="nearest")
    return [node], {"one": np.ones((1, 1, 1, 1), np.float32), "n": _ints(1, 1, 1, n)}


def _one_hot(n: int) -> Made:
    node = helper.make_node("OneHot", ["index", "n", "off_on"], ["t"], "make")
    return [node], {"index": _ints(0), "n": _ints(n), "off_on": np.array([0, 1], np.float32)}


def _random(n: int) -> Made:
    return [helper.make_node("RandomNormal", [], ["t"], "make", shape=[n])], {}


MAKERS: dict[str, Callable[[int], Made]] = {
    "ConstantOfShape": _constant_of_shape,
    "Mul": _computed,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Pad": _pad,
    "Resize": _resize,
    "OneHot": _one_hot,
    "RandomNormal": _random,
}


def huge(maker: str, values: int) -> onnx.ModelProto:
    """x [2] to y [2] = relu(x w + mean of `values` floats that a node of this kind makes)."""
    nodes, stored = MAKERS[maker](values)
    return _finished(nodes, stored)


def chain(count: int, values: int) -> onnx.ModelProto:
    """As `huge`, of `count` constants of `values` floats each."""
    names = [f"t{number}" for number in range(count)]
    nodes = [helper.make_node("ConstantOfShape", ["n"], [name], f"make_{name}") for name in names]
    nodes.append(helper.make_node("Sum", names, ["t"], "sum"))
    return _finished(nodes, {"n": _ints(values)})


def looped(doublings: int) -> onnx.ModelProto:
    """As `huge`, of a tensor that a Loop doubles so many times: shape inference cannot know."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Concat", ["held", "held"], ["twice"], axis=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("held", TensorProto.FLOAT, [None]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, [None]),
        ],
    )
    nodes = [helper.make_node("Loop", ["count", "", "flat"], ["t"], "loop", body=body)]
    return _finished(nodes, {"count": np.array(doublings, np.int64)}, of_input=True)


def _finished(
    nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray], *, of_input: bool = False
) -> onnx.ModelProto:
    weights = {"w": np.eye(2, dtype=np.float32)} | stored
    if of_input:
        weights["flat_shape"] = _ints(-1)
        nodes = [helper.make_node("Reshape", ["x", "flat_shape"], ["flat"]), *nodes]
    nodes = [
        *nodes,
        helper.make_node("ReduceMean", ["t"], ["mean"], "mean", keepdims=0),
        helper.make_node("MatMul", ["x", "w"], ["xw"], "matmul"),
        helper.make_node("Add", ["xw", "mean"], ["sum"], "add"),
        helper.make_node("Relu", ["sum"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "huge",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
