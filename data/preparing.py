"""Which preprocessing the samples of a spelling get: the spelling's own, else the model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import DataError, InvalidOption
from ..model.preprocessing import Preprocessing, preprocessing_of
from ..model.preprocessing_fit import fit_preprocessing
from ..model.preprocessing_names import find_preprocessing
from ..model.preprocessing_presets import PRESETS
from ..tensors import TensorInfo, format_shape
from .spelling import Spelling

Kind = TypeVar("Kind", bound=Preprocessing)


def preprocessing_for(
    inputs: Sequence[TensorInfo], spelling: Spelling, kind: type[Kind], *, what: str, names: str
) -> Kind:
    """Return how samples become the model's inputs.

    Args:
        inputs: The model's.
        spelling: Its key `preprocessing` decides, where it is given.
        kind: What suits the samples.
        what: The samples, for messages: "images".
        names: What the key may be, for the hint.

    Raises:
        InvalidOption: If nobody says how, or what they say is for other samples.
        DataError: If the model has no input of the name that it is for.
    """
    named = spelling.query.get("preprocessing", "")
    own = preprocessing_of(inputs)
    said = find_preprocessing(named) if named else own
    if said is None:
        raise InvalidOption(
            f"data {spelling.spec!r}: how {what} become the model's inputs is not known",
            hint=f"add ?preprocessing={names}, or export with `preprocessing`",
            option="preprocessing",
        )
    if not isinstance(said, kind):
        raise InvalidOption(f"data {spelling.spec!r}: the model takes {said.kind}, and these are {what}")
    if not named:
        return said
    fitted = next(iter(fit_preprocessing(said, inputs).values()))
    assert isinstance(fitted, kind)
    # The classes are those of the model's outputs: how CIFAR is prepared does not make them CIFAR's.
    theirs = () if named in PRESETS else fitted.classes
    own_classes, own_task = (own.classes, own.task) if own else ((), "")
    return replace(fitted, classes=own_classes or theirs, task=own_task or fitted.task)


def require_image_input(inputs: Sequence[TensorInfo], name: str, spec: str) -> TensorInfo:
    """Return the input that images become.

    Raises:
        DataError: If it is not there, or takes no images.
    """
    shapes = ", ".join(f"{one.name}:{format_shape(one.shape)}:{one.dtype}" for one in inputs) or "none"
    for one in inputs:
        if one.name == name and len(one.shape) == 4 and one.dtype in ("float32", "float16"):
            return one
    raise DataError(
        f"data {spec!r}: input {name!r} of four axes, float32 or float16, is required for images; "
        f"the model's inputs are {shapes}",
        hint="give the samples as arrays (.npz) or by a function",
        tensor=name,
    )
