"""Layers of integers with the operands of their sums, for kernels that do not add exactly."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from emulated import run_emulated
from numpy.typing import NDArray
from one_node import one_node
from onnx import helper, numpy_helper
from pairwise_sums import Pairs, convolution_operands, pairwise_sums

Array = NDArray[Any]
_LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_TYPES = {"uint8": 2, "int8": 3}
_CONTRIB = "com.microsoft"
WEIGHTS = {
    "8 bits": (-127, -120, 120, 127),
    "8 bits and -128": (-128, -128, 126, 127),
    "7 bits": (-64, -63, 60, 63),
}
"""Name of a range to the weights that are drawn from it."""

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "dense 3x3": {"channels": 16, "outputs": 32, "kernel": [3, 3], "pads": 1},
    "dense 3x3, deep": {"channels": 64, "outputs": 32, "kernel": [3, 3]},
    "1x1": {"channels": 32, "outputs": 64, "kernel": [1, 1]},
    "1x1, odd": {"channels": 15, "outputs": 9, "kernel": [1, 1]},
    "3 channels": {"channels": 3, "outputs": 16, "kernel": [3, 3], "strides": [2, 2], "pads": 1},
    "7x7 of 3 channels": {"channels": 3, "outputs": 16, "kernel": [7, 7], "pads": 3},
    "1-D": {"channels": 8, "outputs": 8, "kernel": [3], "pads": 1},
    "3-D": {"channels": 4, "outputs": 4, "kernel": [3, 3, 3]},
    "grouped": {"channels": 16, "outputs": 16, "kernel": [3, 3], "group": 4, "pads": 1},
    "grouped, odd": {"channels": 6, "outputs": 6, "kernel": [3, 3], "group": 2, "pads": 1},
    "two outputs per channel": {"channels": 8, "outputs": 16, "kernel": [3, 3], "group": 8, "pads": 1},
}
"""Name to arguments of `convolution`."""

DEPTHWISE: dict[str, dict[str, Any]] = {
    "depthwise 3x3": {"channels": 16, "outputs": 16, "kernel": [3, 3], "group": 16, "pads": 1},
    "depthwise 5x5": {"channels": 16, "outputs": 16, "kernel": [5, 5], "group": 16, "pads": 2},
    "depthwise 7x7": {"channels": 16, "outputs": 16, "kernel": [7, 7], "group": 16, "pads": 3},
    "depthwise, odd": {"channels": 7, "outputs": 7, "kernel": [3, 3], "group": 7, "pads": 1},
}
"""Name to arguments of `convolution`, with as many groups as channels and outputs."""

PRODUCTS = ("MatMulInteger", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat")
DYNAMIC = ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM")


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        model: It alone, with its weights.
        feeds: Its inputs.
        rows: Operand of the sums, as stored: [..., m, depth].
        columns: The weights less their zero point: [..., depth, n].
        row_zero: Zero point of rows.
        finish: What makes the output of the sums of (rows - row_zero) @ columns.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    rows: Array
    columns: Array
    row_zero: int
    finish: Callable[[Array], Array]

    def exact(self) -> Array:
        """Return the output of exact sums."""
        return self.finish((self.rows - self.row_zero) @ self.columns)

    def in_pairs(
        self, pairs: Callable[[int], Pairs], narrow: Callable[[Array], Array], *, offset: int = 0
    ) -> Array:
        """Return the output of sums of pairs; a kernel reads `rows - offset`, and corrects its sums."""
        sums = pairwise_sums(self.rows - offset, self.columns, pairs(self.rows.shape[-1]), narrow)
        return self.finish(sums - (self.row_zero - offset) * self.columns.sum(-2, keepdims=True))


Key = TypeVar("Key")


def run_layers(
    processor: str, layers: Mapping[Key, Layer], folder: Path, *, config: dict[str, str] | None = None
) -> dict[Key, tuple[Layer, Array]]:
    """Run layers on an emulated processor; return each with its output."""
    cases = [(layer.model, layer.feeds) for layer in layers.values()]
    results = run_emulated(processor, cases, folder, config=config)
    outputs = [next(iter(result.values())) for result in results]
    return dict(zip(layers, zip(layers.values(), outputs, strict=True), strict=True))


def assert_equal(output: Array, expected: Array, name: str) -> None:
    """Integers and their multiples are equal bit for bit; gates of an LSTM nearly."""
    slack = 1e-6 if "LSTM" in name else 0
    np.testing.assert_allclose(output, expected.reshape(output.shape), rtol=0, atol=slack, err_msg=name)


def activations(random: np.random.Generator, kind: str, *shape: int) -> Array:
    """Return large and small integers of a type; of uint8, many zeros, as after ReLU."""
    values = [0, 0, 250, 255] if kind == "uint8" else [-128, -128, 120, 127]
    return random.choice(values, shape).astype(kind)


def requantized(sums: Array, ratio: Array, zero: Array, kind: str) -> Array:
    """Return `saturate(round(sums * ratio) + zero)`, in float32; ties go to the nearest even."""
    steps = np.rint(sums.astype(np.float32) * np.asarray(ratio, np.float32)).astype(np.float64)
    return np.clip(steps + np.asarray(zero, np.float64), *_LIMITS[kind]).astype(kind)


def _stored(**tensors: Any) -> tuple[onnx.TensorProto, ...]:
    return tuple(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())


def _random(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def convolution(
    x_type: str, w_type: str, weights: str, channels: int, outputs: int, kernel: list[int],
    *,
    group: int = 1, strides: list[int] | None = None, pads: int = 0, x_zero: int = 0,
    channels_last: bool = True,
) -> Layer:  # fmt: skip
    """Return a QLinearConv.

    Args:
        x_type, w_type: Types of input and weights.
        weights: Key of `WEIGHTS`; uint8 weights are those plus 128.
        channels, outputs, kernel, group, strides: Attributes of Conv.
        pads: On each side.
        x_zero: Zero point of the input.
        channels_last: Order of the depth of rows and columns.
    """
    random = _random(x_type, w_type, weights, channels, outputs, kernel, group, x_zero)
    axes = len(kernel)
    x = activations(random, x_type, 2, channels, *[max(7, *kernel)] * axes)
    w = random.choice(WEIGHTS[weights], (outputs, channels // group, *kernel))
    w_zero = 128 if w_type == "uint8" else 0
    bias = random.integers(-2000, 2000, outputs).astype(np.int32)
    how: dict[str, Any] = {"strides": strides or [1] * axes, "pads": [pads] * 2 * axes, "group": group}
    rows, columns = convolution_operands(x, w, x_zero, **how, channels_last=channels_last)
    # Sums of random signs are about as large as 100 of the 256 steps.
    ratio = np.float32(100 / (255 * 127 * np.sqrt(rows.shape[-1])))
    y_zero = np.array(0 if x_type == "int8" else 128, x_type)
    stored = _stored(
        sx=np.float32(1), zx=np.array(x_zero, x_type), w=(w + w_zero).astype(w_type),
        sw=np.full(outputs, ratio), zw=np.full(outputs, w_zero, w_type), sy=np.float32(1), zy=y_zero, b=bias,
    )  # fmt: skip
    kind = _TYPES[x_type]
    model = one_node("QLinearConv", {"x": kind}, {"y": kind}, stored=stored, **how)
    places = [
        (size + 2 * pads - k) // s + 1 for size, k, s in zip(x.shape[2:], kernel, how["strides"], strict=True)
    ]

    def finish(sums: Array) -> Array:
        by_channel = sums.swapaxes(2, 3).reshape(len(x), outputs, *places)
        return requantized(by_channel + bias.reshape(-1, *[1] * axes), ratio, y_zero, x_type)

    return Layer(model, {"x": x}, rows, columns, x_zero, finish)


def product(
    operator: str, a_type: str, b_type: str, weights: str, *,
    rows: int, depth: int = 70, stored: bool = True, a_zero: int = 0,
) -> Layer:  # fmt: skip
    """Return one of `PRODUCTS`, of [rows, depth] by [depth, 34]."""
    random = _random(operator, a_type, b_type, weights, rows, depth)
    a = activations(random, a_type, rows, depth)
    weight = random.choice(WEIGHTS[weights], (depth, 34))
    b_zero = 128 if b_type == "uint8" else 0
    b = (weight + b_zero).astype(b_type)
    zeros = {"za": np.array(a_zero, a_type), "zb": np.array(b_zero, b_type)}
    unit, ratio = np.float32(1), np.float32(1 / 4000)
    y_zero = np.array(0 if a_type == "int8" else 128, a_type)
    kind, domain = _TYPES[a_type], _CONTRIB if operator in ("QGemm", "MatMulIntegerToFloat") else ""
    output = {"MatMulInteger": 6, "MatMulIntegerToFloat": 1}.get(operator, kind)

    def finish(sums: Array) -> Array:
        return requantized(sums, ratio, y_zero, a_type) if output == kind else sums

    match operator:
        case "MatMulInteger":
            tensors = {"b": b, **zeros}
        case "MatMulIntegerToFloat":
            tensors = {"b": b, "sa": unit, "sb": unit, **zeros}
        case _:
            bias = {"c": np.zeros(34, np.int32)} if operator == "QGemm" else {}
            tensors = {"sa": unit, "za": zeros["za"], "b": b, "sb": ratio, "zb": zeros["zb"], **bias}
            tensors |= {"sy": unit, "zy": y_zero}
    model = one_node(operator, {"a": kind}, {"y": output}, domain=domain, stored=_stored(**tensors))
    feeds = {"a": a}
    if not stored:
        del model.graph.initializer[list(tensors).index("b")]
        model.graph.input.append(helper.make_tensor_value_info("b", _TYPES[b_type], None))
        feeds["b"] = b
    return Layer(model, feeds, a.astype(np.int64), weight, a_zero, finish)


def dynamic(operator: str, weights: str, *, rows: int, depth: int = 70) -> Layer:
    """Return a DynamicQuantizeMatMul, or one step of a DynamicQuantizeLSTM that starts from zeros.

    The inputs are 0 to 255, so they are quantized to themselves.
    """
    random = _random(operator, weights, rows, depth)
    a = activations(random, "uint8", rows, depth)
    a[:, :2] = 0, 255
    weight = random.choice(WEIGHTS[weights], (depth, 32))
    b, scale = weight.astype(np.int8), np.float32(1 if operator == "DynamicQuantizeMatMul" else 1e-5)
    if operator == "DynamicQuantizeMatMul":
        stored = _stored(b=b, sb=scale, zb=np.int8(0))
        model = one_node(operator, {"a": 1}, {"y": 1}, domain=_CONTRIB, stored=stored)
        return Layer(model, {"a": a.astype(np.float32)}, a.astype(np.int64), weight, 0, lambda sums: sums)
    stored = _stored(
        w=b[None], r=np.zeros((1, 8, 32), np.int8), sw=scale[None], zw=np.zeros(1, np.int8),
        sr=np.ones(1, np.float32), zr=np.zeros(1, np.int8),
    )  # fmt: skip
    model = one_node(operator, {"a": 1}, {"y": 1}, domain=_CONTRIB, stored=stored, hidden_size=8)
    # No bias, lengths, initial states or peepholes.
    model.graph.node[0].input[3:3] = [""] * 5

    def finish(sums: Array) -> Array:
        gate_i, gate_o, _, cell = np.split(sums * float(scale), 4, axis=1)
        return np.asarray(_sigmoid(gate_o) * np.tanh(_sigmoid(gate_i) * np.tanh(cell)))

    return Layer(model, {"a": a.astype(np.float32)[None]}, a.astype(np.int64), weight, 0, finish)


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def qdq(operator: str, x_type: str, weights: str) -> Layer:
    """Return a Conv of 16 channels or a MatMul between QuantizeLinear and DequantizeLinear."""
    random = _random(operator, x_type, weights)
    # As after ReLU: the type's lowest value is the zero point.
    steps = random.choice([0, 0, 250, 255], (2, 16, 7, 7) if operator == "Conv" else (9, 70))
    w = random.choice(WEIGHTS[weights], (8, 16, 3, 3) if operator == "Conv" else (70, 34))
    if operator == "Conv":
        rows, columns = convolution_operands(steps, w, 0, strides=[1, 1], pads=[0] * 4, group=1)
    else:
        rows, columns = steps, w
    x_zero = np.array(np.iinfo(x_type).min, x_type)
    y_zero = np.array(0 if x_type == "int8" else 128, x_type)
    scales = {"sx": np.float32(1 / 256), "sw": np.float32(1 / 128), "sy": np.float32(1 / 4)}
    stored = _stored(**scales, zx=x_zero, w=w.astype(np.int8), zw=np.int8(0), zy=y_zero)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"]),
        helper.make_node(operator, ["xf", "wf"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "sy", "zy"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "sy", "zy"], ["y"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", steps.shape), ("y", None))
    )
    graph = helper.make_graph(nodes, "qdq", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def finish(sums: Array) -> Array:
        shaped = sums.swapaxes(2, 3).reshape(2, 8, 5, 5) if operator == "Conv" else sums
        y = requantized(shaped, np.float32(2.0**-13), y_zero, x_type)
        return np.asarray((y.astype(np.float32) - np.float32(y_zero)) / 4)

    return Layer(model, {"x": (steps / 256).astype(np.float32)}, rows, columns, 0, finish)
