"""What accuracy means to the user: top1, top5, cosine similarity, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bench.accuracy import TOP_K, top_k
from ..bench.metrics_values import cosine
from ..errors import DataError, InvalidOption
from ..model.source import parse_source
from ..model.user_code import call, load_function

Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Metric:
    """A number of which more is better.

    Attributes:
        name: As the user spelled it.
        unit: What a drop is counted in.
        needs_labels: Whether the samples must have labels.
        value: Outputs of each batch, labels of each batch and the float model's outputs, to the number.
    """

    name: str
    unit: str
    needs_labels: bool
    value: Callable[[Sequence[Outputs], Sequence[NDArray[Any]], Sequence[Outputs]], float]


def read_metric(text: str) -> Metric:
    """Return the metric of a spelling.

    "top1" and "top5" are percent of the samples; "cosine" is 100 times the mean over samples of the cosine
    between the outputs and the float model's. "file.py:function" is called with the outputs (name to
    array, all samples together) and the labels (None without), and returns a number.

    Raises:
        InvalidOption: If it is none of these.
    """
    if text in TOP_K:
        k = TOP_K[text]
        return Metric(
            text, "points", True,
            lambda outputs, labels, _: 100 * top_k([next(iter(o.values())) for o in outputs], labels, k),
        )  # fmt: skip
    if text == "cosine":
        return Metric(text, "points", False, lambda outputs, _, reference: 100 * _cosine(outputs, reference))
    if ":" not in text:
        known = ", ".join((*TOP_K, "cosine"))
        raise InvalidOption(f"metric {text!r} is unknown; known are {known} and file.py:function")
    source = parse_source(text)
    function = load_function(source)

    def own(outputs: Sequence[Outputs], labels: Sequence[NDArray[Any]], _: Sequence[Outputs]) -> float:
        together = {name: _together(name, [one[name] for one in outputs]) for name in outputs[0]}
        known = np.concatenate(labels) if labels else None
        found = call(lambda: function(together, known), source)  # type: ignore[call-arg]
        if not isinstance(found, int | float | np.number) or not np.isfinite(found):
            raise DataError(f"metric {text}: returned {found!r}; a finite number is required")
        return float(found)

    return Metric(text, "units", False, own)


def _together(name: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One array of all samples."""
    for array in arrays:
        _require_samples(name, array)
    if len({array.shape[1:] for array in arrays}) > 1:
        shapes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise DataError(f"output {name!r} is of shapes {shapes}; all but the first axis must be equal")
    return np.concatenate(arrays)


def _require_samples(name: str, array: NDArray[Any]) -> None:
    if not array.ndim:
        raise DataError(
            f"output {name!r} is one number for a whole batch; a first axis of samples is required"
        )


def _cosine(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    values: list[float] = []
    for found, expected in zip(outputs, reference, strict=True):
        for name, array in expected.items():
            _require_samples(name, array)
            a = array.reshape(len(array), -1).astype(np.float64)
            b = found[name].reshape(len(array), -1).astype(np.float64)
            values += list(cosine(b, a))
    return float(np.mean(values))
