"""What the data tells: which samples calibrate, which are evaluated, how many there are, and the labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...data.archive import read_rows
from ...data.batches import Data
from ...data.readers import LABELS
from ...errors import DataError, QCompileError
from ...model.source import parse_source
from ...model.user_code import call, load_function
from ...progress import Progress
from ...tensors import Feeds, TensorInfo
from .model_facts import seen_from, spelled_from

Labels = Literal["none", "classes", "maps", "values", "texts", "boxes", "tokens"]
PARTS = ("calibration", "evaluation")


@dataclass(frozen=True)
class DataFacts:
    """What a proposal follows from.

    Attributes:
        calibration: Samples to calibrate on; empty for none.
        evaluation: Samples to evaluate on; empty for none.
        shared: How one set serves both: "" for two sets, "divided", or "same" where it cannot be divided.
        samples: Of the evaluation; None where only reading them all would tell.
        labels: Kind of the labels of the evaluation.
        classes: One more than the largest label that was looked at; 0 where labels are no classes.
    """

    calibration: str = ""
    evaluation: str = ""
    shared: str = ""
    samples: int | None = None
    labels: Labels = "none"
    classes: int = 0


def look_at_data(
    data: str,
    calibration: str,
    evaluation: str,
    inputs: Sequence[TensorInfo],
    *,
    progress: Progress,
) -> DataFacts:
    """Look at the samples that serve a model.

    Args:
        data: A DATA spelling that serves both; empty for none.
        calibration, evaluation: Spellings in place of it; empty for those of `data`.
        inputs: The model's.
        progress: Told of every step.

    Raises:
        DataError, MissingFile, InvalidOption: If the data is not there or does not fit the model.
    """
    progress("look at the data")
    divided = bool(data) and can_be_divided(data) and not (calibration or evaluation)
    parts = [divide(data, part) if divided else data for part in PARTS]
    chosen = calibration or parts[0], evaluation or parts[1]
    shared = "" if chosen[0] != chosen[1] and not divided else "divided" if divided else "same"
    if not any(chosen):
        return DataFacts()
    read = Data(chosen[1] or chosen[0], inputs, limit=_looked_at(inputs))
    first = next(iter(read))
    if chosen[0] and chosen[0] != chosen[1]:
        next(iter(Data(chosen[0], inputs, limit=_looked_at(inputs))))
    kind, classes = _labels(first.labels) if chosen[1] else ("none", 0)
    return DataFacts(
        chosen[0],
        chosen[1],
        shared if all(chosen) else "",
        Data(chosen[1], inputs).total if chosen[1] else None,
        kind,
        classes,
    )


def first_sample(spec: str, names: Sequence[str]) -> Feeds | None:
    """Return the first sample of arrays or of a function by input name, with the axis of samples.

    Args:
        spec: A DATA spelling.
        names: Of the arguments that the model requires, in order.

    Raises:
        DataError, MissingFile: If the data is not there, or cannot be read.
    """
    if is_function(spec):
        return _of_function(spec, names)
    path = Path(spec).expanduser()
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.npz"))), path)
    if path.suffix != ".npz" or not path.is_file():
        return None
    arrays = next(read_rows(path, 1), {})
    return {name: array for name, array in arrays.items() if name != LABELS} or None


def is_function(spec: str) -> bool:
    """Whether a spelling is `file.py:function`."""
    head, colon, last = spec.rpartition(":")
    return bool(colon and last.isidentifier() and (head.endswith(".py") or "." in head))


def can_be_divided(spec: str) -> bool:
    """Whether one set can be divided in two: all but what a function yields."""
    return not is_function(spec) and False


def divide(spec: str, part: str) -> str:
    """Return the spelling of a part of a set."""
    return f"{spec}{'&' if '?' in spec else '?'}part={part}"


def _of_function(spec: str, names: Sequence[str]) -> Feeds | None:
    source = parse_source(spec)
    result = call(load_function(source), source)
    try:
        item = next(iter(itertools.islice(result, 1)), None)
    except QCompileError:
        raise
    except Exception as error:
        raise DataError(f"{spec}: raised {type(error).__name__} at its first sample: {error}") from error
    if item is None:
        return None
    if isinstance(item, Mapping):
        return {str(name): _array(value) for name, value in item.items() if name != LABELS}
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) == len(names) + 1:
        values.pop()  # the labels
    if len(values) != len(names):
        return None
    return {name: _array(value) for name, value in zip(names, values, strict=True)}


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _looked_at(inputs: Sequence[TensorInfo]) -> int:
    """One batch of a model that takes one size only; some samples of another."""
    fixed = [int(one.shape[0]) for one in inputs if one.shape and isinstance(one.shape[0], int)]
    return max(16, *fixed) if fixed else 16


def _labels(labels: Any) -> tuple[Labels, int]:
    """The kind of a batch's labels, and one more than the largest class."""
    import numpy as np

    if labels is None:
        return "none", 0
    array = np.asarray(labels)
    if array.dtype.kind in "US":
        return "texts", 0
    if array.dtype.kind not in "iub":
        return ("boxes" if array.ndim == 3 and array.shape[2] >= 5 else "values"), 0
    classes = int(array.max(initial=0)) + 1
    kinds: dict[int, Labels] = {1: "classes", 2: "tokens", 3: "maps"}
    if array.ndim == 2 and array.shape[1] == 1:
        return "classes", classes
    return kinds.get(array.ndim, "values"), classes


def relocated(spec: str, folder: Path) -> str:
    """Return a spelling as a file in `folder` has it."""
    if not spec:
        return ""
    if is_function(spec):
        return spelled_from(parse_source(spec), folder)
    return seen_from(folder, Path(spec).expanduser())
