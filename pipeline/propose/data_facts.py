"""What the data tells: which samples calibrate, which are evaluated, how many there are, and the labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...bench.metrics.metric import Truth
from ...bench.metrics.names import choose
from ...data.arrays import map_arrays
from ...data.batches import Data
from ...data.readers import LABELS, Batch
from ...data.spelling import FUNCTION, Spelling, parse_spelling
from ...errors import DataError, QCompileError
from ...model.source import parse_source
from ...model.user_code import beside, call, load_function
from ...progress import Progress
from ...spec.first_use import ProposalOptions
from ...tensors import Feeds, TensorInfo
from .model_facts import seen_from, spelled_from

PARTS = ("calibration", "evaluation")


@dataclass(frozen=True)
class DataFacts:
    """What a proposal follows from.

    Attributes:
        calibration, evaluation: Samples to calibrate and to evaluate on; empty for none.
        shared: How one set serves both: "" for two sets, "divided", or "same" where it cannot be divided.
        kind: Of the evaluation: "images", "jsonl", "function", ...
        samples: Of the evaluation; None where only reading them all would tell.
        metric, why_metric: The one that fits labels and outputs, and why.
        notes: What the user should know of how it is read.
    """

    calibration: str = ""
    evaluation: str = ""
    shared: str = ""
    kind: str = ""
    samples: int | None = None
    has_labels: bool = False
    metric: str = ""
    why_metric: str = ""
    notes: tuple[str, ...] = ()


def look_at_data(
    asked: ProposalOptions,
    inputs: Sequence[TensorInfo],
    outputs: Mapping[str, Sequence[int | str]],
    *,
    progress: Progress,
) -> DataFacts:
    """Look at the samples that serve a model: `calibration` and `evaluation` are in place of `data`."""
    progress("look at the data")
    divided = _is_divided(asked)
    parts = [divide(asked.data, part) if divided else asked.data for part in PARTS]
    calibration, evaluation = asked.calibration or parts[0], asked.evaluation or parts[1]
    for spec in {calibration, evaluation} - {evaluation, ""}:
        next(iter(Data(spec, inputs, limit=_looked_at(inputs))))
    if not evaluation:
        return DataFacts(calibration)
    read = Data(evaluation, inputs, limit=_looked_at(inputs))
    first = next(iter(read))
    shared = "divided" if divided else "same" if calibration == evaluation else ""
    metric, why = _metric(first, inputs, outputs)
    return DataFacts(
        calibration,
        evaluation,
        shared,
        read.spelling.kind,
        Data(evaluation, inputs).total,
        first.labels is not None,
        metric,
        why,
        tuple(read.notes()),
    )


def _is_divided(asked: ProposalOptions) -> bool:
    """Whether one set is divided between calibration and evaluation: all but what a function yields."""
    if not asked.data or asked.calibration or asked.evaluation:
        return False
    spelling = parse_spelling(asked.data)
    return spelling.kind != FUNCTION and "part" not in spelling.query


def _metric(
    batch: Batch, inputs: Sequence[TensorInfo], outputs: Mapping[str, Sequence[int | str]]
) -> tuple[str, str]:
    """The metric that `auto` would choose on the first batch, and why: of the outputs only shapes count."""
    import numpy as np

    shapes = {
        name: (batch.samples, *(extent if isinstance(extent, int) else 1 for extent in shape[1:]))
        for name, shape in outputs.items()
    }
    made = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return choose(made, Truth(batch.labels, batch.samples, batch.where), inputs)


def first_sample(spec: str, names: Sequence[str]) -> Feeds | None:
    """Return the first sample of arrays or of a function by input name, with the axis of samples.

    `names` are the arguments that the model requires, in order.
    """
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        return _of_function(spelling.path, names)
    path = Path(spelling.path).expanduser()
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.npz"))), path)
    if path.suffix == ".npz" and path.is_file():
        return {name: array[:1] for name, array in map_arrays(path).items() if name != LABELS} or None
    return _of_images(spelling, names)


def _of_images(spelling: Spelling, names: Sequence[str]) -> Feeds | None:
    """An image of the extents that the spelling's `preprocessing` has; None where it says nothing."""
    import numpy as np

    from ...model.load import find_preprocessing
    from ...model.preprocessing import ImagePreprocessing

    said = spelling.query.get("preprocessing")
    found = find_preprocessing(said) if said else None
    if not isinstance(found, ImagePreprocessing) or len(names) != 1:
        return None
    return {names[0]: np.zeros((1, found.channels, found.height, found.width), np.float32)}


def divide(spec: str, part: str) -> str:
    """Return the spelling of a part of a set."""
    spelling = parse_spelling(spec)
    return str(replace(spelling, query={**spelling.query, "part": part}))


def _of_function(spec: str, names: Sequence[str]) -> Feeds | None:
    source = parse_source(spec)
    result = call(load_function(source), source)
    try:
        with beside(source):
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


def relocated(spec: str, folder: Path) -> str:
    """Return a spelling as a file in `folder` has it."""
    if not spec:
        return ""
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        return spelled_from(parse_source(spelling.path), folder)
    whole = spelling.located(Path.cwd())
    return str(replace(whole, path=seen_from(folder, Path(whole.path))))
