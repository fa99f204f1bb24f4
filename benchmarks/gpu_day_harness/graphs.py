"""The small networks of the day on a GPU, made of numpy and onnx alone, with weights from a fixed seed.

Each has a dynamic axis `batch`. Every Conv says its kernel_shape, and opset 16 is enough for all but BERT,
whose LayerNormalization is of opset 17; `bert(opset=16)` spells that out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from random_weights import draw

SEED = 15
VOCABULARY, TOKENS = 1000, 128
_IR_VERSION = 8
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


class Graph:
    """A graph under construction: each method adds nodes and returns the name of their result."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def add(self, operator: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> str:
        """Add a node and return its first output."""
        name = name or f"{operator.lower()}_{len(self.nodes)}"
        made = [f"{name}_out" + (f"_{index}" if index else "") for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), made, name, **attributes))
        return made[0]

    def constant(self, name: str, value: Any) -> str:
        """Add an initializer of a given value."""
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.0) -> str:
        """Add an initializer of deviation `scale`; by default of variance 2 / inputs."""
        scale = scale or float(np.sqrt(2 / np.prod(shape[1:] if len(shape) == 4 else shape[:1])))
        return self.constant(name, draw(name, shape, scale * 3**0.5))

    def conv(self, x: str, name: str, inputs: int, outputs: int, kernel: int, **more: Any) -> str:
        """Add a convolution with bias."""
        w = self.weight(f"{name}.weight", outputs, inputs, kernel, kernel)
        b = self.weight(f"{name}.bias", outputs, scale=0.05)
        pads = [kernel // 2] * 4
        return self.add("Conv", x, w, b, name=name, kernel_shape=[kernel, kernel], pads=pads, **more)

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Add a MatMul and an Add."""
        w = self.weight(f"{name}.weight", inputs, outputs, scale=float(np.sqrt(1 / inputs)))
        b = self.weight(f"{name}.bias", outputs, scale=0.05)
        return self.add("Add", self.add("MatMul", x, w, name=name), b, name=f"{name}_bias")

    def layer_norm(self, x: str, name: str, size: int) -> str:
        """Add LayerNormalization over the last axis, spelled out before opset 17."""
        scale = self.constant(f"{name}.scale", 1 + 0.1 * self._normal(size))
        bias = self.constant(f"{name}.bias", 0.1 * self._normal(size))
        if self.opset >= 17:
            return self.add("LayerNormalization", x, scale, bias, name=name, axis=-1, epsilon=1e-5)
        mean = self.add("ReduceMean", x, name=f"{name}_mean", axes=[-1], keepdims=1)
        centred = self.add("Sub", x, mean, name=f"{name}_centred")
        square = self.add("Mul", centred, centred, name=f"{name}_square")
        variance = self.add("ReduceMean", square, name=f"{name}_variance", axes=[-1], keepdims=1)
        epsilon = self.constant(f"{name}.epsilon", np.float32(1e-5))
        deviation = self.add("Sqrt", self.add("Add", variance, epsilon), name=f"{name}_deviation")
        normal = self.add("Div", centred, deviation, name=f"{name}_normal")
        return self.add("Add", self.add("Mul", normal, scale), bias, name=f"{name}_affine")

    def model(self, name: str, inputs: dict[str, Any], output: str, shape: list[Any]) -> onnx.ModelProto:
        """Return the checked model; `inputs` are name to (type, shape)."""
        given = [
            helper.make_tensor_value_info(key, _TYPES[kind], dims) for key, (kind, dims) in inputs.items()
        ]
        self.nodes[-1].output[0] = output
        result = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, name, given, result, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        onnx.checker.check_model(made)
        return made

    def _normal(self, size: int) -> Any:
        return self._random.standard_normal(size).astype(np.float32)


def bert(*, opset: int = 17, layers: int = 2, width: int = 256, heads: int = 4) -> onnx.ModelProto:
    """A small BERT encoder: tokens and mask, int64 [batch,128], to y [batch,128,width]."""
    g = Graph(opset)
    table = g.weight("embedding", VOCABULARY, width, scale=1.0)
    x = g.add("Add", g.add("Gather", table, "tokens"), g.weight("positions", 1, TOKENS, width, scale=0.3))
    x = g.layer_norm(x, "norm", width)
    kept = g.add(
        "Unsqueeze", g.add("Cast", "mask", to=TensorProto.FLOAT), g.constant("axes", np.array([1, 2]))
    )
    hidden = g.add("Sub", g.constant("one", np.float32(1)), kept)
    bias = g.add("Mul", hidden, g.constant("lowest", np.float32(-1e4)))
    for index in range(layers):
        x = _encoder_layer(g, x, bias, f"layer{index}", width, heads)
    shape = ["batch", TOKENS]
    return g.model("bert", {"tokens": ("int64", shape), "mask": ("int64", shape)}, "y", [*shape, width])


def _encoder_layer(g: Graph, x: str, bias: str, name: str, width: int, heads: int) -> str:
    split = g.constant(f"{name}.split", np.array([0, TOKENS, heads, width // heads]))
    whole = g.constant(f"{name}.whole", np.array([0, TOKENS, width]))

    def parts(kind: str, order: list[int]) -> str:
        projected = g.linear(x, f"{name}.{kind}", width, width)
        return g.add("Transpose", g.add("Reshape", projected, split), perm=order)

    query, key = parts("query", [0, 2, 1, 3]), parts("key", [0, 2, 3, 1])
    scale = g.constant(f"{name}.scale", np.float32((width // heads) ** -0.5))
    scores = g.add("Mul", g.add("MatMul", query, key, name=f"{name}.scores"), scale)
    weights = g.add("Softmax", g.add("Add", scores, bias), axis=-1)
    mixed = g.add("MatMul", weights, parts("value", [0, 2, 1, 3]), name=f"{name}.mixed")
    mixed = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
    x = g.layer_norm(g.add("Add", x, g.linear(mixed, f"{name}.out", width, width)), f"{name}.norm1", width)
    inner = g.linear(x, f"{name}.up", width, width * 4)
    half, root = g.constant(f"{name}.half", np.float32(0.5)), g.constant(f"{name}.root", np.float32(2**0.5))
    error = g.add("Add", g.add("Erf", g.add("Div", inner, root)), g.constant(f"{name}.one", np.float32(1)))
    inner = g.add("Mul", g.add("Mul", inner, error), half)
    return g.layer_norm(
        g.add("Add", x, g.linear(inner, f"{name}.down", width * 4, width)), f"{name}.norm2", width
    )


def group_norm(*, opset: int = 16) -> onnx.ModelProto:
    """Convolutions with GroupNorm as PyTorch exports it, by InstanceNormalization: image [batch,3,32,32]."""
    g, groups, width = Graph(opset), 8, 32
    x = "image"
    for index, inputs in enumerate((3, width)):
        name = f"norm{index}"
        x = g.conv(x, f"conv{index}", inputs, width, 3)
        flat = g.add("Reshape", x, g.constant(f"{name}.flat", np.array([0, groups, -1])))
        ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        scale, shift = g.constant(f"{name}.ones", ones), g.constant(f"{name}.zeros", zeros)
        flat = g.add("InstanceNormalization", flat, scale, shift, name=name, epsilon=1e-5)
        x = g.add("Reshape", flat, g.constant(f"{name}.shape", np.array([-1, width, 32, 32])))
        affine = g.weight(f"{name}.weight", width, 1, 1, scale=0.5)
        x = g.add(
            "Relu", g.add("Add", g.add("Mul", x, affine), g.weight(f"{name}.bias", width, 1, 1, scale=0.2))
        )
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    g.add("Gemm", x, g.weight("head.weight", width, 10), g.weight("head.bias", 10, scale=0.1), name="head")
    return g.model("group_norm", {"image": ("float32", ["batch", 3, 32, 32])}, "y", ["batch", 10])


def integers(*, opset: int = 16) -> onnx.ModelProto:
    """An embedding and two products, fed with int64: tokens [batch,16] to y [batch,16]."""
    g = Graph(opset)
    x = g.add("Gather", g.weight("embedding", VOCABULARY, 32, scale=1.0), "tokens")
    x = g.add("Relu", g.linear(x, "first", 32, 64))
    x = g.linear(x, "second", 64, 16)
    g.add("ReduceMean", x, axes=[1], keepdims=0)
    return g.model("integers", {"tokens": ("int64", ["batch", 16])}, "y", ["batch", 16])


def shaped(*, kind: str = "int64", opset: int = 16) -> onnx.ModelProto:
    """A resize to the two values of a shape tensor: x [batch,3,8,8] and size [2] to y [batch,3,h,w]."""
    g = Graph(opset)
    x = g.conv("x", "conv", 3, 3, 3)
    size = g.add("Cast", "size", to=TensorProto.INT64)
    front = g.add(
        "Slice", g.add("Shape", x), g.constant("first", np.array([0])), g.constant("last", np.array([2]))
    )
    g.add("Resize", x, "", "", g.add("Concat", front, size, axis=0), mode="nearest",
          coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    inputs = {"x": ("float32", ["batch", 3, 8, 8]), "size": (kind, [2])}
    return g.model("shaped", inputs, "y", ["batch", 3, "height", "width"])


def residual(*, opset: int = 16, scale: float = 1.0) -> onnx.ModelProto:
    """Two convolutions with a residual add, pooling and a Gemm: x [batch,16,16,16] to y [batch,10].

    Args:
        opset: Of the file.
        scale: On all weights: another training of the same network, for a refit.
    """
    g = Graph(opset)
    first = g.add("Relu", g.conv("x", "conv1", 16, 16, 3))
    x = g.add("Relu", g.add("Add", g.conv(first, "conv2", 16, 16, 3), first, name="add"))
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    g.add("Gemm", x, g.weight("head.weight", 16, 10), g.weight("head.bias", 10, scale=0.1), name="head")
    for tensor in g.weights:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(scale), tensor.name)
        )
    return g.model("residual", {"x": ("float32", ["batch", 16, 16, 16])}, "y", ["batch", 10])
