"""Extents for which PyTorch's guards hold."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Mod

from qcompile.compiler.export.axes import allowed_extents, read_guards
from qcompile.model.input_notes import AxisRange

BATCH, HEIGHT, OTHER = sympy.symbols("s0 s1 u0", integer=True, positive=True)
TRACED = {"s0": 2, "s1": 64}


def allowed(*guards: object, symbol: str = "s1", lowest: int = 1, highest: int | None = None) -> AxisRange:
    return allowed_extents(symbol, TRACED, read_guards(guards, TRACED), lowest, highest)


def test_no_guard_is_no_limit() -> None:
    assert allowed() == AxisRange()
    assert allowed(lowest=20, highest=512) == AxisRange(20, 512)


@pytest.mark.parametrize("step", [2, 7 * 8, 32])
def test_a_multiple_is_found_with_the_least_one(step: int) -> None:
    traced = {"s1": 4 * step}
    guards = read_guards([sympy.Eq(HEIGHT, step * FloorDiv(HEIGHT, step))], traced)
    assert allowed_extents("s1", traced, guards, 20, None) == AxisRange(-(-20 // step) * step, None, step)


def test_ends_are_found_by_bisection() -> None:
    assert allowed(FloorDiv(HEIGHT, 10) > 3, FloorDiv(HEIGHT, 3) < 100) == AxisRange(40, 299)


def test_a_guard_on_two_axes_limits_the_one_that_cannot_be_otherwise() -> None:
    windows = sympy.Eq(BATCH * HEIGHT, 8 * BATCH * FloorDiv(HEIGHT, 8), evaluate=False)
    assert allowed(windows) == AxisRange(8, None, 8)
    assert allowed(windows, symbol="s0") == AxisRange()
    assert allowed(sympy.Ne(BATCH, HEIGHT), symbol="s0").maximum is None


def test_a_remainder_by_a_product_is_taken_of_the_whole_product() -> None:
    whole = sympy.Ne(Mod(BATCH, BATCH * FloorDiv(HEIGHT, 4)), 0)
    assert allowed(whole, symbol="s0") == AxisRange()


def test_a_division_by_nothing_is_no_allowed_extent() -> None:
    assert allowed(sympy.Eq(Mod(HEIGHT, FloorDiv(HEIGHT, 8)), 0, evaluate=False)).minimum == 8


def test_guards_on_other_symbols_are_left_out() -> None:
    assert read_guards([OTHER > 3, HEIGHT > OTHER], TRACED) == []
