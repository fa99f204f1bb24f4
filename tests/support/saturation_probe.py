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
from written_models import computed, text_model

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


def _static_layers() -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """A layer of each kind between Q/DQ of scale 1; what they read is 255 everywhere."""
    flat = _weights()
    dense = np.ascontiguousarray(flat.reshape(4, 2, 3).transpose(0, 2, 1))  # [out, channel, position]
    columns = np.ascontiguousarray(flat.T)
    layers: dict[str, tuple[str, NDArray[Any], tuple[int, ...]]] = {
        "dense": ("Conv", dense, (1, 3, 2)),
        "grouped": ("Conv<group = 2>", np.concatenate([dense, dense]), (1, 6, 2)),
        "depthwise": ("Conv<group = 4>", flat[:, None], (1, 4, 6)),
        "products": ("MatMul", columns, (1, 6)),
        "activations": ("MatMul", columns, (1, 6)),
    }
    nodes, feeds = "", dict[str, NDArray[Any]]()
    stored: dict[str, Any] = {
        "one": np.float32(1), "step": np.float32(512), "zero": np.uint8(0), "none": np.int8(0),
    }  # fmt: skip
    for name, (operator, weights, shape) in layers.items():
        x, w, axis = f"{name}_x", f"{name}_w", int(operator == "MatMul")
        feeds[x] = np.full(shape, 255, np.float32)
        if name == "activations":
            feeds[w] = weights.astype(np.float32)
            nodes += f"{w}q = QuantizeLinear({w}, one, none) {w}d = DequantizeLinear({w}q, one, none) "
        else:
            channels = weights.shape[axis]
            stored |= {w: weights, f"{w}s": np.ones(channels, np.float32)}
            stored[f"{w}z"] = np.zeros(channels, np.int8)
            nodes += f"{w}d = DequantizeLinear<axis = {axis}>({w}, {w}s, {w}z) "
        nodes += f"""{x}q = QuantizeLinear({x}, one, zero) {x}d = DequantizeLinear({x}q, one, zero)
            {name}_y = {operator}({x}d, {w}d)
            {name}_q = QuantizeLinear({name}_y, step, zero)
            {name} = DequantizeLinear({name}_q, step, zero) """
    inputs = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in feeds.items())
    text = f"({inputs}) => ({', '.join(f'float[] {name}' for name in layers)}) {{ {nodes} }}"
    return text_model(text, **{name: np.asarray(array) for name, array in stored.items()}), feeds


def _dynamic_layers() -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """MatMulInteger, and an LSTM whose cell gates hold the weights; small sums keep its tanh straight."""
    flat = _weights()
    gates = np.zeros((1, 6, 4, 4), np.int8)
    gates[0, :, 3] = flat.T  # ONNX's order of gates: input, output, forget, cell
    stored = {
        "weights": np.ascontiguousarray(flat.T), "zero": np.asarray(0, np.uint8),
        "none": np.zeros(1, np.int8), "w": gates.reshape(1, 6, 16), "r": np.zeros((1, 4, 16), np.int8),
        "ws": np.full(1, 1e-6, np.float32), "rs": np.ones(1, np.float32),
    }  # fmt: skip
    text = """(uint8[1,6] x, float[1,1,6] sequence) => (float[] dynamic, float[] recurrent) {
        sums = MatMulInteger(x, weights, zero) dynamic = Cast<to = 1>(sums)
        all, recurrent = com.microsoft.DynamicQuantizeLSTM<hidden_size = 4>
            (sequence, w, r, , , , , , ws, none, rs, none) }"""
    feeds = {"x": np.full((1, 6), 255, np.uint8), "sequence": np.ones((1, 1, 6), np.float32)}
    return text_model(text, also=', "com.microsoft" : 1', **stored), feeds


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """The sums of the first four output channels; every layer has one position."""
    return values.reshape(-1)[: len(_PAIRS)]
