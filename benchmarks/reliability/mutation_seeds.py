"""Small models of many kinds, which `mutations.py` damages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

_HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def _weight(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    values = np.random.default_rng([len(name), *shape]).standard_normal(shape) * 0.3
    return numpy_helper.from_array(values.astype(dtype), name)


def _four(name: str, value: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(4, value, np.float32), name)


def _model(text: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(text)
    model.graph.initializer.extend(weights)
    return model


def conv_net() -> onnx.ModelProto:
    """Convolutions, a residual add, normalization, pooling and a Gemm."""
    return _model(
        _HEAD + """ g (float[batch,4,8,8] x) => (float[batch,3] y) {
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
            n = BatchNormalization (c, s, s2, s3, s4)
            r = Relu (n)
            d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2> (r, w2)
            a = Add (d, r)
            p = GlobalAveragePool (a)
            f = Flatten (p)
            y = Gemm <transB = 1> (f, w3, b3)
        }""",
        _weight("w1", 4, 4, 3, 3), _weight("b1", 4), _weight("w2", 4, 2, 3, 3), _weight("w3", 3, 4),
        _weight("b3", 3), _four("s", 1), _four("s2", 0), _four("s3", 0), _four("s4", 1),
    )  # fmt: skip


def transformer() -> onnx.ModelProto:
    """An embedding, one head of attention with shapes that are computed, and a feed-forward layer."""
    return _model(
        _HEAD + """ g (int64[batch,seq] ids) => (float[batch,seq,8] y) {
            e = Gather (table, ids)
            q = MatMul (e, wq)  k = MatMul (e, wk)  v = MatMul (e, wv)
            kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, kt)
            half = Constant <value = float {0.35}> ()
            t = Mul (s, half)
            m = Softmax <axis = -1> (t)
            o = MatMul (m, v)
            shape = Shape (e)
            again = Reshape (o, shape)
            sum = Add (again, e)
            n = LayerNormalization <axis = -1> (sum, scale, bias)
            h = MatMul (n, w1)
            g = Erf (h)
            y = MatMul (g, w2)
        }""",
        _weight("table", 32, 8), _weight("wq", 8, 8), _weight("wk", 8, 8), _weight("wv", 8, 8),
        _weight("w1", 8, 16), _weight("w2", 16, 8), _weight("scale", 8), _weight("bias", 8),
    )  # fmt: skip


def recurrent() -> onnx.ModelProto:
    """An LSTM and a GRU."""
    return _model(
        _HEAD + """ g (float[5,batch,3] x) => (float[5,batch,1,4] y) {
            a, h, c = LSTM <hidden_size = 4> (x, w, r, b)
            axes = Constant <value = int64[1] {1}> ()
            s = Squeeze (a, axes)
            g, i = GRU <hidden_size = 4> (s, wg, rg)
            y = Transpose <perm = [0, 2, 1, 3]> (g)
        }""",
        _weight("w", 1, 16, 3), _weight("r", 1, 16, 4), _weight("b", 1, 32),
        _weight("wg", 1, 12, 4), _weight("rg", 1, 12, 4),
    )  # fmt: skip


def functions() -> onnx.ModelProto:
    """Two local functions, one of which calls the other."""
    return _model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[batch,6] x) => (float[batch,6] y) {
            a = MatMul (x, w)
            b = own.twice <alpha = 0.5> (a)
            y = own.act (b)
        }
        <opset_import: ["" : 17, "own" : 1], domain: "own"> twice <alpha> (u) => (v) {
            k = own.act (u)
            c = Constant <value_float: float = @alpha> ()
            v = Mul (k, c)
        }
        <opset_import: ["" : 17], domain: "own"> act (u) => (v) { s = Sigmoid (u) v = Mul (u, s) }
        """,
        _weight("w", 6, 6),
    )


def subgraphs() -> onnx.ModelProto:
    """If and Loop, whose bodies read outer tensors."""
    return _model(
        _HEAD
        + """ g (float[batch,4] x, bool c) => (float[batch,4] y) {
            m = MatMul (x, w)
            z = If (c) <
                then_branch = yes () => (float[n,4] t) { t = Relu (m) },
                else_branch = no () => (float[n,4] e) { k = Neg (m) e = Add (k, x) }
            >
            trips = Constant <value = int64 {3}> ()
            go = Constant <value = bool {1}> ()
            l = Loop (trips, go, z) <
                body = body (int64 i, bool on, float[n,4] s) => (bool again, float[n,4] r) {
                    again = Identity (on)  r = MatMul (s, w)
                }
            >
            y = Add (l, x)
        }""",
        _weight("w", 4, 4),
    )


def quantized() -> onnx.ModelProto:
    """A convolution and a product between Q/DQ pairs, per tensor and per channel."""
    scale = numpy_helper.from_array(np.float32(0.05), "s")
    zero = numpy_helper.from_array(np.uint8(128), "z")
    weights = np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    return _model(
        _HEAD + """ g (float[batch,3,6,6] x) => (float[batch,5] y) {
            q = QuantizeLinear (x, s, z)      d = DequantizeLinear (q, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            c = Conv <kernel_shape = [3, 3]> (d, wd)
            r = Relu (c)
            q2 = QuantizeLinear (r, s, z)     d2 = DequantizeLinear (q2, s, z)
            p = GlobalAveragePool (d2)
            f = Flatten (p)
            y = MatMul (f, v)
        }""",
        scale, zero, numpy_helper.from_array(weights, "w"),
        _four("ws", 0.01), numpy_helper.from_array(np.zeros(4, np.int8), "wz"), _weight("v", 4, 5),
    )  # fmt: skip


def sparse() -> onnx.ModelProto:
    """A sparse initializer, in the form of linear indices."""
    model = _model(_HEAD + " g (float[batch,4] x) => (float[batch,3] y) { a = MatMul (x, w) y = Add (a, b) }",
                   _weight("b", 3))  # fmt: skip
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [0.5, -1.0, 2.0])
    indices = helper.make_tensor("w_indices", TensorProto.INT64, [3], [0, 5, 11])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3]))
    return model


def strings() -> onnx.ModelProto:
    """Strings beside a product: stored ones, gathered and returned."""
    words = helper.make_tensor("words", TensorProto.STRING, [3], [b"one", b"two", b"three"])
    return _model(
        _HEAD + """ g (float[batch,4] x, int64[batch] i) => (float[batch,4] y, string[batch] said) {
            y = MatMul (x, w)
            said = Gather (words, i)
        }""",
        _weight("w", 4, 4), words,
    )  # fmt: skip


def shapes() -> onnx.ModelProto:
    """Shapes that are computed: Resize, Pad, Slice, Expand, ConstantOfShape, Tile."""
    return _model(
        _HEAD + """ g (float[batch,2,6,6] x) => (float[batch,2,12,14] y, float[batch,3] z) {
            r = Resize <mode = "nearest"> (x, , scales)
            p = Pad (r, pads)
            s = Slice (p, starts, ends, axes)
            c = Conv <kernel_shape = [1, 1]> (s, w)
            shape = Shape <start = 0, end = 1> (x)
            three = Constant <value = int64[1] {3}> ()
            both = Concat <axis = 0> (shape, three)
            zeros = ConstantOfShape <value = float[1] {1.5}> (both)
            one = Constant <value = int64[1] {1}> ()
            twos = Concat <axis = 0> (one, one)
            t = Tile (zeros, twos)
            e = Expand (t, both)
            z = Neg (e)
            y = Relu (c)
        }""",
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        numpy_helper.from_array(np.array([0, 0, 0, 1, 0, 0, 0, 3]), "pads"),
        *(numpy_helper.from_array(np.array([v]), n) for n, v in (("starts", 0), ("ends", 14), ("axes", 3))),
        _weight("w", 2, 2, 1, 1),
    )  # fmt: skip


def halves() -> onnx.ModelProto:
    """Float16 weights and a bfloat16 cast."""
    return _model(
        _HEAD + """ g (float16[batch,4] x) => (float[batch,4] y) {
            a = MatMul (x, w)
            b = Cast <to = 16> (a)
            c = Cast <to = 1> (b)
            y = Gemm (c, v)
        }""",
        _weight("w", 4, 4, dtype=np.float16), _weight("v", 4, 4),
    )  # fmt: skip


def detection() -> onnx.ModelProto:
    """What follows a detector: TopK, NonMaxSuppression, Gather, a sequence inside."""
    return _model(
        _HEAD + """ g (float[1,6,4] boxes, float[1,2,6] scores)
        => (int64[n,3] y, float[1,2,k] best, float[m,6,4] s) {
            many = Constant <value = int64 {3}> ()
            y = NonMaxSuppression (boxes, scores, many)
            k = Constant <value = int64[1] {2}> ()
            w = MatMul (scores, table)
            best, where = TopK (w, k)
            q = SequenceConstruct (boxes, boxes)
            s = ConcatFromSequence <axis = 0> (q)
        }""",
        _weight("table", 6, 6),
    )  # fmt: skip


def typed_values() -> onnx.ModelProto:
    """Weights in typed fields in place of raw bytes, and Einsum."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.1 * i for i in range(12)])
    index = helper.make_tensor("i", TensorProto.INT64, [2], [0, 2])
    return _model(
        _HEAD + """ g (float[batch,4] x) => (float[batch,2] y) {
            e = Einsum <equation = "bi,ij->bj"> (x, w)
            y = Gather <axis = 1> (e, i)
        }""",
        weights, index,
    )  # fmt: skip


SEEDS: dict[str, Callable[[], onnx.ModelProto]] = {
    one.__name__: one
    for one in (
        conv_net, transformer, recurrent, functions, subgraphs, quantized, sparse, strings, shapes, halves,
        detection, typed_values,
    )
}  # fmt: skip
EXTERNAL = "external"
"""The convolutional net with its weights in a file beside it."""


def write_seed(name: str, folder: Path) -> Path:
    """Write a seed as `m.onnx`, with what lies beside it, and return its path."""
    path = folder / "m.onnx"
    if name == EXTERNAL:
        (folder / "m.data").unlink(missing_ok=True)
        onnx.save_model(conv_net(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    else:
        onnx.save(SEEDS[name](), path)
    return path


def write_data(name: str, path: Path) -> None:
    """Write two samples that fit a seed."""
    model = (conv_net if name == EXTERNAL else SEEDS[name])()
    generator = np.random.default_rng(0)
    arrays = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or 2 for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if np.dtype(dtype).kind == "f":
            arrays[value.name] = generator.standard_normal(shape).astype(dtype)
        else:
            arrays[value.name] = generator.integers(0, 2, shape).astype(dtype)
    np.savez(path, **arrays)
