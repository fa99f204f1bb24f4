"""Graphs that OpenVINO computes wrongly, each in its smallest form, and how to make more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from qcompile.compiler.opset.cures import FAULTY_GRAPHS
from qcompile.model.graph.onnx_file import copy_model

SEEN = "2026.4.1"
Values = NDArray[Any]

IMAGE, SEQUENCE, ROWS = "n,16,h,w", "n,l,16", "n,24"
EXTENTS = {"n": 16, "h": 6, "w": 6, "l": 9, "d": 3}
PAIRS = {"Pair": (0.05, 0), "InputPair": (0.02, 128), "ReducedPair": (0.02, 100)}
"""Q/DQ of uint8 in the graphs below to its scale and zero point."""


def network(
    shape: str, body: str, *outputs: str, int8: Mapping[str, tuple[int, ...]] | None = None, **stored: Any
) -> onnx.ModelProto:
    """A graph in ONNX's text form, in which `q = Pair(t)` is Q/DQ of uint8.

    Args:
        shape: Of x.
        int8: Name of a dequantized weight to the axis of its scales, and its shape.
        stored: Values; a tuple is the shape of normal ones.
    """
    rng, values = np.random.default_rng(0), dict[str, Any]()
    for name, (axis, *extents) in (int8 or {}).items():
        values[f"{name}_q"] = rng.integers(-63, 64, extents).astype(np.int8)
        values[f"{name}_s"] = np.float32(0.002 + 0.004 * rng.random(extents[axis]))
        values[f"{name}_z"] = np.zeros(extents[axis], np.int8)
        body = f"{name} = DequantizeLinear <axis = {axis}> ({name}_q, {name}_s, {name}_z) {body}"
    for name, (scale, zero) in PAIRS.items():
        values |= {f"{name}_s": np.float32(scale), f"{name}_z": np.uint8(zero)}
        pair = f"{name}_s, {name}_z"
        form = rf"\1_q = QuantizeLinear (\2, {pair}) \1 = DequantizeLinear (\1_q, {pair})"
        body = re.sub(rf"(\w+) = {name} \((\w+)\)", form, body)
    for name, value in stored.items():
        values[name] = np.float32(2 * rng.standard_normal(value)) if isinstance(value, tuple) else value
    results = ", ".join(f"float {name}" for name in outputs)
    text = f'<ir_version: 9, opset_import: ["" : 17]> g (float[{shape}] x) => ({results}) {{ {body} }}'
    model = parser.parse_model(text)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{index}"
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in values.items() if name in read
    )
    return model


def arrays(model: onnx.ModelProto) -> dict[str, Values]:
    rng, feeds = np.random.default_rng(1), {}
    for value in model.graph.input:
        dims = [dim.dim_value or EXTENTS[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.standard_normal(dims).astype(np.float32)
    return feeds


def as_written(model: onnx.ModelProto, feeds: dict[str, Values]) -> list[Values]:
    """What ONNX Runtime computes without any optimizer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def amax(operator: str = "ReduceMax", between: str = "", width: int = 16) -> onnx.ModelProto:
    last = "t" if between else "r"
    body = f"r = {operator} <axes = [1], keepdims = 0> (x) {between} p = ReducedPair ({last})"
    return network(
        SEQUENCE, f"{body} y = Gemm <transB = 1> (p, w, b)", "y", int8={"w": (0, 10, width)}, b=(10,),
        one=np.int64([1]), low=np.float32(-6), high=np.float32(6),
    )  # fmt: skip


def by_channel(operator: str, between: str) -> onnx.ModelProto:
    body = f"r = {operator} <axes = [1], keepdims = 0> (x) {between} p = Pair (t)"
    return network(
        SEQUENCE, f"{body} y = Gemm <transB = 1> (p, w, b)", "y", int8={"w": (0, 10, 16)}, b=(10,),
        one=np.int64([1]), k=np.float32(0.3), f=np.float32(0.2 + np.random.default_rng(1).random(16)),
    )  # fmt: skip


def scaled(
    between: str, shape: str = "8,16", first: str = "m = Gemm <transB = 1> (p, w, b)"
) -> onnx.ModelProto:
    body = f"p = InputPair (x) {first} {between} q = Pair (t) y = Gemm <transB = 1> (q, v, d)"
    return network(
        shape, body, "y", int8={"w": (0, 32, 16), "u": (1, 16, 32), "v": (0, 10, 32)}, b=(32,), d=(10,),
        f=np.float32(0.2 + np.random.default_rng(1).random(32)), k=np.float32(0.3),
    )  # fmt: skip


# What the first state of a recurrence is made of: zeros, one for each sample.
STATE = """shape = Shape (x) batch = Slice (shape, zero, one) target = Concat <axis = 0> (batch, width)
    state = Expand (value, target)"""
STORED = {"zero": np.int64([0]), "one": np.int64([1]), "width": np.int64([5]), "value": np.float32([[1.0]])}
CONV = "p = InputPair (x) c = Conv <pads = [1, 1, 1, 1]> (p, w, b)"
KERNEL = {"w": (0, 16, 16, 3, 3)}


def biased(shape: str = IMAGE, groups: int = 1, between: str = "r = Relu (c)") -> onnx.ModelProto:
    """A convolution in front of a quantization, beside a zero state."""
    spatial = shape.count(",") - 1
    pads, kernel = str([1] * 2 * spatial), (0, 16, 16 // groups, *[3] * spatial)
    conv, last = f"Conv <pads = {pads}, group = {groups}>", "r" if between else "c"
    body = f"p = InputPair (x) c = {conv} (p, w, b) {between} q = Pair ({last}) {STATE}"
    return network(shape, body, "q", "state", int8={"w": kernel}, b=(16,), **STORED)


def before_lstm() -> onnx.ModelProto:
    """A recurrent layer without a first state, for which OpenVINO asks for the batch."""
    body = f"""{CONV} r = Relu (c) q = Pair (r) m = ReduceMean <axes = [2], keepdims = 0> (q)
        t = Transpose <perm = [2, 0, 1]> (m) y = LSTM <hidden_size = 4> (t, v, u)"""
    return network(IMAGE, body, "q", "y", int8=KERNEL, b=(16,), v=(1, 16, 16), u=(1, 16, 4))


def read_twice(product: str, shape: str, *kernel: int, behind: str = "", **stored: Any) -> onnx.ModelProto:
    """A product that is read in front of its bias, or of the scale of its weights, and by a quantization."""
    last = "a" if behind else "m"
    body = f"p = InputPair (x) m = {product} (p, w) {behind} q = Pair ({last}) y = Sigmoid (m)"
    return network(shape, body, "q", "y", int8={"w": kernel}, **stored)


def shared(behind: str, **stored: Any) -> onnx.ModelProto:
    """A convolution without bias that is read twice, and quantized nowhere."""
    body = f"p = InputPair (x) m = {CONV_2D} (p, w) {behind}"
    return network(IMAGE, body, "y", int8=KERNEL, **stored)


def reshaped(
    product: str = "Gemm <transB = 1>", kernel: tuple[int, ...] = (0, 8, 24), shape: str = ROWS,
    target: tuple[int, ...] = (-1, 8, 8), pair: str = "InputPair", operands: str = "p, w", **stored: Any,
) -> onnx.ModelProto:  # fmt: skip
    body = f"p = {pair} (x) m = {product} ({operands}) y = Reshape (m, target)"
    return network(shape, body, "y", int8={"w": kernel}, target=np.int64(target), **stored)


def gathered(
    product: str = "Gemm <transB = 1>", shape: str = ROWS, kernel: tuple[int, ...] = (0, 8, 24),
    axis: int = 1, between: str = "", operands: str = "p, w", **stored: Any,
) -> onnx.ModelProto:  # fmt: skip
    last = "t" if between else "m"
    body = f"p = InputPair (x) m = {product} ({operands}) {between} y = Gather <axis = {axis}> ({last}, i)"
    return network(shape, body, "y", int8={"w": kernel}, i=np.int64(0), **stored)


def summed(operator: str) -> onnx.ModelProto:
    return network(SEQUENCE, f"a = Abs (x) y = {operator} <axes = [1], keepdims = 0> (a)", "y")


CONV_2D, CONV_1D = "Conv <pads = [1, 1, 1, 1]>", "Conv <pads = [1, 1]>"
ADD = "a = Add (m, b)"
SCALES = np.float32(0.5 + np.random.default_rng(0).random((1, 16, 1, 1)))
MEAN, JOINED = "r = Reshape (n, j) y = ReduceMean <axes = [2]> (r)", {"j": np.int64([0, 16, -1])}


def counted(behind: str, reduction: str = "", axis: int = 2, shape: str = "n,l,16") -> onnx.ModelProto:
    """Integers are reduced over an axis of three to s, and what is behind makes t of it."""
    integers = {"one": 1, "two": 2, "weights": np.arange(1, 10)}
    stored = {name: np.array(value, np.int64) for name, value in integers.items() if name in behind}
    reduction = reduction or "ReduceSum <keepdims = 0> (i, axis)"
    if "axis)" in reduction:
        stored["axis"] = np.array([axis])
    body = f"a = Abs (x) i = Cast <to = 7> (a) s = {reduction} {behind} y = Cast <to = 1> (t)"
    return network(shape, body, "y", **stored)


CASES: dict[str, tuple[str, onnx.ModelProto]] = {
    "amax": ("quantized-extremum", amax()),
    "amin": ("quantized-extremum", amax("ReduceMin")),
    "amax, relu": ("quantized-extremum", amax(between="t = Relu (r)")),
    "amax, clip": ("quantized-extremum", amax(between="t = Clip (r, low, high)")),
    "amax, bounds": ("quantized-extremum", amax(between="u = Max (r, low) t = Min (u, high)")),
    "amax, concat": (
        "quantized-extremum",
        amax(between="u = ReduceMin <axes = [1], keepdims = 0> (x) t = Concat <axis = 1> (r, u)", width=32),
    ),
    "amax, flatten": ("quantized-extremum", amax(between="u = Unsqueeze (r, one) t = Flatten (u)")),
    "amax, sigmoid": ("quantized-extremum", amax(between="t = Sigmoid (r)")),
    "mean, factors": ("reduced-channels", by_channel("ReduceMean", "t = Mul (r, f)")),
    "norm, offsets": ("reduced-channels", by_channel("ReduceL2", "u = Relu (r) t = Add (u, f)")),
    "mean, factors, axes": (
        "reduced-channels",
        by_channel("ReduceMean", "u = Div (r, f) v = Unsqueeze (u, one) t = Squeeze (v, one)"),
    ),
    "gemm, factors": ("quantized-factors", scaled("r = Relu (m) t = Mul (r, f)")),
    "gemm, factors alone": ("quantized-factors", scaled("t = Mul (m, f)", "4,16")),
    "matmul, factors": (
        "quantized-factors",
        scaled("a = Add (m, b) r = Relu (a) t = Div (r, f)", "6,16", "m = MatMul (p, u)"),
    ),
    "conv": ("merged-bias", biased()),
    "conv without activation": ("merged-bias", biased(between="")),
    "conv of three dimensions": ("merged-bias", biased("n,16,h,w,d")),
    "grouped conv": ("merged-bias", biased(groups=2)),
    "depthwise conv": ("merged-bias", biased(groups=16)),
    "conv before lstm": ("merged-bias", before_lstm()),
    "matmul read twice": ("merged-bias", read_twice("MatMul", "n,16", 1, 16, 16, behind=ADD, b=(16,))),
    "transposed conv read twice": (
        "merged-bias",
        read_twice("ConvTranspose <strides = [2, 2]>", IMAGE, 1, 16, 16, 2, 2, behind=ADD, b=(1, 16, 1, 1)),
    ),
    "conv without bias read twice": ("merged-bias", read_twice(CONV_2D, IMAGE, 0, 16, 16, 3, 3)),
    "conv of one dimension read twice": ("merged-bias", read_twice(CONV_1D, "n,16,l", 0, 16, 16, 3)),
    "scaled conv read twice": (
        "merged-bias", read_twice(CONV_2D, IMAGE, 0, 16, 16, 3, 3, behind="a = Mul (m, f)", f=SCALES),
    ),
    "conv and an add": ("merged-bias", shared("t = Tanh (m) y = Add (m, t)")),
    "conv and its mean": (
        "merged-bias", shared("g = GlobalAveragePool (m) s = Sigmoid (g) y = Mul (m, s)"),
    ),
    "scaled conv and an add": ("merged-bias", shared("a = Mul (m, f) t = Tanh (a) y = Add (a, t)", f=SCALES)),
    "conv, reshape, mean": ("reduced-scale", shared(f"n = Relu (m) {MEAN}", **JOINED)),
    "conv, reshape, maximum": (
        "reduced-scale",
        shared(f"n = MaxPool <kernel_shape = [3, 3]> (m) {MEAN}".replace("Mean", "Max"), **JOINED),
    ),
    "conv, add, factors, reshape, mean": (
        "reduced-scale", shared(f"a = Add (m, x) n = Mul (a, f) {MEAN}", f=SCALES, **JOINED)
    ),
    "conv, sigmoid, factors, reshape, mean": (
        "reduced-scale", shared(f"s = Sigmoid (m) n = Mul (s, f) {MEAN}", f=SCALES, **JOINED)
    ),
    "matmul, gather of rows": ("gathered-scale", gathered("MatMul", "n,l,24", (1, 24, 8))),
    "matmul, gather of one of several": ("gathered-scale", gathered("MatMul", "n,2,l,24", (1, 24, 8))),
    "gemm, gather of a row": ("gathered-scale", gathered(axis=0)),
    "matmul, factor, gather": (
        "gathered-scale", gathered("MatMul", "n,l,24", (1, 24, 8), between="t = Mul (m, k)", k=np.float32(2)),
    ),
    "conv, gather of a sample": ("gathered-scale", gathered("Conv", IMAGE, (0, 8, 16, 1, 1), axis=0)),
    "gemm, reshape": ("moved-scale", reshaped()),
    "matmul, reshape": ("moved-scale", reshaped("MatMul", (1, 24, 8))),
    "gemm, reshape to heads": ("moved-scale", reshaped(target=(-1, 8, 2, 4))),
    "gemm, reshape to a multiple": ("moved-scale", reshaped(target=(-1, 16, 8))),
    "conv, reshape": ("moved-scale", reshaped("Conv", (0, 8, 24, 1, 1), "n,24,4,4", (-1, 64))),
    "count less one": ("shifted-count", counted("t = Sub (s, one)")),
    "count of columns less one": ("shifted-count", counted("t = Sub (s, one)", axis=1)),
    "one less a count": ("shifted-count", counted("t = Sub (one, s)")),
    "twice a count": ("shifted-count", counted("t = Mul (s, two)")),
    "weighted counts": ("shifted-count", counted("t = Mul (s, weights)")),
    "half a count": ("shifted-count", counted("t = Div (s, two)")),
    "negative count": ("shifted-count", counted("t = Neg (s)")),
    "count, unsqueeze, add": ("shifted-count", counted("u = Unsqueeze (s, two) t = Add (u, one)")),
    "largest integer and one": (
        "shifted-count", counted("t = Add (s, one)", "ReduceMax <axes = [2], keepdims = 0> (i)"),
    ),
    "l1": ("reduced-axes", summed("ReduceL1")),
    "log of sum": ("reduced-axes", summed("ReduceLogSum")),
    "log of sum of exponentials": ("reduced-axes", summed("ReduceLogSumExp")),
}  # fmt: skip


def cured(name: str, before: onnx.ModelProto) -> onnx.ModelProto:
    faulty = FAULTY_GRAPHS[name]
    after = copy_model(before)
    assert faulty.rewrite is not None
    faulty.rewrite(after)
    assert faulty.find(after) == []
    return after
