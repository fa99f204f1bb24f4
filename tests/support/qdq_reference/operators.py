# ruff: noqa: ARG001, ARG005  # all operators have one signature
"""Operators between Q/DQ, on values with bounds. Source: onnx/docs/Operators.md, the section of each name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import bounded, moving
from .bounded import Bounded
from .products import convolve, nbits_weight, settings, unpack_bits

Array = NDArray[Any]
Attributes = dict[str, Any]
Operator = Callable[[list[Any], Attributes, int], list[Bounded]]

OPERATORS: dict[str, Operator] = {}
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _is(*names: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


def _moves(name: str, function: Callable[..., Array]) -> None:
    """Register what takes its first operand apart by the others and the attributes."""
    OPERATORS[name] = lambda xs, how, _: [
        bounded.moved(lambda array: function(array, how, *(x and x.value for x in xs[1:])), xs[0])
    ]


_moves("Identity", lambda x, how: x)
_moves("Dropout", lambda x, how, *rest: x)
_moves("Reshape", lambda x, how, shape: moving.reshape(x, shape, how.get("allowzero", 0)))
_moves("Flatten", lambda x, how: moving.flatten(x, how.get("axis", 1)))
_moves("Squeeze", lambda x, how, axes=None: moving.squeeze(x, how.get("axes", axes)))
_moves("Unsqueeze", lambda x, how, axes=None: moving.unsqueeze(x, how.get("axes", axes)))
_moves("Transpose", lambda x, how: np.transpose(x, how.get("perm")))
_moves("Slice", lambda x, how, *rest: moving.sliced(x, *rest))
_moves("Gather", lambda x, how, indices: np.take(x, indices, how.get("axis", 0)))
_moves("Expand", lambda x, how, shape: x * np.ones(tuple(shape), x.dtype))
_moves("MaxPool", lambda x, how: moving.max_pool(x, how))

OPERATORS["Relu"] = lambda xs, how, _: [Bounded(np.maximum(xs[0].value, 0), xs[0].off)]
OPERATORS["Shape"] = lambda xs, how, _: [Bounded(np.asarray(xs[0].value.shape, np.int64))]
OPERATORS["Tanh"] = lambda xs, how, _: [bounded.smooth(np.tanh, xs[0])]
OPERATORS["Sigmoid"] = lambda xs, how, _: [sigmoid(xs[0])]
OPERATORS["Erf"] = lambda xs, how, _: [bounded.smooth(_erf, xs[0], 1.13)]
OPERATORS["Sum"] = lambda xs, how, _: [bounded.added(*xs)]
OPERATORS["Mul"] = lambda xs, how, _: [_integers(np.multiply, xs) or bounded.multiplied(*xs)]
OPERATORS["Add"] = lambda xs, how, _: [_integers(np.add, xs) or bounded.added(*xs)]
OPERATORS["Sub"] = lambda xs, how, _: [
    _integers(np.subtract, xs) or bounded.added(xs[0], bounded.negated(xs[1]))
]
OPERATORS["Div"] = lambda xs, how, _: [bounded.divided(*xs)]


def _integers(function: Callable[[Array, Array], Array], xs: list[Bounded]) -> Bounded | None:
    return Bounded(function(xs[0].value, xs[1].value)) if xs[0].value.dtype.kind in "iu" else None


def sigmoid(x: Bounded) -> Bounded:
    """1 / (1 + exp(-x)), at most 1/4 steep."""
    return bounded.smooth(lambda v: 0.5 * (1 + np.tanh(v / 2)), x, 0.25)


@_is("Clip")
def _clip(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    low, high = [*xs[1:], None, None][:2]
    least = how.get("min", -np.inf if low is None else low.value)
    return [
        Bounded(
            np.clip(xs[0].value, least, how.get("max", np.inf if high is None else high.value)), xs[0].off
        )
    ]


@_is("LeakyRelu")
def _leaky(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    alpha = how.get("alpha", 0.01)
    return [bounded.exact(lambda v: np.where(v < 0, alpha * v, v), xs[0], max(1.0, abs(alpha)))]


@_is("HardSigmoid")
def _hard_sigmoid(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    alpha, beta = how.get("alpha", 0.2), how.get("beta", 0.5)
    return [bounded.smooth(lambda v: np.clip(alpha * v + beta, 0, 1), xs[0], abs(alpha))]


@_is("HardSwish")
def _hard_swish(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    gate = OPERATORS["HardSigmoid"](xs, {"alpha": 1 / 6, "beta": 0.5}, 1)[0]
    return [bounded.multiplied(xs[0], gate)]


@_is("Gelu")
def _gelu(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    if how.get("approximate", "none") == "tanh":
        inner = lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))  # noqa: E731
    else:
        inner = lambda v: 0.5 * v * (1 + _erf(v / np.sqrt(2)))  # noqa: E731
    return [bounded.smooth(inner, xs[0], 1.13)]


@_is("Where")
def _where(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    condition, x, y = xs
    return [Bounded(np.where(condition.value, x.value, y.value), np.where(condition.value, x.off, y.off))]


@_is("Concat")
def _concat(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    whole = np.concatenate([x.value for x in xs], how["axis"])
    return [Bounded(whole, None if xs[0].error is None else np.concatenate([x.off for x in xs], how["axis"]))]


@_is("Split")
def _split(xs: list[Any], how: Attributes, outputs: int) -> list[Bounded]:
    sizes, axis = how.get("split", xs[1].value if len(xs) > 1 else None), how.get("axis", 0)
    values, errors = (moving.split(one, sizes, axis, outputs) for one in (xs[0].value, xs[0].off))
    return [Bounded(value, error) for value, error in zip(values, errors, strict=True)]


@_is("Cast")
def _cast(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    if how["to"] in (1, 11):
        return [Bounded(xs[0].value.astype(np.float64), xs[0].off)]
    return [Bounded(xs[0].value.astype({6: np.int32, 7: np.int64, 9: bool}[how["to"]]))]


@_is("MatMul")
def _matmul(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    return [bounded.product(xs[0], xs[1], np.matmul, xs[0].value.shape[-1])]


@_is("Gemm")
def _gemm(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    a = bounded.moved(np.transpose, xs[0]) if how.get("transA") else xs[0]
    b = bounded.moved(np.transpose, xs[1]) if how.get("transB") else xs[1]
    made = bounded.product(a, b, np.matmul, a.value.shape[-1])
    made = bounded.exact(lambda v: how.get("alpha", 1.0) * v, made, abs(how.get("alpha", 1.0)))
    if len(xs) < 3 or xs[2] is None:
        return [made]
    beta = how.get("beta", 1.0)
    return [bounded.added(made, bounded.exact(lambda v: beta * v, xs[2], abs(beta)))]


@_is("Conv")
def _conv(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    x, w = xs[:2]
    told, terms = settings(w.value, how, x.value.shape), int(np.prod(w.value.shape[1:]))
    return [_with_bias(bounded.product(x, w, lambda a, b: convolve(a, b, **told), terms), xs)]


@_is("ConvTranspose")
def _conv_transpose(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    x, w = xs[:2]
    terms = x.value.shape[1] * int(np.prod(w.value.shape[2:]))
    return [_with_bias(bounded.product(x, w, lambda a, b: moving.conv_transpose(a, b, how), terms), xs)]


def _with_bias(made: Bounded, xs: list[Any]) -> Bounded:
    if len(xs) < 3 or xs[2] is None:
        return made
    shape = (-1, *[1] * (made.value.ndim - 2))
    return bounded.added(made, bounded.moved(lambda bias: bias.reshape(shape), xs[2]))


@_is("AveragePool")
def _average(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    count = int(np.prod(how["kernel_shape"]))
    return [bounded.averaged(xs[0], lambda v: moving.average_pool(v, how), count)]


@_is("GlobalAveragePool")
def _global_average(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    axes = tuple(range(2, xs[0].value.ndim))
    count = int(np.prod(xs[0].value.shape[2:]))
    return [bounded.averaged(xs[0], lambda v: v.mean(axes, keepdims=True), count)]


@_is("ReduceMean")
def _reduce_mean(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    told = how.get("axes", xs[1].value if len(xs) > 1 and xs[1] is not None else None)
    axes = None if told is None else tuple(int(axis) for axis in told)
    keep = bool(how.get("keepdims", 1))
    return [bounded.averaged(xs[0], lambda v: v.mean(axes, keepdims=keep), xs[0].value.size)]


@_is("Resize")
def _resize(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    scales = xs[2].value if len(xs) > 2 and xs[2] is not None and xs[2].value.size else None
    sizes = xs[3].value if len(xs) > 3 and xs[3] is not None else None
    return [bounded.averaged(xs[0], lambda v: moving.resize(v, how, scales, sizes), 4)]


@_is("BatchNormalization")
def _batch_norm(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    x, *rest = xs
    gamma, beta, mean, variance = (one.value.reshape(-1, *[1] * (x.value.ndim - 2)) for one in rest)
    factor = gamma / np.sqrt(variance + how.get("epsilon", 1e-5))
    shifted = bounded.added(x, Bounded(-mean))
    return [bounded.added(bounded.product(shifted, Bounded(factor), np.multiply, 4), Bounded(beta))]


@_is("Softmax")
def _softmax(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    axis = how.get("axis", -1)
    steps = np.exp(xs[0].value - xs[0].value.max(axis, keepdims=True))
    value = steps / steps.sum(axis, keepdims=True)
    largest = xs[0].off.max(axis, keepdims=True)  # each exponent may move by it, and their sum
    return [
        Bounded(
            value, value * np.expm1(2 * largest) + (ULPS_OF_SUM + value.shape[axis]) * bounded.UNIT * value
        )
    ]


ULPS_OF_SUM = 2 * bounded.ULPS


@_is("LayerNormalization")
def _layer_norm(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    x, gamma = xs[:2]
    axes = tuple(range(how.get("axis", -1) % x.value.ndim, x.value.ndim))
    mean = x.value.mean(axes, keepdims=True)
    deviation = np.sqrt(((x.value - mean) ** 2).mean(axes, keepdims=True) + how.get("epsilon", 1e-5))
    normal = (x.value - mean) / deviation
    size = int(np.prod([x.value.shape[axis] for axis in axes]))
    rounded = x.off + (size + 8) * bounded.UNIT * np.abs(x.value).mean(axes, keepdims=True)
    spread = (np.abs(normal) * rounded).mean(axes, keepdims=True)
    error = (rounded + rounded.mean(axes, keepdims=True) + np.abs(normal) * spread) / deviation
    error = error + (size + 8) * bounded.UNIT * np.abs(normal)
    made = bounded.multiplied(Bounded(normal, error), gamma)
    return [bounded.added(made, xs[2]) if len(xs) > 2 and xs[2] is not None else made]


@_is("MatMulNBits")
def _matmul_nbits(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    packed, scales = xs[1].value, xs[2].value
    zeros = xs[3].value if len(xs) > 3 and xs[3] is not None else None
    told = {"rows": how["N"], "columns": how["K"], "bits": how.get("bits", 4)}
    weight = nbits_weight(packed, scales, zeros, **told)
    made = bounded.product(xs[0], Bounded(weight.T), np.matmul, how["K"])
    return [bounded.added(made, xs[5]) if len(xs) > 5 and xs[5] is not None else made]


@_is("GatherBlockQuantized")
def _gather_blocks(xs: list[Any], how: Attributes, _: int) -> list[Bounded]:
    data, ids, scales = (x.value for x in xs[:3])
    codes = unpack_bits(data, how.get("bits", 4)).astype(np.int64)
    zero: Any = 1 << (how.get("bits", 4) - 1)
    if len(xs) > 3 and xs[3] is not None:
        zero = unpack_bits(xs[3].value, how.get("bits", 4))[:, : scales.shape[1]].astype(np.int64)
        zero = np.repeat(zero, how["block_size"], 1)[:, : codes.shape[1]]
    table = (codes - zero) * np.repeat(scales, how["block_size"], 1)[:, : codes.shape[1]]
    value = table[ids]
    return [Bounded(value, 2 * bounded.UNIT * np.abs(value))]
