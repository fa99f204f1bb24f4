"""Rewrite Einsum of one or two operands as MatMul or Mul: quantizers and fusions support only these.

With N the axes of both operands and the result, K the summed axes, L and R the axes of one operand only:

a ─ Transpose [N, L, K] ─ Reshape [N.., ΠL, ΠK] ─┐
b ─ Transpose [N, K, R] ─ Reshape [N.., ΠK, ΠR] ─┴─ MatMul ─ Reshape [N, L, R] ─ Transpose

Without summed axes the product is a Mul. Einsums remain if an operand repeats a letter, if an axis of one
operand is summed or broadcast, with three operands, and with extents that no Reshape can express (at most
one -1, and 0 for an unchanged axis).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters

import onnx

from ...model.graph.graph import attribute
from ..opset.scope import Chain, Scope, rewriting_each

_FLOATS = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double")]


@rewriting_each("Einsum")
def einsums_to_products(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Replace each supported Einsum."""
    terms = _parse_equation(node, scope)
    if terms is None:
        return None
    *operands, result = terms
    chain = Chain(node, scope)
    if len(operands) == 1:
        reduced = [axis for axis, letter in enumerate(operands[0]) if letter not in result]
        name = chain.over_axes("ReduceSum", node.input[0], reduced, keepdims=0) if reduced else node.input[0]
        order = [letter for letter in operands[0] if letter in result]
        return chain.result(chain.add("Transpose", [name], perm=[order.index(letter) for letter in result]))
    left, right = operands
    unshared = set(left) ^ set(right)
    summed = [letter for letter in left if letter in right and letter not in result]
    if not unshared <= set(result):
        return None
    if not summed:
        aligned = [_align_axes(chain, *pair, result) for pair in zip(node.input, operands, strict=True)]
        return chain.result(chain.add("Mul", aligned))
    extents = _extents(node.input, operands, scope)
    if extents is None:
        return None
    shared = [letter for letter in result if letter in left and letter in right]
    of_left = [letter for letter in result if letter in left and letter not in right]
    of_right = [letter for letter in result if letter in right and letter not in left]
    # Without axes in both operands, MatMul takes all but the last axis of the left operand as leading axes.
    lead, rows = (shared, of_left) if shared else (of_left[:-1], of_left[-1:])
    merged = [_shape(lead, rows, summed, extents), _shape(shared, summed, of_right, extents)]
    split = _shape(lead, rows, of_right, extents, split=True)
    if None in (*merged, split):
        return None
    orders = [*shared, *of_left, *summed], [*shared, *summed, *of_right]
    factors = [_transpose(chain, *item) for item in zip(node.input, operands, orders, strict=True)]
    factors = [
        chain.add("Reshape", [name, chain.ints(shape)]) if shape else name
        for name, shape in zip(factors, merged, strict=True)
    ]
    order_of_product = [*shared, *of_left, *of_right]
    name = chain.add("MatMul", factors)
    if split:
        name = chain.add("Reshape", [name, chain.ints(split)])
    if order_of_product != list(result):
        name = chain.add("Transpose", [name], perm=[order_of_product.index(letter) for letter in result])
    return chain.result(name)


def _parse_equation(node: onnx.NodeProto, scope: Scope) -> list[str] | None:
    """Return the letters of the operands and the result, with ellipses expanded; None if unsupported."""
    equation = attribute(node, "equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    operands = inputs.split(",")
    if len(operands) != len(node.input) or len(operands) > 2 or scope.type(node.input[0]) not in _FLOATS:
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    dots = []
    for position, (name, letters) in enumerate(zip(node.input, operands, strict=True)):
        if "..." in letters:
            shape = scope.shape(name)
            if shape is None:
                return None
            hidden = len(shape) - len(letters) + 3
            if hidden > len(free):
                return None
            dots.append("".join(free[len(free) - hidden :]))  # aligned at the end, as in broadcasting
            operands[position] = letters.replace("...", dots[-1])
    broadcast = max(dots, key=len, default="")
    if arrow:
        result = result.replace("...", broadcast)
    else:
        letters = sorted(letter for letter in inputs if letter.isalpha() and inputs.count(letter) == 1)
        result = broadcast + "".join(letters)
    if not result or len(set(dots)) > 1 or any(len(set(term)) < len(term) for term in (*operands, result)):
        return None
    return [*operands, result] if set(result) <= set("".join(operands)) else None


def _extents(names: Sequence[str], operands: Sequence[str], scope: Scope) -> dict[str, int | None] | None:
    """Return the extent of each letter, None if unknown; return None if an extent of 1 is broadcast."""
    extents: dict[str, int | None] = {}
    for name, letters in zip(names, operands, strict=True):
        shape = scope.shape(name) or (None,) * len(letters)
        for letter, extent in zip(letters, shape, strict=True):
            earlier = extents.setdefault(letter, extent)
            if None not in (earlier, extent) and earlier != extent:
                return None
            extents[letter] = earlier or extent
    return extents


def _align_axes(chain: Chain, name: str, letters: str, result: str) -> str:
    """Transpose an operand to the axis order of the result; insert axes of extent 1 for missing letters."""
    order = [letter for letter in result if letter in letters]
    name = _transpose(chain, name, letters, order)
    missing_axes = [axis for axis, letter in enumerate(result) if letter not in letters]
    return chain.over_axes("Unsqueeze", name, missing_axes) if missing_axes else name


def _transpose(chain: Chain, name: str, letters: str, order: Sequence[str]) -> str:
    if list(letters) == list(order):
        return name
    return chain.add("Transpose", [name], perm=[letters.index(letter) for letter in order])


def _shape(
    lead: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    extents: dict[str, int | None],
    *,
    split: bool = False,
) -> list[int] | None:
    """Return the shape with rows and columns merged to one axis each, or with `split` separate again.

    Return [] if no Reshape is needed, None if none can express the shape.
    """
    if len(rows) == len(columns) == 1:
        return []
    groups = [columns] if len(rows) == 1 else [rows, columns]
    if split:
        groups = [letter for group in groups for letter in group]
    shape = [0] * (len(lead) + (len(rows) == 1)) + [_size(group, extents) for group in groups]
    return shape if shape.count(-1) <= 1 else None


def _size(letters: Sequence[str], extents: dict[str, int | None]) -> int:
    values = [extents[letter] for letter in letters]
    return -1 if None in values else prod(extent for extent in values if extent is not None)
