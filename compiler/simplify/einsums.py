"""Write Einsum of one or two operands as the product that it is: quantizers and fusions know MatMul alone.

With N the axes that both operands and the result have, K those that are summed, L and R those of one operand:

a ─ Transpose [N, L, K] ─ Reshape [N.., ΠL, ΠK] ─┐
b ─ Transpose [N, K, R] ─ Reshape [N.., ΠK, ΠR] ─┴─ MatMul ─ Reshape [N, L, R] ─ Transpose

Where nothing is summed it is a Mul. What stays: a letter twice in one operand, an axis of one operand that is
summed or broadcast, three operands, and extents that no Reshape can say: it has one -1, and 0 for an axis
that stays.
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
    """Each Einsum that is a product."""
    terms = _terms(node, scope)
    if terms is None:
        return None
    *operands, result = terms
    chain = Chain(node, scope)
    if len(operands) == 1:
        dropped = [axis for axis, letter in enumerate(operands[0]) if letter not in result]
        name = chain.over_axes("ReduceSum", node.input[0], dropped, keepdims=0) if dropped else node.input[0]
        order = [letter for letter in operands[0] if letter in result]
        return chain.result(chain.add("Transpose", [name], perm=[order.index(letter) for letter in result]))
    left, right = operands
    alone = set(left) ^ set(right)
    summed = [letter for letter in left if letter in right and letter not in result]
    if not alone <= set(result):
        return None
    if not summed:
        aligned = [_aligned(chain, *pair, result) for pair in zip(node.input, operands, strict=True)]
        return chain.result(chain.add("Mul", aligned))
    extents = _extents(node.input, operands, scope)
    if extents is None:
        return None
    shared = [letter for letter in result if letter in left and letter in right]
    of_left = [letter for letter in result if letter in left and letter not in right]
    of_right = [letter for letter in result if letter in right and letter not in left]
    # Without axes that both have, all but the last of the left operand are left as they are.
    lead, rows = (shared, of_left) if shared else (of_left[:-1], of_left[-1:])
    merged = [_shape(lead, rows, summed, extents), _shape(shared, summed, of_right, extents)]
    split = _shape(lead, rows, of_right, extents, split=True)
    if None in (*merged, split):
        return None
    orders = [*shared, *of_left, *summed], [*shared, *summed, *of_right]
    factors = [_turned(chain, *item) for item in zip(node.input, operands, orders, strict=True)]
    factors = [
        chain.add("Reshape", [name, chain.ints(shape)]) if shape else name
        for name, shape in zip(factors, merged, strict=True)
    ]
    laid = [*shared, *of_left, *of_right]
    name = chain.add("MatMul", factors)
    if split:
        name = chain.add("Reshape", [name, chain.ints(split)])
    if laid != list(result):
        name = chain.add("Transpose", [name], perm=[laid.index(letter) for letter in result])
    return chain.result(name)


def _terms(node: onnx.NodeProto, scope: Scope) -> list[str] | None:
    """The letters of the operands and of the result, an ellipsis spelled out; None for what stays."""
    equation = attribute(node, "equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    operands = inputs.split(",")
    if len(operands) != len(node.input) or len(operands) > 2 or scope.type(node.input[0]) not in _FLOATS:
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    wide = []
    for position, (name, letters) in enumerate(zip(node.input, operands, strict=True)):
        if "..." in letters:
            shape = scope.shape(name)
            if shape is None:
                return None
            hidden = len(shape) - len(letters) + 3
            if hidden > len(free):
                return None
            wide.append("".join(free[len(free) - hidden :]))  # aligned at the end, as broadcasting is
            operands[position] = letters.replace("...", wide[-1])
    rest = max(wide, key=len, default="")
    if arrow:
        result = result.replace("...", rest)
    else:
        letters = sorted(letter for letter in inputs if letter.isalpha() and inputs.count(letter) == 1)
        result = rest + "".join(letters)
    if not result or len(set(wide)) > 1 or any(len(set(term)) < len(term) for term in (*operands, result)):
        return None
    return [*operands, result] if set(result) <= set("".join(operands)) else None


def _extents(names: Sequence[str], operands: Sequence[str], scope: Scope) -> dict[str, int | None] | None:
    """The extent of each letter, None where it is not known; None where an extent of 1 is broadcast."""
    extents: dict[str, int | None] = {}
    for name, letters in zip(names, operands, strict=True):
        shape = scope.shape(name) or (None,) * len(letters)
        for letter, extent in zip(letters, shape, strict=True):
            other = extents.setdefault(letter, extent)
            if None not in (other, extent) and other != extent:
                return None
            extents[letter] = other or extent
    return extents


def _aligned(chain: Chain, name: str, letters: str, result: str) -> str:
    """An operand with its axes in the order of the result, and axes of one element for those it lacks."""
    order = [letter for letter in result if letter in letters]
    name = _turned(chain, name, letters, order)
    lacking = [axis for axis, letter in enumerate(result) if letter not in letters]
    return chain.over_axes("Unsqueeze", name, lacking) if lacking else name


def _turned(chain: Chain, name: str, letters: str, order: Sequence[str]) -> str:
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
    """The shape in which rows and columns are one axis each, or `split` again; None: it cannot be said.

    It is [] where they are.
    """
    if len(rows) == len(columns) == 1:
        return []
    groups = [columns] if len(rows) == 1 else [rows, columns]
    if split:
        groups = [letter for group in groups for letter in group]
    shape = [0] * (len(lead) + (len(rows) == 1)) + [_size(group, extents) for group in groups]
    return shape if shape.count(-1) <= 1 else None


def _size(letters: Sequence[str], extents: dict[str, int | None]) -> int:
    known = [extents[letter] for letter in letters]
    return -1 if None in known else prod(extent for extent in known if extent is not None)
