"""Preprocessing and class numbers of samples: the spelling's own, else the model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import DataError, InvalidOption
from ..model.load import find_preprocessing
from ..model.preprocessing import PRESETS, Preprocessing, fit_preprocessing, preprocessing_of
from ..tensors import TensorInfo
from .spelling import Spelling

IGNORED = -100
"""Label of a token that has none."""
_MOST_DIGITS = 18  # of an int64

Kind = TypeVar("Kind", bound=Preprocessing)


def preprocessing_for(
    inputs: Sequence[TensorInfo], spelling: Spelling, kind: type[Kind], *, what: str, names: str
) -> Kind:
    """Return how samples become the model's inputs: by the key `preprocessing`, else as the model says.

    `kind` suits the samples, `what` names them for messages ("images"), `names` says what the key may be.
    """
    named = spelling.query.get("preprocessing", "")
    of_model = preprocessing_of(inputs)
    preprocessing = find_preprocessing(named) if named else of_model
    if preprocessing is None:
        raise InvalidOption(
            f"data {spelling.spec!r}: how {what} become the model's inputs is not known",
            hint=f"add ?preprocessing={names}, or export with `preprocessing`",
            option="preprocessing",
        )
    if not isinstance(preprocessing, kind):
        raise InvalidOption(
            f"data {spelling.spec!r}: the model takes {preprocessing.kind}, and these are {what}"
        )
    if not named:
        return preprocessing
    fitted = next(iter(fit_preprocessing(preprocessing, inputs).values()))
    assert isinstance(fitted, kind)
    # The classes are those of the model's outputs: how CIFAR is prepared does not make them CIFAR's.
    named_classes = () if named in PRESETS else fitted.classes
    classes, task = (of_model.classes, of_model.task) if of_model else ((), "")
    return replace(fitted, classes=classes or named_classes, task=task or fitted.task)


def class_numbers(
    names: Sequence[str], classes: Sequence[str], *, what: str = "folders"
) -> tuple[dict[str, int], list[str]]:
    """Return the number of each class's name, and what to tell of it.

    1. Where the model's classes are known and hold every name, in any case and with `_` for a space, or as
       one of the synonyms between commas, they number the names.
    2. Names that are all whole numbers are the numbers themselves.
    3. Else names are numbered in sorted order, as torchvision's ImageFolder does; told where the model has
       another number of classes.
    """
    names = sorted(set(names))
    synonyms: dict[str, set[int]] = {}
    for number, text in enumerate(classes):
        for name in {_plain(text), *(_plain(part) for part in text.split(","))}:
            synonyms.setdefault(name, set()).add(number)
    known = {name: min(numbers) for name, numbers in synonyms.items() if len(numbers) == 1}
    strangers = [name for name in names if _plain(name) not in known]
    if known and not strangers:
        return {name: known[_plain(name)] for name in names}, []
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return {name: int(name) for name in names}, []
    notes = [
        f"{what} are numbered in sorted order: {len(strangers)} of {len(names)} names, as {strangers[0]!r}, "
        f"are none of the model's {len(classes)} classes, as {classes[0]!r}"
    ] if classes else []  # fmt: skip
    return {name: number for number, name in enumerate(names)}, notes


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


def read_labels(
    values: Sequence[Any], classes: Sequence[str], *, where: Callable[[int], str], names: Sequence[str] = ()
) -> tuple[list[Any], list[str]]:
    """Return labels as numbers, and what to tell of them.

    Whole numbers are classes, and so are names (`class_numbers` numbers them); where a label is a number with
    a fraction, all are scores. A list has one label for each word. Numbers may be texts, as files have them.
    `classes` are the model's; `names` those that numbers stand for, where the data set has them.
    """
    distinct = set()
    for index, value in enumerate(values):
        for label in value if isinstance(value, list) else [value]:
            if not isinstance(label, str | int | float) or label == "":
                raise DataError(
                    f"{where(index)}: label {label!r}; a number or a name is required", sample=index
                )
            distinct.add(label)
    numbers, notes = _label_numbers(distinct, classes, names)
    return [
        [numbers[label] for label in value] if isinstance(value, list) else numbers[value] for value in values
    ], notes


def _label_numbers(
    labels: set[Any], classes: Sequence[str], names: Sequence[str]
) -> tuple[dict[Any, Any], list[str]]:
    if names and not any(isinstance(label, str) for label in labels):
        named, notes = class_numbers(names, classes, what="labels") if classes else ({}, [])
        order = {n: n if notes or not classes else named[name] for n, name in enumerate(names)}
        return {IGNORED: IGNORED, -1: -1, **order}, notes
    texts = {label: str(int(label) if isinstance(label, bool) else label).strip() for label in labels}
    if all(
        text.isascii() and text.removeprefix("-").isdigit() and len(text) <= _MOST_DIGITS
        for text in texts.values()
    ):
        return {label: int(text) for label, text in texts.items()}, []
    try:
        return {label: float(label) for label in labels}, []
    except (ValueError, OverflowError):
        found, notes = class_numbers([str(label) for label in labels], classes, what="labels")
        return {label: found[str(label)] for label in labels}, notes
