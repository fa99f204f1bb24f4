"""Arrays with the error that float32 may have made in them: what a runtime may return lies within it.

The bounds are those of Higham, "Accuracy and Stability of Numerical Algorithms", 2002: a sum of n products in
any order is within `gamma(n) * sum |a| |b|` (section 3.1), `gamma(n)` about n times the unit roundoff 2**-24.
A function carries an error on by its Lipschitz constant, and rounds its result by `ULPS` units: the
approximations of exp, tanh, erf and the like in runtimes are that near.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNIT = 2.0**-24
ULPS = 64.0
_MORE = 8  # roundings beside those of the sum: scales multiplied, a bias, a result


@dataclass(frozen=True, eq=False)
class Bounded:
    """Values, and by how much float32 arithmetic may be away from them; integers have no error."""

    value: Array
    error: Array | None = None

    @property
    def off(self) -> Array:
        """The error, zeros for none."""
        return np.zeros(self.value.shape) if self.error is None else self.error


def moved(function: Callable[[Array], Array], x: Bounded) -> Bounded:
    """Apply what moves, repeats or selects values."""
    return Bounded(function(x.value), None if x.error is None else function(x.error))


def product(a: Bounded, b: Bounded, multiply: Callable[[Array, Array], Array], terms: int) -> Bounded:
    """Apply a bilinear function, each result of which sums so many products."""
    left, right = np.abs(a.value), np.abs(b.value)
    error = multiply(a.off, right + b.off) + multiply(left, b.off)
    return Bounded(multiply(a.value, b.value), error + (terms + _MORE) * UNIT * multiply(left, right))


def added(*operands: Bounded) -> Bounded:
    """Sum operands of shapes that broadcast."""
    total: Any = sum(one.value for one in operands)
    magnitude: Any = sum(np.abs(one.value) for one in operands)
    error: Any = sum(one.off for one in operands)
    return Bounded(np.asarray(total), error + len(operands) * UNIT * magnitude)


def negated(x: Bounded) -> Bounded:
    """Change the sign."""
    return Bounded(-x.value, x.error)


def multiplied(a: Bounded, b: Bounded) -> Bounded:
    """Multiply element by element."""
    return product(a, b, np.multiply, 1)


def divided(a: Bounded, b: Bounded) -> Bounded:
    """Divide element by element; the divisor is away from zero by more than its error."""
    value = a.value / b.value
    least = np.maximum(np.abs(b.value) - b.off, np.finfo(np.float64).tiny)
    return Bounded(value, (a.off + np.abs(value) * b.off) / least + 4 * UNIT * np.abs(value))


def smooth(function: Callable[[Array], Array], x: Bounded, slope: float = 1.0) -> Bounded:
    """Apply a function of one variable that is nowhere steeper."""
    value = function(x.value)
    return Bounded(value, slope * x.off + ULPS * UNIT * np.maximum(np.abs(value), 1e-3))


def exact(function: Callable[[Array], Array], x: Bounded, slope: float = 1.0) -> Bounded:
    """Apply a function that rounds once, such as the one of LeakyRelu."""
    value = function(x.value)
    return Bounded(value, slope * x.off + 2 * UNIT * np.abs(value))


def averaged(x: Bounded, mean: Callable[[Array], Array], count: int) -> Bounded:
    """Apply a mean of so many values, whose weights add up to one."""
    return Bounded(mean(x.value), mean(x.off) + (count + _MORE) * UNIT * mean(np.abs(x.value)))
