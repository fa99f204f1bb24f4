"""Evaluate PyTorch's guards: the extents of an axis for which a captured graph is valid.

A guard is an expression over the symbols of axes that must be true, such as `Eq(s53, 2*(s53//2))`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from ...model.input_notes import AxisRange

_WINDOW = 512  # extents beyond the traced one among which a multiple shows
_FAR = 64  # times the traced extent: what holds there holds for all

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": pow,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": operator.not_,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda a, b, modulus: a // b % modulus,
    "PowByNatural": pow,
    "ToFloat": float,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
}
"""What the symbolic functions of sympy and PyTorch compute (torch/utils/_sympy/functions.py), by class."""


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        symbols: The symbols in it, by name and in order.
        value: Its value, given the extents of these.
    """

    symbols: tuple[str, ...]
    value: Callable[[Sequence[int]], Any]

    def holds(self, symbol: str, extent: int, traced: Mapping[str, int]) -> bool:
        """Return whether it is true for an extent, at some extents of the other symbols in it.

        Others are traced with 2 or more, and so is what they stand for: their own guards are judged apart.
        """
        others = [
            [extent] if name == symbol else [traced[name], traced[name] + 1, traced[name] * 2]
            for name in self.symbols
        ]
        return any(self._is_true(chosen) for chosen in product(*others))

    def _is_true(self, extents: Sequence[int]) -> bool:
        try:
            return bool(self.value(extents))
        except (ArithmeticError, ValueError):  # such as a division by a number of windows that is 0
            return False


def read_guards(expressions: Iterable[Any], symbols: Iterable[str]) -> list[Guard]:
    """Return the guards that are about the symbols of input axes alone; a function that is not known is left.

    Args:
        expressions: sympy's expressions, of PyTorch's `ShapeEnv`.
        symbols: Names of the symbols of input axes.
    """
    known = set(symbols)
    guards = []
    for expression in dict.fromkeys(expressions):
        names = sorted(str(symbol) for symbol in getattr(expression, "free_symbols", ()))
        if names and set(names) <= known:
            value = _compiled(expression, names)
            guards += [Guard(tuple(names), value)] if value is not None else []
    return guards


def _compiled(expression: Any, names: Sequence[str]) -> Callable[[Sequence[int]], Any] | None:
    """The function that an expression is of the extents of its symbols; None where a part is not known."""
    if getattr(expression, "is_Symbol", False):
        index = names.index(str(expression))
        return lambda extents: extents[index]
    if not expression.args:
        number = _number(expression)
        return None if number is None else lambda _: number
    function = _FUNCTIONS.get(type(expression).__name__)
    parts = [_compiled(part, names) for part in expression.args]
    if function is None or None in parts:
        return None
    known = [part for part in parts if part is not None]
    return lambda extents: function(*(part(extents) for part in known))


def _number(expression: Any) -> int | float | None:
    if getattr(expression, "is_Integer", False):
        return int(expression)
    return float(expression) if getattr(expression, "is_Rational", False) else None


def allowed_extents(
    symbol: str, traced: Mapping[str, int], guards: Sequence[Guard], lowest: int, highest: int | None
) -> AxisRange:
    """Return the extents of a symbol for which all guards hold; the traced one is among them.

    Args:
        symbol: Its name.
        traced: Symbol to traced extent.
        guards: All guards.
        lowest: Least extent that PyTorch knows of.
        highest: Largest; None where it knows none.
    """
    own = [guard for guard in guards if symbol in guard.symbols]
    start = traced[symbol]

    def holds(extent: int) -> bool:
        return all(guard.holds(symbol, extent, traced) for guard in own)

    step = _step(start, highest, holds)
    first = _last_that_holds(start // step, -(-lowest // step), lambda count: holds(count * step)) * step
    if highest is not None:
        end = highest
    elif holds(start * _FAR):
        return AxisRange(first, None, step)
    else:
        end = start * _FAR
    return AxisRange(
        first, _last_that_holds(start // step, end // step, lambda n: holds(n * step)) * step, step
    )


def _step(traced: int, highest: int | None, holds: Callable[[int], bool]) -> int:
    """The greatest number of which all allowed extents near the traced one are multiples."""
    end = traced + _WINDOW if highest is None else min(highest, traced + _WINDOW)
    if end == traced or holds(traced + 1):
        return 1
    others = [extent for extent in range(traced + 2, end + 1) if holds(extent)]
    return reduce(math.gcd, others, traced) if others else 1


def _last_that_holds(inside: int, end: int, holds: Callable[[int], bool]) -> int:
    """The last of the numbers from `inside` to `end` up to which `holds` is true, by bisection."""
    if inside == end or holds(end):
        return end
    outside = end
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside
