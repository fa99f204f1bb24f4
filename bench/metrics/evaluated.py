"""What is kept of the answers of a baseline and of artifacts, of all data or of a part; parts put together.

A part is every so many-th batch. Parts that are put together in the order of the data give what one process
keeps of all batches, bit for bit: records and sums are taken up batch by batch, as they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...errors import DataError
from .accuracy import ScoreSums
from .metric import Metric
from .running_difference import RunningDifference

Part = TypeVar("Part")


@dataclass
class Answers:
    """Of one artifact.

    Attributes:
        precision: The artifact's, see `RunningDifference`.
        sums: Its scores; None without a metric.
        difference: From the baseline's outputs; None of the baseline itself.
    """

    precision: str
    sums: ScoreSums | None = None
    difference: RunningDifference | None = None


@dataclass
class Evaluated:
    """Of a baseline and of artifacts that were given the same batches.

    Attributes:
        base: Name of the baseline.
        part, parts: Which part of the data, from 1, of so many.
        batches: Numbers of the batches, from 0.
        answers: Name to what is kept; the baseline first, and no artifact that failed.
    """

    base: str
    part: int = 1
    parts: int = 1
    batches: list[int] = field(default_factory=list)
    answers: dict[str, Answers] = field(default_factory=dict)

    def holds(self, batch: int) -> bool:
        """Whether a batch of the data, counted from 0, belongs to this part."""
        return batch % self.parts == self.part - 1


def merge(found: Sequence[Evaluated], metric: Metric | None) -> Evaluated:
    """Return what one process keeps of all data.

    Args:
        found: Every part of one evaluation once, in any order.
        metric: What they were scored with.

    Raises:
        DataError: If a part is missing or there twice, or parts differ in their baseline or precisions.
    """
    found = sorted(found, key=lambda one: one.part)
    first = found[0]
    _require_all_parts(found)
    order = sorted((number, at) for at, one in enumerate(found) for number in one.batches)
    merged = Evaluated(first.base, batches=[number for number, _ in order])
    for name, answers in first.answers.items():
        if not all(name in one.answers for one in found):
            continue  # it failed on a part of the data
        parts = [one.answers[name] for one in found]
        if {one.precision for one in parts} != {answers.precision}:
            raise DataError(f"parts of an evaluation differ in the precision of {name!r}")
        merged.answers[name] = _joined(parts, [at for _, at in order], metric)
    return merged


def _require_all_parts(found: Sequence[Evaluated]) -> None:
    first = found[0]
    if [one.part for one in found] != list(range(1, first.parts + 1)):
        there = ", ".join(str(one.part) for one in found)
        raise DataError(f"parts {there} of an evaluation in {first.parts}; each of them once is required")
    if any((one.base, one.parts) != (first.base, first.parts) for one in found):
        raise DataError("parts of different evaluations; parts of one are required")
    numbers = sorted(number for one in found for number in one.batches)
    if numbers != list(range(len(numbers))):
        raise DataError("parts of an evaluation lack batches, or hold some twice; each once is required")


def _joined(parts: Sequence[Answers], order: Sequence[int], metric: Metric | None) -> Answers:
    """The answers of an artifact; `order` says of which part each batch is, in the order of the data."""
    joined = Answers(parts[0].precision)
    if metric is not None:
        joined.sums = ScoreSums(metric)
        sums = [one.sums for one in parts if one.sums is not None]
        joined.sums.include(_in_order([one.scored for one in sums], order), sums[0].tally)
        for one in sums[1:]:
            joined.sums.include((), one.tally)
    differences = [one.difference for one in parts if one.difference is not None]
    if differences:
        joined.difference = RunningDifference(joined.precision)
        for batch in _in_order([one.batches for one in differences], order):
            joined.difference.include(batch)
    return joined


def _in_order(parts: Sequence[Sequence[Part]], order: Sequence[int]) -> list[Part]:
    """What each part says of its batches, in the order of the data."""
    following = [iter(part) for part in parts]
    return [next(following[at]) for at in order]
