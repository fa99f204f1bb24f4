"""Random small networks: blocks in any order, of images or of sequences; channels differ much in size."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from quantized_networks import built

_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "Tanh", "")
_UPSAMPLE = 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'


class _Text:
    """Nodes as text, and the shapes of their weights."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def one_of(self, options: tuple[str, ...]) -> str:
        return str(self.random.choice(options))

    def weight(self, *shape: int) -> str:
        name = f"{'w' if len(shape) > 1 else 'b'}{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def node(self, operator: str, *inputs: str, how: str = "", outputs: int = 1) -> str:
        made = [f"t{len(self.nodes)}{'abc'[index]}" for index in range(outputs)]
        settings = f"<{how}>" if how else ""
        self.nodes.append(f"{', '.join(made)} = {operator} {settings} ({', '.join(inputs)})")
        return ", ".join(made)

    def activated(self, x: str) -> str:
        operator = self.one_of(_ACTIVATIONS)
        if operator == "Clip":
            return self.node("Clip", x, "zero", "six")
        return self.node(operator, x) if operator else x


class _Image(_Text):
    """Blocks of convolutions on [n, channels, side, side]."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.channels, self.side = 3, 12

    def conv(self, x: str, outputs: int, size: int, stride: int = 1, group: int = 1) -> str:
        bias = [self.weight(outputs)] if self.chance(0.8) else []
        pads = ",".join([str(size // 2)] * 4)
        how = f"strides = [{stride},{stride}], pads = [{pads}], group = {group}"
        weight = self.weight(outputs, self.channels // group, size, size)
        return self.node("Conv", x, weight, *bias, how=how)

    def block(self, x: str) -> str:
        kind = self.one_of(("plain", "plain", "depthwise", "grouped", "residual", "excited", "pool", "up",
                            "transposed", "joined", "split", "norm"))  # fmt: skip
        if kind == "plain":
            outputs, stride = int(self.random.integers(1, 5)) * 2, 1 + (self.side > 4 and self.chance(0.3))
            x = self.conv(x, outputs, int(self.random.choice([1, 3])), stride)
            self.channels, self.side = outputs, -(-self.side // stride)
            return self.activated(x)
        if kind == "depthwise":
            return self.activated(self.conv(x, self.channels, 3, group=self.channels))
        if kind == "grouped":
            return self.activated(self.conv(x, self.channels, 3, group=2 if self.channels % 2 == 0 else 1))
        if kind == "residual":
            inner = self.activated(self.conv(x, self.channels, 3))
            return self.activated(self.node("Add", self.conv(inner, self.channels, 1), x))
        if kind == "excited":
            mean = self.node("GlobalAveragePool", x)
            gate = self.node("Sigmoid", self.conv(mean, self.channels, 1))
            return self.node("Mul", x, gate)
        if kind == "pool" and self.side >= 4:
            self.side //= 2
            operator = self.one_of(("MaxPool", "AveragePool"))
            return self.node(operator, x, how="kernel_shape = [2,2], strides = [2,2]")
        if kind == "up" and self.side <= 8:
            self.side *= 2
            mode = self.one_of(("nearest", "linear"))
            return self.node("Resize", x, "", "scales", how=f'mode = "{mode}", {_UPSAMPLE}')
        if kind == "transposed" and self.side <= 8:
            weight, self.channels, self.side = self.weight(self.channels, 6, 2, 2), 6, 2 * self.side
            return self.activated(
                self.node("ConvTranspose", x, weight, self.weight(6), how="strides = [2,2]")
            )
        if kind == "joined":
            one, other = self.activated(self.conv(x, 4, 3)), self.activated(self.conv(x, 2, 1))
            self.channels = 6
            return self.node("Concat", one, other, how="axis = 1")
        if kind == "split" and self.channels % 2 == 0:
            parts = self.node("Split", x, how="axis = 1, num_outputs = 2", outputs=2)
            self.channels //= 2
            return self.node(self.one_of(("Mul", "Add")), *parts.split(", "))
        return self.activated(x)

    def text(self) -> tuple[str, str]:
        x = self.activated(self.conv("x", 4, 3))
        self.channels = 4
        for _ in range(self.random.integers(1, 6)):
            x = self.block(x)
        if self.chance():
            flat = self.node("Flatten", self.node("GlobalAveragePool", x))
            operands = [flat, self.weight(5, self.channels), self.weight(5)]
            self.nodes.append(f"y = Gemm <transB = 1> ({', '.join(operands)})")
            return "(float[n,3,12,12] x)", "(float[n,5] y)"
        last = self.weight(3, self.channels, 1, 1)
        self.nodes.append(f"y = Conv ({x}, {last})")
        return "(float[n,3,12,12] x)", "(float[n,c,h,w] y)"


class _Sequence(_Text):
    """Blocks of products on [n, length, 16]."""

    def linear(self, x: str, inputs: int = 16, outputs: int = 16) -> str:
        made = self.node("MatMul", x, self.weight(inputs, outputs))
        return self.node("Add", made, self.weight(outputs)) if self.chance(0.8) else made

    def heads(self, x: str, order: str) -> str:
        return self.node("Transpose", self.node("Reshape", self.linear(x), "heads"), how=f"perm = [{order}]")

    def block(self, x: str) -> str:
        kind = self.one_of(("linear", "wide", "attention", "norm", "gated"))
        if kind == "linear":
            return self.node(self.one_of(("Tanh", "Relu", "Gelu", "Sigmoid")), self.linear(x))
        if kind == "wide":
            wide = self.node(self.one_of(("Gelu", "Relu")), self.linear(x, 16, 32))
            return self.node("Add", x, self.linear(wide, 32, 16))
        if kind == "attention":
            q, k, v = self.heads(x, "0,2,1,3"), self.heads(x, "0,2,3,1"), self.heads(x, "0,2,1,3")
            scores = self.node(
                "Softmax", self.node("Mul", self.node("MatMul", q, k), "half"), how="axis = -1"
            )
            mixed = self.node("Transpose", self.node("MatMul", scores, v), how="perm = [0,2,1,3]")
            return self.node("Add", x, self.linear(self.node("Reshape", mixed, "whole")))
        if kind == "gated":
            return self.node("Mul", self.linear(x), self.node("Sigmoid", self.linear(x)))
        gamma = self.weight(16)
        self.shapes[f"gamma{gamma}"] = self.shapes.pop(gamma)
        return self.node("LayerNormalization", x, f"gamma{gamma}", self.weight(16), how="axis = -1")

    def text(self) -> tuple[str, str]:
        x = "x"
        for _ in range(self.random.integers(1, 5)):
            x = self.block(x)
        self.nodes.append(f"y = MatMul ({x}, {self.weight(16, 6)})")
        return "(float[n,length,16] x)", "(float[n,length,6] y)"


def random_network(seed: int) -> onnx.ModelProto:
    """Return a network of images (2 of 3 seeds) or sequences; the same for the same seed."""
    maker: _Image | _Sequence = _Sequence(seed) if seed % 3 == 2 else _Image(seed)
    inputs, outputs = maker.text()
    model = built(f"{inputs} => {outputs}", " ".join(maker.nodes), maker.shapes, seed)
    if seed % 5 == 4:
        _make_extreme(model, maker.random)
    return model


def _make_extreme(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Some channels become tiny, zero or large, and some biases huge beside their weights."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w") and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor).copy()
            axis = 0 if len(tensor.dims) == 4 else 1
            channel = int(random.integers(values.shape[axis]))
            factor = np.float32(random.choice([0.0, 1e-12, 1e-6, 20.0]))
            values[(slice(None),) * axis + (channel,)] *= factor
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
