"""Extents to trace dynamic axes with: given, from the example, from the data, or defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidOption
from ..tensors import Feeds, TensorInfo
from .input_notes import AxisRange

BATCH = 2  # 0 and 1 are specialized by torch.export: a dynamic axis must be traced with 2 or more
RUNGS = ((64, 16), (224, 64), (32, 8), (128, 128), (256, 512), (64, 2048), (384, 16000), (2, 2))
"""Extents (of images, of lengths) where only names of axes are known; the next where the model raises."""

_IMAGE = re.compile(r"(?i)(.*_)?(h|w|height|width|rows|columns)")
_LENGTH = re.compile(r"(?i)(.*_)?(t|time|l|len|length|seq|sequence|seq_len|tokens|frames|samples)")


@dataclass(frozen=True)
class Extents:
    """Axis name to extent.

    Attributes:
        of: The extents.
        guessed: Names whose extents are of `RUNGS`: neither given, nor of an example, nor of data.
    """

    of: Mapping[str, int]
    guessed: frozenset[str]


def asked_ranges(inputs: Sequence[TensorInfo]) -> dict[str, AxisRange]:
    """Return axis name to the range that the spelling of the inputs asks for."""
    ranges: dict[str, AxisRange] = {}
    for tensor in inputs:
        for said in tensor.extents:
            name = tensor.shape[said.axis]
            if not isinstance(name, str):
                continue  # an axis that got a number since
            known = ranges.get(name, AxisRange())
            limits = [limit for limit in (known.maximum, said.maximum) if limit is not None]
            ranges[name] = AxisRange(max(known.minimum, said.minimum), min(limits, default=None))
    for name, wide in ranges.items():
        if wide.maximum is not None and wide.maximum < wide.minimum:
            raise InvalidOption(
                f"axis {name!r}: from {wide.minimum} in one input to {wide.maximum} in another; one axis has "
                "one range"
            )
    return {name: wide for name, wide in ranges.items() if wide != AxisRange()}


def traced_extents(
    inputs: Sequence[TensorInfo],
    numbers: Mapping[tuple[str, int], int],
    values: Sequence[Feeds],
    rung: int = 0,
) -> Extents:
    """Return the extents to trace with, 2 or more each, within the ranges that were asked for.

    Args:
        inputs: What the model takes; dynamic axes by name.
        numbers: (input, axis) to the number that stood there before `--dynamic` named the axis.
        values: Arrays of inputs, the most telling first: of the example, of the data.
        rung: Which of `RUNGS` serves where nothing is known.
    """
    given: dict[str, int] = {}
    for tensor in inputs:
        for said in tensor.extents:
            name = tensor.shape[said.axis]
            if said.traced is None or not isinstance(name, str):
                continue
            if given.setdefault(name, said.traced) != said.traced:
                raise InvalidOption(
                    f"axis {name!r}: traced with {given[name]} in one input, {said.traced} in another; "
                    "one axis has one extent"
                )
    for (tensor_name, axis), number in numbers.items():
        tensor = next(tensor for tensor in inputs if tensor.name == tensor_name)
        given.setdefault(str(tensor.shape[axis]), max(number, BATCH))
    for feeds in values:
        for tensor in inputs:
            array = feeds.get(tensor.name)
            if array is not None and array.ndim == len(tensor.shape):
                for axis, name in tensor.dynamic_axes.items():
                    given.setdefault(name, max(int(array.shape[axis]), BATCH))
    ranges = asked_ranges(inputs)
    guessed: set[str] = set()
    for tensor in inputs:
        for axis, name in tensor.dynamic_axes.items():
            if name not in given:
                given[name] = _usual(tensor, axis, name, rung)
                if given[name] != BATCH:
                    guessed.add(name)
            given[name] = max(ranges.get(name, AxisRange()).nearest(given[name]), BATCH)
    return Extents(given, frozenset(guessed))


def _usual(tensor: TensorInfo, axis: int, name: str, rung: int) -> int:
    image, length = RUNGS[rung]
    if _IMAGE.fullmatch(name):
        return image
    if _LENGTH.fullmatch(name):
        return length
    if axis == 0:
        return BATCH
    return image if "float" in tensor.dtype and len(tensor.shape) >= 4 and axis >= 2 else length
