"""Optimization profiles: the shapes a dynamic input may have, checked before the build starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidOption
from ...shapes import TensorInfo, fill_dynamic, format_shape
from ..base import BuildRequest, Shapes

_DEFAULT_OPT, _DEFAULT_MAX = 8, 16


@dataclass(frozen=True)
class InputRange:
    """Shapes of one dynamic input."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


def make_ranges(inputs: Sequence[TensorInfo], request: BuildRequest) -> list[InputRange]:
    """Return a range for every dynamic input.

    A shape that is not given follows from those that are: min from opt, opt from max or min, max from
    opt. An input whose only dynamic axis is the first gets 1, 8 and 16 when nothing is given.

    Raises:
        InvalidOption: Naming the input: unknown, of the wrong rank, not within its neighbours, or dynamic
            in other axes than the first and without any shape.
    """
    names = {tensor.name: tensor for tensor in inputs}
    given = {"min": request.min_shapes, "opt": request.opt_shapes, "max": request.max_shapes}
    for kind, shapes in given.items():
        for name, shape in shapes.items():
            _check_given(kind, name, shape, names)
    return [_range(tensor, given) for tensor in inputs if tensor.dynamic_axes]


def _check_given(kind: str, name: str, shape: tuple[int, ...], names: dict[str, TensorInfo]) -> None:
    if name not in names:
        raise InvalidOption(f"--{kind}-shapes: no input {name!r}; the inputs are {', '.join(names)}")
    if not names[name].accepts(shape):
        raise InvalidOption(
            f"input {name!r}: {kind} shape {format_shape(shape)} does not fit "
            f"{format_shape(names[name].shape)}"
        )


def _range(tensor: TensorInfo, given: dict[str, Shapes]) -> InputRange:
    low, opt, high = (given[kind].get(tensor.name) for kind in ("min", "opt", "max"))
    if low is None and opt is None and high is None:
        if set(tensor.dynamic_axes) != {0}:
            raise InvalidOption(
                f"input {tensor.name!r}: axes {sorted(tensor.dynamic_axes)} of "
                f"{format_shape(tensor.shape)} are dynamic and no shapes are given",
                hint="give --min-shapes, --opt-shapes and --max-shapes",
            )
        low, opt, high = (fill_dynamic(tensor, n) for n in (1, _DEFAULT_OPT, _DEFAULT_MAX))
    opt = opt or high or low
    assert opt is not None
    low, high = low or opt, high or opt
    for smaller, larger, words in ((low, opt, ("min", "opt")), (opt, high, ("opt", "max"))):
        if any(a > b for a, b in zip(smaller, larger, strict=True)):
            raise InvalidOption(
                f"input {tensor.name!r}: {words[0]} shape {format_shape(smaller)} is above "
                f"{words[1]} {format_shape(larger)}",
                hint=f"raise --{words[1]}-shapes or lower --{words[0]}-shapes",
            )
    return InputRange(tensor.name, low, opt, high)
