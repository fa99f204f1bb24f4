"""Turn labels as files spell them into numbers: whole numbers, names of classes, or scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError
from .images.folder import class_numbers

IGNORED = -100
"""Label of a token that has none."""

_MOST_DIGITS = 18  # of an int64


@dataclass(frozen=True)
class Labels:
    """The labels of a set.

    Attributes:
        values: One per sample: an int, a float, or a list of ints.
        notes: How names were numbered, where that may be wrong.
    """

    values: Sequence[Any]
    notes: list[str] = field(default_factory=list)


def read_labels(
    values: Sequence[Any],
    classes: Sequence[str],
    *,
    where: Callable[[int], str],
    names: Sequence[str] = (),
) -> Labels:
    """Read labels.

    Whole numbers are classes, and so are names (`class_numbers` numbers them); where a label is a number with
    a fraction, all are scores. A list has one label for each word.

    Args:
        values: As the file has them; numbers may be texts.
        classes: The model's names of its classes.
        where: Says where a sample is.
        names: Names that numbers stand for, where the data set has them.

    Raises:
        DataError: Naming the sample whose label is missing or of another type.
    """
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    for index, value in enumerate(values):
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, str | int | float) or one == "":
                raise DataError(
                    f"{where(index)}: label {one!r}; a number or a name is required", sample=index
                )
    if names and not any(isinstance(one, str) for one in flat):
        return _named(values, names, classes)
    numbers = _whole_numbers(flat)
    if numbers is not None:
        return Labels(_mapped(values, numbers))
    scores = _scores(flat)
    if scores is not None:
        return Labels(_mapped(values, scores))
    texts = [str(one) for one in flat]
    found, notes = class_numbers(texts, classes, what="labels")
    return Labels(_mapped(values, {one: found[str(one)] for one in flat}), notes)


def _named(values: Sequence[Any], names: Sequence[str], classes: Sequence[str]) -> Labels:
    """Numbers of the data set's own classes; in the model's order where it has the same names."""
    order = {number: number for number in range(len(names))}
    notes: list[str] = []
    if classes:
        found, notes = class_numbers(names, classes, what="labels")
        if not notes:
            order = {number: found[name] for number, name in enumerate(names)}
    return Labels(_mapped(values, {**order, IGNORED: IGNORED, -1: -1}), notes)


def _mapped(values: Sequence[Any], to: dict[Any, Any]) -> list[Any]:
    return [[to[one] for one in value] if isinstance(value, list) else to[value] for value in values]


def _whole_numbers(flat: Sequence[Any]) -> dict[Any, int] | None:
    numbers: dict[Any, int] = {}
    for one in set(flat):
        text = str(int(one)) if isinstance(one, bool) else str(one).strip()
        if not text.removeprefix("-").isdigit() or not text.isascii() or len(text) > _MOST_DIGITS:
            return None
        numbers[one] = int(text)
    return numbers


def _scores(flat: Sequence[Any]) -> dict[Any, float] | None:
    try:
        return {one: float(one) for one in set(flat)}
    except (ValueError, OverflowError):
        return None
