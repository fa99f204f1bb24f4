"""Small networks for tests of arithmetic, as ONNX text; weights are random, and channels differ in size."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

_IMAGE = "(float[n,3,12,12] x)"
_PAD = "pads = [1,1,1,1]"
_OPSET = 20

NETWORKS: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "residual": (
        f"{_IMAGE} => (float[n,5] y)",
        f"""c0 = Conv <{_PAD}> (x, w0, b0) r0 = Relu (c0)
        c1 = Conv <{_PAD}> (r0, w1, b1) a = Add (c1, r0) r1 = Relu (a)
        p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r1)
        c2 = Conv (p, w2, b2) r2 = Clip (c2, zero, six)
        g = GlobalAveragePool (r2) f = Flatten (g) y = Gemm <transB = 1> (f, w3, b3)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,), "w2": (6, 8, 3, 3), "b2": (6,),
         "w3": (5, 6), "b3": (5,)},
    ),
    "depthwise": (
        f"{_IMAGE} => (float[n,6,6,6] y)",
        f"""c0 = Conv <strides = [2,2], {_PAD}> (x, w0, b0) r0 = Clip (c0, zero, six)
        c1 = Conv <group = 8, {_PAD}> (r0, w1, b1) r1 = HardSwish (c1) y = Conv (r1, w2, b2)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 1, 3, 3), "b1": (8,), "w2": (6, 8, 1, 1), "b2": (6,)},
    ),
    "grouped": (
        f"{_IMAGE} => (float[n,8,6,6] y)",
        f"""c0 = Conv <{_PAD}> (x, w0, b0) r0 = LeakyRelu <alpha = 0.1> (c0)
        c1 = Conv <group = 4, {_PAD}, dilations = [1,1]> (r0, w1, b1) r1 = Relu (c1)
        p = AveragePool <kernel_shape = [2,2], strides = [2,2]> (r1) y = Conv <group = 2> (p, w2)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 2, 3, 3), "b1": (8,), "w2": (8, 4, 1, 1)},
    ),
    "transposed": (
        f"{_IMAGE} => (float[n,3,12,12] y)",
        f"""c0 = Conv <strides = [2,2], {_PAD}> (x, w0, b0) r0 = Relu (c0)
        t = ConvTranspose <strides = [2,2]> (r0, w1, b1) r1 = Relu (t) y = Conv <{_PAD}> (r1, w2, b2)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 6, 2, 2), "b1": (6,), "w2": (3, 6, 3, 3), "b2": (3,)},
    ),
    "transformer": (
        "(float[n,length,16] x) => (float[n,length,16] y)",
        """q0 = MatMul (x, w0) q1 = Add (q0, b0) k0 = MatMul (x, w1) k1 = Add (k0, b1) v0 = MatMul (x, w2)
        v1 = Add (v0, b2) qr = Reshape (q1, heads) kr = Reshape (k1, heads) vr = Reshape (v1, heads)
        q = Transpose <perm = [0,2,1,3]> (qr) k = Transpose <perm = [0,2,3,1]> (kr)
        v = Transpose <perm = [0,2,1,3]> (vr) s0 = MatMul (q, k) s1 = Mul (s0, half)
        s = Softmax <axis = -1> (s1) m0 = MatMul (s, v) m1 = Transpose <perm = [0,2,1,3]> (m0)
        m2 = Reshape (m1, whole)
        o0 = MatMul (m2, w3) o = Add (o0, b3) h0 = Add (x, o)
        h = LayerNormalization <axis = -1> (h0, gamma0, beta0)
        f0 = MatMul (h, w4) f1 = Add (f0, b4) f = Gelu (f1) f2 = MatMul (f, w5) f3 = Add (f2, b5)
        y0 = Add (h, f3) y = LayerNormalization <axis = -1> (y0, gamma1, beta1)""",
        {**{f"w{i}": (16, 16) for i in range(4)}, **{f"b{i}": (16,) for i in range(4)}, "w4": (16, 32),
         "b4": (32,), "w5": (32, 16), "b5": (16,),
         "gamma0": (16,), "gamma1": (16,), "beta0": (16,), "beta1": (16,)},
    ),
    "lstm": (
        "(float[7,n,10] x) => (float[7,n,4] y)",
        """h0, h1, h2 = LSTM <hidden_size = 12, direction = "bidirectional"> (x, w0, r0, b0)
        t = Transpose <perm = [0,2,1,3]> (h0) f = Reshape (t, whole) m = MatMul (f, w1) y = Add (m, b1)""",
        {"w0": (2, 48, 10), "r0": (2, 48, 12), "b0": (2, 96), "w1": (24, 4), "b1": (4,)},
    ),
    "gru": (
        "(float[7,n,10] x) => (float[7,n,4] y)",
        """h0, h1 = GRU <hidden_size = 12, linear_before_reset = 1> (x, w0, r0, b0) f = Squeeze (h0, one)
        m = MatMul (f, w1) a = Add (m, b1) r = Relu (a) y = MatMul (r, w2)""",
        {"w0": (1, 36, 10), "r0": (1, 36, 12), "b0": (1, 72), "w1": (12, 8), "b1": (8,), "w2": (8, 4)},
    ),
    "unet": (
        f"{_IMAGE} => (float[n,4,12,12] y)",
        f"""c0 = Conv <{_PAD}> (x, w0, b0) r0 = Relu (c0)
        p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r0) c1 = Conv <{_PAD}> (p, w1, b1) r1 = Relu (c1)
        u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (r1, , scales)
        j = Concat <axis = 1> (u, r0) c2 = Conv <{_PAD}> (j, w2, b2) r2 = Relu (c2)
        s0, s1 = Split <axis = 1, num_outputs = 2> (r2) m = Mul (s0, s1) y = Conv (m, w3, b3)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,), "w2": (8, 16, 3, 3), "b2": (8,),
         "w3": (4, 4, 1, 1), "b3": (4,)},
    ),
    "excited": (
        f"{_IMAGE} => (float[n,6,12,12] y)",
        f"""c0 = Conv <{_PAD}> (x, w0, b0) e0 = Sigmoid (c0) r0 = Mul (c0, e0) g = GlobalAveragePool (r0)
        c1 = Conv (g, w1, b1) r1 = Relu (c1) c2 = Conv (r1, w2, b2) s = Sigmoid (c2) m = Mul (r0, s)
        y = Conv (m, w3, b3)""",
        {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (4, 8, 1, 1), "b1": (4,), "w2": (8, 4, 1, 1), "b2": (8,),
         "w3": (6, 8, 1, 1), "b3": (6,)},
    ),
    "shared": (
        "(float[n,16] x, float[n,16] z) => (float[n,6] y)",
        """a0 = MatMul (x, w0) a1 = Add (a0, b0) a = Tanh (a1)
        d0 = MatMul (z, w0) d1 = Add (d0, b0) d = Tanh (d1) e = Sub (a, d) e2 = Mul (e, e)
        y = Gemm (e2, w1, b1)""",
        {"w0": (16, 16), "b0": (16,), "w1": (16, 6), "b1": (6,)},
    ),
}  # fmt: skip
"""Name to signature, nodes, and shapes of weights."""

_STORED = {
    "zero": np.float32(0),
    "six": np.float32(1.5),
    "half": np.float32(0.5),
    "heads": np.array([0, -1, 2, 8], np.int64),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "one": np.array([1], np.int64),
}


def network(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network with named nodes."""
    signature, nodes, shapes = NETWORKS[name]
    return built(signature, nodes, shapes, seed, whole=24 if name == "lstm" else 16)


def built(
    signature: str, nodes: str, shapes: dict[str, tuple[int, ...]], seed: int, *, whole: int = 16
) -> onnx.ModelProto:
    """Return a model of a text, its weights drawn from a seed."""
    text = f'<ir_version: 10, opset_import: ["" : {_OPSET}]> g {signature} {{ {nodes} }}'
    model = parser.parse_model(re.sub(r"\s+", " ", text))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    random = np.random.default_rng(seed)
    model.graph.initializer.extend(
        numpy_helper.from_array(_weight(random, weight, shape), weight) for weight, shape in shapes.items()
    )
    read = {name for node in model.graph.node for name in node.input}
    stored = {**_STORED, "whole": np.array([0, -1, whole], np.int64)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), key) for key, value in stored.items() if key in read
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if len(shape) == 1:
        return (random.standard_normal(shape) * 0.1 + name.startswith("gamma")).astype(np.float32)
    channels = (shape[0], *[1] * (len(shape) - 1)) if len(shape) > 2 else (1, shape[-1])
    size = np.exp(random.uniform(-1, 1, channels))  # channels have scales of their own
    return (random.standard_normal(shape) * size / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def samples(model: onnx.ModelProto, count: int, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Return random input, so many of what is free first, and 9 of what is free next."""
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        free = iter((count, 9))
        shape = [dim.dim_value or next(free) for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    return feeds


def saved(model: onnx.ModelProto, folder: Path) -> tuple[Path, Path]:
    """Write a model and a folder of samples; return both paths."""
    path, data = folder / "m.onnx", folder / "data"
    onnx.save(model, path)
    data.mkdir(exist_ok=True)
    for index in range(4):
        np.savez(data / f"{index}.npz", **samples(model, 2, seed=index))  # type: ignore[arg-type]
    return path, data
