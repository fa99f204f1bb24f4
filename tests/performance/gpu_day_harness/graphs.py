"""The small networks of the day on a GPU, made of numpy and onnx alone, with weights from a fixed seed.

Each is of opset 16 and has a dynamic axis `batch`. Every Conv says its kernel_shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from random_weights import draw

SEED = 15
VOCABULARY = 1000
_OPSET, _IR_VERSION = 16, 8
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


class Graph:
    """A graph under construction: each method adds nodes and returns the name of their result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node and return its output."""
        name = name or f"{operator.lower()}_{len(self.nodes)}"
        output = f"{name}_out"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name, **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        """Add an initializer of a given value."""
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.0) -> str:
        """Add an initializer of deviation `scale`; by default of variance 2 / inputs."""
        scale = scale or float(np.sqrt(2 / np.prod(shape[1:] if len(shape) == 4 else shape[:1])))
        return self.constant(name, draw(name, shape, scale * 3**0.5))

    def conv(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Add a convolution of 3x3 with bias."""
        w = self.weight(f"{name}.weight", outputs, inputs, 3, 3)
        b = self.weight(f"{name}.bias", outputs, scale=0.05)
        return self.add("Conv", x, w, b, name=name, kernel_shape=[3, 3], pads=[1] * 4)

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Add a MatMul and an Add."""
        w = self.weight(f"{name}.weight", inputs, outputs, scale=float(np.sqrt(1 / inputs)))
        b = self.weight(f"{name}.bias", outputs, scale=0.05)
        return self.add("Add", self.add("MatMul", x, w, name=name), b, name=f"{name}_bias")

    def model(self, name: str, inputs: dict[str, Any], output: str, shape: list[Any]) -> onnx.ModelProto:
        """Return the checked model; `inputs` are name to (type, shape)."""
        given = [
            helper.make_tensor_value_info(key, _TYPES[kind], dims) for key, (kind, dims) in inputs.items()
        ]
        self.nodes[-1].output[0] = output
        result = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, name, given, result, self.weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        onnx.checker.check_model(made)
        return made


def group_norm() -> onnx.ModelProto:
    """Convolutions with GroupNorm as PyTorch exports it, by InstanceNormalization: image [batch,3,32,32]."""
    g, groups, width = Graph(), 8, 32
    x = "image"
    for index, inputs in enumerate((3, width)):
        name = f"norm{index}"
        x = g.conv(x, f"conv{index}", inputs, width)
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


def integers() -> onnx.ModelProto:
    """An embedding and two products, fed with int64: tokens [batch,16] to y [batch,16]."""
    g = Graph()
    x = g.add("Gather", g.weight("embedding", VOCABULARY, 32, scale=1.0), "tokens")
    x = g.add("Relu", g.linear(x, "first", 32, 64))
    x = g.linear(x, "second", 64, 16)
    g.add("ReduceMean", x, axes=[1], keepdims=0)
    return g.model("integers", {"tokens": ("int64", ["batch", 16])}, "y", ["batch", 16])


def shaped(kind: str) -> onnx.ModelProto:
    """A resize to the two values of a shape tensor: x [batch,3,8,8] and size [2] to y [batch,3,h,w]."""
    g = Graph()
    x = g.conv("x", "conv", 3, 3)
    size = g.add("Cast", "size", to=TensorProto.INT64)
    front = g.add(
        "Slice", g.add("Shape", x), g.constant("first", np.array([0])), g.constant("last", np.array([2]))
    )
    g.add("Resize", x, "", "", g.add("Concat", front, size, axis=0), mode="nearest",
          coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    inputs = {"x": ("float32", ["batch", 3, 8, 8]), "size": (kind, [2])}
    return g.model("shaped", inputs, "y", ["batch", 3, "height", "width"])


def residual(*, scale: float = 1.0) -> onnx.ModelProto:
    """Two convolutions with a residual add, pooling and a Gemm: x [batch,16,16,16] to y [batch,10].

    `scale` is on all weights: another training of the same network, for a refit.
    """
    g = Graph()
    first = g.add("Relu", g.conv("x", "conv1", 16, 16))
    x = g.add("Relu", g.add("Add", g.conv(first, "conv2", 16, 16), first, name="add"))
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    g.add("Gemm", x, g.weight("head.weight", 16, 10), g.weight("head.bias", 10, scale=0.1), name="head")
    for tensor in g.weights:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(scale), tensor.name)
        )
    return g.model("residual", {"x": ("float32", ["batch", 16, 16, 16])}, "y", ["batch", 10])
