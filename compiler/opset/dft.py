"""Rewrite a DFT as a MatMul with a table of cosines and sines, for runtimes without DFT.

For a signal x of N values, real (c = 1) or pairs of a real and an imaginary part (c = 2), and L points:

    X[k] = sum over n of x[n] exp(-2 pi i k n / L),  k = 0 ... M - 1,  M = L, or L // 2 + 1 if onesided

    x [..., N, c] ─ DFT ─ X [..., M, 2]
    becomes
    x [..., N, c] ─ Reshape [..., N c] ─ MatMul(table [N c, M 2]) ─ Reshape [..., M, 2]

The inverse uses exp(+2 pi i k n / L) / L. The inverse of a onesided spectrum has L real results: each value
of the spectrum counts twice, except the first and, for even L, the last. Signals are cut or padded with 0 to
L values (ONNX, DFT). For a length N that is known only at run time, the graph computes the tables:

    x [..., N, c] ─ Transpose [..., c, N] ─┬─ MatMul(cos) ─┬─ real and imaginary part ─ [..., M, 2]
                                           └─ MatMul(sin) ─┘

    cos[n, k] = cos(2 pi (n k mod N) / N),  k = 0 ... M - 1,  M = N, or N // 2 + 1 if onesided

`n k mod N` is computed in integers, so long signals lose no precision. The runtime computes the N M values of
a table at every call. This suits lengths of thousands at most.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from ...model.graph.graph import attribute
from .passes import form_pass
from .scope import Chain, Scope, rewriting_each

_LARGEST_TABLE = 1 << 22  # values (16 MB); only runtimes with the operator compute a longer DFT, and fast
_FLOAT = onnx.TensorProto.FLOAT


@rewriting_each("DFT")
def dft_to_products(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return the nodes for a DFT; None if it is unfit, such as for its table's size or a computed length."""
    shape = scope.shape(node.input[0]) or ()
    axis, rank = _axis(node, scope, len(shape)), len(shape)
    if axis is None or scope.type(node.input[0]) not in ("tensor(float)", "tensor(float16)"):
        return None
    onesided, inverse = (bool(attribute(node, name, 0)) for name in ("onesided", "inverse"))
    count, parts, kind = shape[axis], shape[-1], scope.elem_type(node, node.input[0])
    if parts not in (1, 2):
        return None
    length = count
    if len(node.input) > 1 and node.input[1]:
        points = scope.constant(node.input[1])
        if count is None or points is None:
            return None
        length = int(points.reshape(-1)[0])
    if count is None or length is None:
        return None if onesided and inverse else _dynamic_dft(node, scope, axis, onesided, inverse)
    table = dft_table(count, parts, length, onesided=onesided, inverse=inverse)
    if table.size > _LARGEST_TABLE:
        return None
    chain, value, last = Chain(node, scope), node.input[0], axis == rank - 2
    swap = list(range(rank))
    swap[axis], swap[-2] = swap[-2], swap[axis]
    if not last:
        value = chain.add("Transpose", [value], perm=swap)
    value = chain.add("Reshape", [value, chain.ints([0] * (rank - 2) + [count * parts])])
    stored = scope.store(table.astype(np.float32 if kind == _FLOAT else np.float16), f"{chain.output}/table")
    value = chain.add("MatMul", [value, stored])
    real = 1 if onesided and inverse else 2
    pairs = chain.ints([0] * (rank - 2) + [table.shape[1] // real, real])
    value = chain.add("Reshape", [value, pairs])
    return chain.result(value if last else chain.add("Transpose", [value], perm=swap))


def _axis(node: onnx.NodeProto, scope: Scope, rank: int) -> int | None:
    """Return the axis of the signal, counted from 0; None if the axis is computed or invalid."""
    axis = attribute(node, "axis", 1) if scope.target < 20 else -2
    if scope.target >= 20 and any(node.input[2:]):
        values = scope.constant(node.input[2])
        if values is None:
            return None
        axis = int(values.reshape(-1)[0])
    axis += rank if axis < 0 else 0
    return axis if 0 <= axis < rank - 1 else None


def _dynamic_dft(
    node: onnx.NodeProto, scope: Scope, axis: int, onesided: bool, inverse: bool
) -> list[onnx.NodeProto]:
    chain, kind = Chain(node, scope), scope.elem_type(node, node.input[0])
    add, ints = chain.add, chain.ints
    length = add("Gather", [add("Shape", [node.input[0]]), ints(axis)])
    rows = columns = add("Range", [ints(0), length, ints(1)])
    if onesided:
        columns = add("Range", [ints(0), add("Add", [add("Div", [length, ints(2)]), ints(1)]), ints(1)])
    products = add("Mul", [add("Unsqueeze", [rows, ints([1])]), add("Unsqueeze", [columns, ints([0])])])
    remainders = add("Sub", [products, add("Mul", [add("Div", [products, length]), length])])
    turns = add("Div", [add("Cast", [remainders], to=_FLOAT), add("Cast", [length], to=_FLOAT)])
    angle = add("Mul", [turns, chain.scalar(2 * np.pi, _FLOAT)])
    shape = scope.shape(node.input[0]) or ()
    rank = len(shape)
    flat = [index for index in range(rank) if index not in (axis, rank - 1)] + [rank - 1, axis]
    x = add("Transpose", [node.input[0]], perm=flat)
    with_table = []
    for function in ("Cos", "Sin"):
        table = add(function, [angle])
        with_table.append(add("MatMul", [x, table if kind == _FLOAT else add("Cast", [table], to=kind)]))
    with_cosine, with_sine = with_table
    if inverse:
        scale = add("Cast", [length], to=kind)
        with_cosine = add("Div", [with_cosine, scale])
        with_sine = add("Neg", [add("Div", [with_sine, scale])])
    if shape[-1] == 1:
        real, imaginary = with_cosine, add("Neg", [with_sine])
    else:  # (r + i s) (cos - i sin): real r cos + s sin, imaginary s cos - r sin
        (r_cosine, s_cosine), (r_sine, s_sine) = (
            [add("Slice", [value, ints([part]), ints([part + 1]), ints([-2])]) for part in (0, 1)]
            for value in (with_cosine, with_sine)
        )
        real, imaginary = add("Add", [r_cosine, s_sine]), add("Sub", [s_cosine, r_sine])
    joined = add("Concat", [real, imaginary], axis=-2)
    return chain.result(add("Transpose", [joined], perm=[flat.index(index) for index in range(rank)]))


def dft_table(
    count: int, parts: int, length: int, *, onesided: bool = False, inverse: bool = False
) -> NDArray[np.float64]:
    """Return the table of a transform with N = `count`, c = `parts` and L = `length`, as real numbers.

    Args:
        onesided: Whether the spectrum has only the first length // 2 + 1 points; the inverse reads them.

    Returns:
        float64 [count * parts, results * 2]: rows by value and part, columns by result and part. For the
        inverse of a onesided spectrum, [count * parts, length], because the results are real.
    """
    real = onesided and inverse
    results = length // 2 + 1 if onesided and not inverse else length
    n, k = np.arange(count)[:, None], np.arange(results)[None, :]
    angle = 2 * np.pi * ((n * k) % length) / length * (1 if inverse else -1)
    weight = (n < length) / (length if inverse else 1)
    if real:
        is_single = (n == 0) | (2 * n == length)
        weight = np.where(is_single, 1.0, 2.0) * (n <= length // 2) / length
    cosine, sine = np.cos(angle) * weight, np.sin(angle) * weight
    table = np.empty((count, parts, results, 2))
    table[:, 0, :, 0], table[:, 0, :, 1] = cosine, sine
    if parts == 2:
        table[:, 1, :, 0], table[:, 1, :, 1] = -sine, cosine
    return (table[..., 0] if real else table).reshape(count * parts, -1)


PASS = form_pass("DFT", dft_to_products)
