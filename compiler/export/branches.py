"""Remove branches on tensor values from a capture where one way of the branch is right for every sample.

The captured graph takes a way if PyTorch, forced to take it on every sample, returns the same outputs as
without force:

    if not mask.any(): mask = None     a shortcut: the long way gives the same outputs
    if x.isnan().any(): raise ...      a check: the other way raises within a few lines; it is left out

If a sample takes the other way and its outputs differ, both ways are needed, and the export is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from dis import opmap
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ...model.sources.pytorch import import_torch
from ...spec.tensors import Feeds
from ..check import Outputs

_MOST_PLACES, _MOST_VALUES = 16, 10_000  # branches, and evaluations of a condition; more are a loop
_CLOSE = 1e-4  # tolerance, relative to the largest magnitude of an output
_MOST_LINES = 8  # from a condition to its `raise`

Place = tuple[str, int]
"""A source file and a line number."""
Decide = Callable[[Place, Callable[[], bool]], bool]
"""Returns the way to take at a place; its second argument computes the value of the condition."""


@dataclass(frozen=True)
class Branches:
    """The way taken at each place, and the places where the other way raises."""

    ways: Mapping[Place, bool]
    checks: frozenset[Place]

    def __str__(self) -> str:
        kinds = (
            ("a shortcut that changes no output is not taken", self.ways.keys() - self.checks),
            ("a check of values is left out", self.checks),
        )
        return "; ".join(
            f"{what}: {', '.join(sorted(f'{Path(file).name}:{line}' for file, line in places))}"
            for what, places in kinds
            if places
        )


class _Loop(BaseException):
    """A condition is evaluated too often. As a `BaseException`, it escapes the handlers of models."""


def find_branches(run: Callable[[Feeds], Outputs], samples: Sequence[Feeds]) -> Branches | None:
    """Return the ways that are right for every sample, or None if a place needs both ways or no place exists.

    `run` returns the outputs of the original. Each sample first runs without force, to record its ways.
    """
    try:
        unforced = [_record_ways(run, feeds) for feeds in samples]
    except _Loop:
        return None
    places = list(dict.fromkeys(place for _, seen in unforced for place in seen))
    if not places or len(places) > _MOST_PLACES:
        return None

    def raises_or_differs(ways: Mapping[Place, bool], place: Place, way: bool) -> str:
        for feeds, (outputs, seen) in zip(samples, unforced, strict=True):
            if place in seen and seen[place] == {way}:
                continue
            try:
                with forced_ways(ways):
                    forced = run(feeds)
            except _Loop:
                return "differs"
            except Exception as error:  # a check may raise any type
                return "raises" if _raised_at(error, place) else "differs"
            if not _outputs_agree(forced, outputs):
                return "differs"
        return ""

    ways: dict[Place, bool] = {}
    checks: set[Place] = set()
    for place in places:
        seen = set().union(*(values.get(place, set()) for _, values in unforced))
        order = [way for way in (False, True) if way not in seen] + sorted(seen)
        problems = {}
        for way in order:
            problems[way] = raises_or_differs({**ways, place: way}, place, way)
            if not problems[way]:
                break
        else:
            return None
        if len(seen) == 1 and way in seen:
            if problems[not way] != "raises":
                return None  # no sample takes the other way, which changes the outputs
            checks.add(place)
        ways[place] = way
    return Branches(ways, frozenset(checks))


def _raised_at(error: BaseException, place: Place) -> bool:
    """Return whether `raise` or `assert` raised an exception, a few lines behind the condition at `place`."""
    while error.__cause__ is not None:
        error = error.__cause__
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code, line = last.tb_frame.f_code, last.tb_lineno
    is_near = code.co_filename == place[0] and 0 <= line - place[1] <= _MOST_LINES
    return is_near and code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]


@contextmanager
def forced_ways(ways: Mapping[Place, bool]) -> Iterator[None]:
    """Force these ways in the block, whatever the values are."""
    evaluations: dict[Place, int] = {}

    def decide(place: Place, compute: Callable[[], bool]) -> bool:
        if place not in ways:
            return compute()
        evaluations[place] = evaluations.get(place, 0) + 1
        if evaluations[place] > _MOST_VALUES:
            raise _Loop
        return ways[place]

    with _intercept_bools(decide):
        yield


def _record_ways(run: Callable[[Feeds], Outputs], feeds: Feeds) -> tuple[Outputs, dict[Place, set[bool]]]:
    """Return the outputs on a sample, and the ways that it takes at each place."""
    seen: dict[Place, set[bool]] = {}
    count = 0

    def decide(place: Place, compute: Callable[[], bool]) -> bool:
        nonlocal count
        count += 1
        if count > _MOST_VALUES:
            raise _Loop
        value = compute()
        seen.setdefault(place, set()).add(value)
        return value

    with _intercept_bools(decide):
        return run(feeds), seen


@contextmanager
def _intercept_bools(decide: Decide) -> Iterator[None]:
    """Call `decide` wherever a tensor of one value, or a comparison of two tensors, becomes a Python bool."""
    torch = import_torch()

    def asking(original: Any, *, of_bools: bool) -> Any:
        def decided(*arguments: Any, **options: Any) -> Any:
            first, place = arguments[0], _place(sys._getframe(1))
            if not of_bools or (first.dtype == torch.bool and first.numel() == 1):
                return decide(place, lambda: original(*arguments, **options))
            value = original(*arguments, **options)
            # Python compares this number; during a capture it is a symbol.
            return _number(decide, value) if type(value) in (int, float) else value

        return decided

    def of_symbol(original: Any) -> Any:
        return lambda symbol: decide(_place(sys._getframe(1)), lambda: original(symbol))

    tensor = torch.Tensor
    with ExitStack() as stack:
        for owner, name in (
            (tensor, "__bool__"), (tensor, "item"), (tensor, "equal"), (tensor, "allclose"),
            (torch, "equal"), (torch, "allclose"), (torch.SymBool, "__bool__"),
        ):  # fmt: skip
            original = getattr(owner, name)
            if owner is torch.SymBool:
                form = of_symbol(original)
            else:
                form = asking(original, of_bools=name in ("__bool__", "item"))
            if name in vars(owner):
                stack.callback(setattr, owner, name, vars(owner)[name])
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, form)
        yield


def _place(frame: FrameType) -> Place:
    return frame.f_code.co_filename, frame.f_lineno


def _number(decide: Decide, value: Any) -> Any:
    """Return a copy of a number that calls `decide` when a comparison becomes a bool."""

    class Truth:
        def __init__(self, value: bool) -> None:
            self.value = value

        def __bool__(self) -> bool:
            return decide(_place(sys._getframe(1)), lambda: self.value)

    def comparing(name: str) -> Any:
        def compare(self: Any, other: Any) -> Any:
            result = getattr(type(value), name)(self, other)
            return result if result is NotImplemented else Truth(result)

        return compare

    names = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
    methods = {name: comparing(name) for name in names} | {"__hash__": type(value).__hash__}
    return type("Number", (type(value),), methods)(value)


def _outputs_agree(outputs: Outputs, expected: Outputs) -> bool:
    return len(outputs) == len(expected) and all(
        output.shape == other.shape
        and np.allclose(output, other, rtol=0, atol=_CLOSE * np.abs(other).max(initial=0), equal_nan=True)
        if other.dtype.kind == "f"
        else np.array_equal(output, other)
        for output, other in zip(outputs, expected, strict=True)
    )
