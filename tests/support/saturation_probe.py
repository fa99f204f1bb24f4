"""Which integer kernels of a runtime add two products in 16 bits, and which products are such a pair.

`probe` asks the runtime that is here: a layer of each kind, activations of 255, and output channels with two
weights of 127 each, at places that only one of the orders pairs. Its answers are what the rules of each
engine hold (`GraphRules.saturates`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from written_models import computed

from qcompile.model.graph_rules import Order, SaturatingKernels

if TYPE_CHECKING:
    import onnx

_Feeds = Mapping[str, NDArray[Any]]


def run_on_openvino(model: onnx.ModelProto, feeds: _Feeds, **settings: Any) -> dict[str, NDArray[Any]]:
    """Return the outputs of a small model, on one thread and in float32 beside its integers."""
    import openvino

    core = openvino.Core()
    settings |= {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    results = compiled(dict(feeds))
    return {value.name: np.array(results[value.name]) for value in model.graph.output}


@functools.cache
def probe(target: str) -> SaturatingKernels:
    """Return which kernels of "onnxruntime" or "openvino" saturate on this processor."""
    if target == "openvino":
        results = run_on_openvino(*_static_layers())
    else:
        results = computed(*_static_layers(), optimize=True) | computed(*_dynamic_layers(), optimize=True)
    return SaturatingKernels(**{name: _order(_sums(values)) for name, values in results.items()})


_PAIRS = ((0, 1), (2, 3), (3, 4), (1, 4))
"""Where each output channel has its two weights, of three channels in and two kernel positions: at a pair of
both orders, of "flat" alone, of "taps" alone, of none."""


def _order(sums: NDArray[Any]) -> Order:
    """The order that the sums of the four output channels show; where none saturates they are equal."""
    both, flat, taps = (bool(value < 0.75 * sums[3]) for value in sums[:3])
    if flat or taps:
        return "flat" if flat else "taps"
    return "flat" if both else ""


def _weights() -> NDArray[np.int8]:
    """int8 [4, 6]: two weights of 127 in each row."""
    weights = np.zeros((len(_PAIRS), 6), np.int8)
    for row, pair in enumerate(_PAIRS):
        weights[row, list(pair)] = 127
    return weights


def _static_layers() -> tuple[onnx.ModelProto, _Feeds]:
    """A layer of each kind between Q/DQ of scale 1; what they read is 255 everywhere."""
    from onnx import helper

    flat = _weights()
    dense = flat.reshape(4, 2, 3).transpose(0, 2, 1)  # [out, channel, position]
    layers: dict[str, tuple[str, NDArray[Any], tuple[int, ...], dict[str, int]]] = {
        "dense": ("Conv", dense, (1, 3, 2), {}),
        "grouped": ("Conv", np.concatenate([dense, dense]), (1, 6, 2), {"group": 2}),
        "depthwise": ("Conv", flat[:, None], (1, 4, 6), {"group": 4}),
        "products": ("MatMul", flat.T, (1, 6), {}),
        "activations": ("MatMul", flat.T, (1, 6), {}),
    }
    nodes: list[onnx.NodeProto] = []
    feeds: dict[str, NDArray[Any]] = {}
    stored: dict[str, Any] = {
        "one": np.float32(1), "step": np.float32(512), "zero": np.uint8(0), "none": np.int8(0),
    }  # fmt: skip

    def rounded(name: str, scale: str, zero_point: str) -> str:
        operands = [scale, zero_point]
        nodes.append(helper.make_node("QuantizeLinear", [name, *operands], [f"{name}/q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}/q", *operands], [f"{name}/dq"]))
        return f"{name}/dq"

    for name, (operator, weights, shape, options) in layers.items():
        x, w = f"{name}/x", f"{name}/w"
        feeds[x] = np.full(shape, 255, np.float32)
        operands = [rounded(x, "one", "zero")]
        if name == "activations":
            feeds[w] = weights.astype(np.float32)
            operands.append(rounded(w, "one", "none"))
        else:
            axis = 1 if operator == "MatMul" else 0
            channels = weights.shape[axis]
            stored |= {w: np.ascontiguousarray(weights), f"{w}/scale": np.ones(channels, np.float32)}
            stored[f"{w}/zero"] = np.zeros(channels, np.int8)
            parts = [w, f"{w}/scale", f"{w}/zero"]
            nodes.append(helper.make_node("DequantizeLinear", parts, [f"{w}/dq"], axis=axis))
            operands.append(f"{w}/dq")
        nodes.append(helper.make_node(operator, operands, [f"{name}/y"], f"{name}/layer", **options))
        rounded(f"{name}/y", "step", "zero")
    return _model(nodes, stored, feeds, {name: f"{name}/y/dq" for name in layers}), feeds


def _dynamic_layers() -> tuple[onnx.ModelProto, _Feeds]:
    """MatMulInteger, and an LSTM whose cell gates hold the weights; small sums keep its tanh straight."""
    from onnx import helper

    flat = _weights()
    gates = np.zeros((1, 6, 4, 4), np.int8)
    gates[0, :, 3] = flat.T  # ONNX's order of gates: input, output, forget, cell
    stored = {
        "weights": np.ascontiguousarray(flat.T), "zero": np.uint8(0), "none": np.zeros(1, np.int8),
        "W": gates.reshape(1, 6, 16), "R": np.zeros((1, 4, 16), np.int8),
        "W/scale": np.full(1, 1e-6, np.float32), "R/scale": np.ones(1, np.float32),
    }  # fmt: skip
    operands = ["sequence", "W", "R", "", "", "", "", "", "W/scale", "none", "R/scale", "none"]
    lstm = helper.make_node("DynamicQuantizeLSTM", operands, ["", "recurrent/y"], domain="com.microsoft")
    lstm.attribute.append(helper.make_attribute("hidden_size", 4))
    nodes = [
        helper.make_node("MatMulInteger", ["x", "weights", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["dynamic/y"], to=1),
        lstm,
    ]
    feeds: _Feeds = {"x": np.full((1, 6), 255, np.uint8), "sequence": np.ones((1, 1, 6), np.float32)}
    return _model(nodes, stored, feeds, {"dynamic": "dynamic/y", "recurrent": "recurrent/y"}), feeds


def _model(
    nodes: list[onnx.NodeProto], stored: Mapping[str, Any], feeds: _Feeds, outputs: Mapping[str, str]
) -> onnx.ModelProto:
    """A model whose outputs are named after the kinds of layers."""
    from onnx import helper, numpy_helper

    made = [helper.make_node("Identity", [tensor], [name]) for name, tensor in outputs.items()]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph([*nodes, *made], "probe", inputs, results, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """The sums of the first four output channels; every layer has one position."""
    return values.reshape(-1)[: len(_PAIRS)]
