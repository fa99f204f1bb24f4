"""Run the model to export in PyTorch: in evaluation mode, without caches, on its example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...data.batches import Data
from ...errors import ExportError, ModelError, first_line
from ...model.example import Example, examples, flat_outputs, make_example
from ...model.extents import RUNGS
from ...model.outputs import ForeignOutput, flat_tensors
from ...model.preprocessing import Preprocessing
from ...model.pytorch import LoadedModel
from ...progress import quiet
from ...tensors import Feeds, TensorInfo, format_shape
from ..check import Outputs
from .preprocessing import with_preprocessing

TRAINING_MODE = "the model was in training mode; it is exported in evaluation mode"


@dataclass
class Original:
    """A loaded model with an example that it runs on.

    Attributes:
        loaded: The model.
        label: Its spelling, for messages.
        example: What it is traced with.
        reference: What it returned on the example.
        others: Examples with other extents, where the extents were made up.
        data: The first feeds of the user's data, if there is any.
        samples: All of them.
        warnings: What the user should know of how it is run.
    """

    loaded: LoadedModel
    label: str
    example: Example
    reference: Any
    others: Sequence[Example] = ()
    data: Feeds | None = None
    samples: Data | None = None
    warnings: list[str] = field(default_factory=list)

    def outputs(self, feeds: Feeds) -> Outputs:
        """Run the model.

        Raises:
            ModelError: With what it raised, and which input was made up.
        """
        return flat_outputs(run(self.loaded, self.example, feeds, self.label))[1]

    def take(self, example: Example) -> bool:
        """Take another example in place of the first; False where the model raises on it."""
        try:
            self.reference = run(self.loaded, example, example.feeds, self.label)
        except ModelError:
            return False
        self.example = example
        return True

    def is_random(self, feeds: Feeds) -> bool:
        """Whether two runs on the same feeds differ."""
        first, second = self.outputs(feeds), self.outputs(feeds)
        return any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


@contextmanager
def open_original(
    loaded: LoadedModel,
    label: str,
    inputs: Sequence[str | TensorInfo],
    dynamic: Sequence[str],
    data: str | None,
    preprocessing: Preprocessing | None = None,
) -> Iterator[Original]:
    """Find an example that the model runs on; caches are off in the block where the model returns one.

    The data is read as `preprocessing` says, or as the model itself does without one.

    Raises:
        InvalidOption: If inputs are not known, or wrong.
        ModelError: If the model raises on each example.
        ExportError: If it returns what is no tensor.
    """
    first = make_example(loaded, inputs, dynamic)
    samples = Data(data, with_preprocessing(first.inputs, preprocessing)) if data is not None else None
    feeds = next(iter(samples)).feeds if samples is not None else None
    tried = examples(loaded, inputs, dynamic, feeds) if feeds is not None or first.guessed else [first]
    example, reference = _first_that_runs(loaded, tried, label)
    others = tried[[one is example for one in tried].index(True) + 1 :]
    warnings = [*loaded.warnings, *([TRAINING_MODE] if loaded.was_training else [])]
    switched: list[Any] = []
    try:
        try:
            flat_tensors(reference)
        except ForeignOutput as error:
            switched = _caching(loaded.module)
            if not switched:
                raise ExportError(f"{label}: {error.message}", hint=error.hint, **error.data) from error
            for config in switched:
                config.use_cache = False
            reference = run(loaded, example, example.feeds, label)
            _require_tensors(reference, label)
            warnings.append("the model returns a cache; it is exported with use_cache=False")
        yield Original(loaded, label, example, reference, others, feeds, samples, warnings)
    finally:
        for config in switched:
            config.use_cache = True


@contextmanager
def kept_mode(module: Any) -> Iterator[None]:
    """Leave a module in the mode that it was in, part by part."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def run(loaded: LoadedModel, example: Example, feeds: Feeds, label: str) -> Any:
    """Return what the model returns on feeds.

    Raises:
        ModelError: If it raises; the message names the input that was made up.
    """
    try:
        with quiet():
            return example.call(loaded.module, feeds)
    except Exception as error:
        made = [f"{name} ({format_shape(feeds[name].shape)})" for name in feeds if name in example.made]
        where = f"random input {', '.join(made)}" if made else "its input"
        hint = "check the shapes and dtypes of `inputs` against forward()"
        if made:
            hint = (
                "return (module, example) from the function, give `data`, or give `inputs` with extents that "
                "suit the model, such as x:[batch,3,height=64,width=64]"
            )
        raise ModelError(
            f"{label}: raised {type(error).__name__} on {where}: {first_line(error)}", hint=hint
        ) from error


def _first_that_runs(loaded: LoadedModel, tried: Sequence[Example], label: str) -> tuple[Example, Any]:
    refused: ModelError | None = None
    for example in tried:
        try:
            return example, run(loaded, example, example.feeds, label)
        except ModelError as error:
            refused = refused or error
    assert refused is not None
    if len(tried) > 1:
        others = ", ".join(f"{image}/{length}" for image, length in RUNGS[1:])
        refused.message += f" (nor does it run with other extents, of images/of lengths: {others})"
    raise refused


def _caching(module: Any) -> list[Any]:
    """Configurations of a model or its parts that have it return a cache."""
    configs = [getattr(part, "config", None) for part in module.modules()]
    caching = {id(config): config for config in configs if getattr(config, "use_cache", None) is True}
    return list(caching.values())


def _require_tensors(reference: Any, label: str) -> None:
    try:
        flat_tensors(reference)
    except ForeignOutput as error:
        raise ExportError(f"{label}: {error.message}", hint=error.hint, **error.data) from error
