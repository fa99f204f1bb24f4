"""What a built engine is run on: the user's data, and random input at the shapes of its profiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...model.input_domain import read_domains
from ...model.random_input import random_feeds
from ...model.weightless import read_weightless
from ...tensors import Feeds
from ..base import BuildOutcome, BuildRequest

_CHEAP_TIMES, _CHEAP_ELEMENTS = 4, 1 << 20
"""The largest shapes are tried where they have so many times the elements of OPT at most, and so many at all:
ONNX Runtime computes them, too, unoptimized and on the processor."""


@dataclass(frozen=True)
class TrialInput:
    """One input, and what it is in words: "the data", "random input at OPT"."""

    words: str
    feeds: Feeds


def trial_inputs(outcome: BuildOutcome, request: BuildRequest) -> list[TrialInput]:
    """Return the user's first batch, where there is one, then random input at OPT of every profile, and at
    its smallest and largest shapes where these are cheap; one random input where no shape is dynamic.

    Args:
        outcome: Of the build; its proof holds the profiles.
        request: What was built.
    """
    domains = read_domains(read_weightless(Path(request.model)).model)
    data = {} if request.sample is None else _as_declared(request.sample, outcome)
    found = [TrialInput("the data", data)] if data else []
    seen: list[Any] = []
    for seed, (words, given) in enumerate(_places(outcome.proof["profiles"])):
        if given in seen:
            continue
        seen.append(given)
        shapes, values = _shapes_and_values(outcome, given)
        feeds = random_feeds(outcome.io.inputs, seed=seed, shapes=shapes, domains=domains)
        found.append(TrialInput(words, {**feeds, **values}))
    return found


def _as_declared(sample: Feeds, outcome: BuildOutcome) -> Feeds:
    """A batch with the float types that the engine's inputs were given; {} where it cannot be had."""
    feeds: Feeds = {}
    for tensor in outcome.io.inputs:
        array = sample.get(tensor.name)
        if array is None:
            return {}
        if array.dtype.kind == "f" and array.dtype.name != tensor.dtype:
            if tensor.dtype not in ("float16", "float32", "float64"):
                return {}
            array = array.astype(tensor.dtype)
        feeds[tensor.name] = array
    return feeds


def _places(profiles: Any) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Where to try: words, and the extents of each dynamic input there."""
    if not profiles:
        yield "random input", {}
    for index, ranges in enumerate(profiles):
        of = f" of profile {index}" if len(profiles) > 1 else ""
        opt, smallest, largest = ({name: tuple(kinds[kind]) for name, kinds in ranges.items()}
                                  for kind in ("opt", "min", "max"))  # fmt: skip
        yield f"random input at OPT{of}", opt
        if all(0 not in extents for extents in smallest.values()):
            yield f"random input at MIN{of}", smallest
        if _elements(largest) <= min(_CHEAP_TIMES * _elements(opt), _CHEAP_ELEMENTS):
            yield f"random input at MAX{of}", largest


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(extents) for extents in shapes.values())


def _shapes_and_values(
    outcome: BuildOutcome, given: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], Feeds]:
    """The shapes of dynamic inputs, and the values of inputs that hold shapes."""
    held = {tensor.name: tensor for tensor in outcome.io.inputs if not tensor.dynamic_axes}
    values = {
        name: np.array(extents, held[name].dtype).reshape([int(dim) for dim in held[name].shape])
        for name, extents in given.items()
        if name in held
    }
    return {name: extents for name, extents in given.items() if name not in held}, values
