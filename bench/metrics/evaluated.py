"""What is kept of the answers of a baseline and of artifacts, of all data or of a part; parts put together.

A part is every so many-th batch. Parts that are put together in the order of the data give what one process
keeps of all batches, bit for bit. The file of a part is a safetensors file (no pickle) with a JSON header:

    batches                 [batches] int64: their numbers in the data
    0.table                 [rows, columns]: what the metric keeps, of the first artifact
    0.rows, 0.units         [units], [batches] int64: rows of each unit, units of each batch
    1.difference.0          [batches, 15] float64: `OutputSums.figures` of the first output
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...calibration.checksum import checksum
from ...errors import ArtifactError, DataError, first_line
from ...files import require_file
from .accuracy import ScoreSums, Tally
from .metric import Metric, Scored, joined
from .running_difference import FIGURES, OutputSums, RunningDifference

VERSION = 2
_KEY = "qcompile"
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


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


@dataclass(frozen=True)
class _Entry:
    """One artifact of a file: its precision, its tally, the outputs that were compared, shapes that differ.

    `mismatches` is output to the batch, counted in the file, to the shapes.
    """

    precision: str
    samples: _Count = 0
    same: _Count = 0
    predictions: _Count = 0
    outputs: tuple[str, ...] = ()
    mismatches: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Header:
    """What lies under the metadata key `qcompile`; files of one evaluation hold the same `of`."""

    version: int
    of: dict[str, Any]
    base: str
    part: _Positive
    parts: _Positive
    artifacts: dict[str, _Entry]
    checksum: str
    metric: str = ""


def header_schema() -> dict[str, Any]:
    """Return the JSON Schema of the header."""
    return msgspec.json.schema(_Header)


def merge(parts: Sequence[Evaluated], metric: Metric | None) -> Evaluated:
    """Return what one process keeps of all data.

    Args:
        parts: Every part of one evaluation once, in any order.
        metric: What they were scored with.

    Raises:
        DataError: If a part is missing or there twice, or parts differ in their baseline or precisions.
    """
    parts = sorted(parts, key=lambda part: part.part)
    first = parts[0]
    if [part.part for part in parts] != list(range(1, first.parts + 1)):
        there = ", ".join(str(part.part) for part in parts)
        raise DataError(f"parts {there} of an evaluation in {first.parts}; each of them once is required")
    if any((part.base, part.parts) != (first.base, first.parts) for part in parts):
        raise DataError("parts of different evaluations; parts of one are required")
    order = sorted((number, at) for at, part in enumerate(parts) for number in part.batches)
    if [number for number, _ in order] != list(range(len(order))):
        raise DataError("parts of an evaluation lack batches, or hold some twice; each once is required")
    merged = Evaluated(first.base, batches=[number for number, _ in order])
    for name, answers in first.answers.items():
        if not all(name in part.answers for part in parts):
            continue  # it failed on a part of the data
        of_parts = [part.answers[name] for part in parts]
        if {one.precision for one in of_parts} != {answers.precision}:
            raise DataError(f"parts of an evaluation differ in the precision of {name!r}")
        merged.answers[name] = _joined(of_parts, [at for _, at in order], metric)
    return merged


def _joined(parts: Sequence[Answers], order: Sequence[int], metric: Metric | None) -> Answers:
    """The answers of an artifact; `order` says of which part each batch is, in the order of the data."""
    answers = Answers(parts[0].precision)
    if metric is not None:
        answers.sums = ScoreSums(metric)
        sums = [part.sums for part in parts if part.sums is not None]
        scored = [iter(part.scored) for part in sums]
        answers.sums.include((next(scored[at]) for at in order), Tally())
        for part in sums:
            answers.sums.include((), part.tally)
    differences = [iter(part.difference.batches) for part in parts if part.difference is not None]
    if differences:
        answers.difference = RunningDifference(answers.precision)
        for at in order:
            answers.difference.include(next(differences[at]))
    return answers


def save_scores(evaluated: Evaluated, of: Mapping[str, Any], path: Path) -> None:
    """Write a part of an evaluation to `path` (inside `files.writing`); equal evaluations give equal bytes.

    Args:
        evaluated: Of a part of the data.
        of: What was evaluated: metric, inputs, ...; JSON that tells whether others may go on with it.
        path: The file.
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {"batches": np.array(evaluated.batches, np.int64)}
    entries = {}
    for index, (name, answers) in enumerate(evaluated.answers.items()):
        tally = answers.sums.tally if answers.sums is not None else Tally()
        if answers.sums is not None and answers.sums.scored:
            table = joined(answers.sums.scored)
            units = [scored.units for scored in answers.sums.scored]
            arrays |= {f"{index}.table": table.table, f"{index}.rows": _whole(table.counts)}
            arrays[f"{index}.units"] = _whole(units)
        batches = answers.difference.batches if answers.difference else []
        outputs = tuple(batches[0]) if batches else ()
        mismatches: dict[str, dict[str, str]] = {}
        for at, output in enumerate(outputs):
            sums = [batch[output] for batch in batches]
            arrays[f"{index}.difference.{at}"] = np.array([one.figures() for one in sums], np.float64)
            if told := {str(number): one.mismatch for number, one in enumerate(sums) if one.mismatch}:
                mismatches[output] = told
        entries[name] = msgspec.to_builtins(
            _Entry(answers.precision, tally.samples, tally.same, tally.predictions, outputs, mismatches)
        )
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {
        "version": VERSION, "of": dict(of), "metric": _metric_of(evaluated), "base": evaluated.base,
        "part": evaluated.part, "parts": evaluated.parts, "artifacts": entries,
    }  # fmt: skip
    header["checksum"] = checksum(header, arrays)
    path.write_bytes(save(arrays, metadata={_KEY: json.dumps(header)}))


def _metric_of(evaluated: Evaluated) -> str:
    """Its name; of a user's function without the folder, which is another on each machine."""
    sums = (answers.sums for answers in evaluated.answers.values() if answers.sums is not None)
    return next((Path(one.metric.name).name for one in sums), "")


def read_subject(path: Path) -> dict[str, Any]:
    """Return what a file says that was evaluated (`save_scores`).

    Raises:
        MissingFile, ArtifactError: As `load_scores`.
    """
    return _read(path)[0].of


def load_scores(path: Path, metric: Metric | None) -> Evaluated:
    """Read a file, scored by this metric.

    Raises:
        MissingFile: If it is not there.
        ArtifactError: If it is damaged, was changed, is of another version or of another metric.
    """
    header, arrays = _read(path)
    try:
        if metric is not None and header.metric != Path(metric.name).name:
            raise ValueError(f"it was scored by {header.metric or 'no metric'}")
        batches = arrays["batches"].tolist()
        first = header.part - 1
        if batches != list(range(first, first + len(batches) * header.parts, header.parts)):
            raise ValueError("its batches are not those of its part")
        evaluated = Evaluated(header.base, header.part, header.parts, batches)
        for index, (name, entry) in enumerate(header.artifacts.items()):
            answers = evaluated.answers[name] = Answers(entry.precision)
            if metric is not None:
                answers.sums = ScoreSums(metric)
                tally = Tally(entry.samples, entry.same, entry.predictions)
                answers.sums.include(_scored(index, arrays, len(batches)), tally)
            if name != header.base:
                answers.difference = _difference(entry, index, arrays, len(batches))
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise _damaged(path, error) from error
    return evaluated


def _read(path: Path) -> tuple[_Header, dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    require_file(path, what="evaluation")
    try:
        with safe_open(path, framework="np") as file:
            plain = json.loads((file.metadata() or {})[_KEY])
            if plain["version"] != VERSION:
                raise ArtifactError(
                    f"{path}: evaluation of version {plain['version']}; this qcompile reads {VERSION}",
                    hint="evaluate again",
                    file=path,
                )
            header = msgspec.convert(plain, _Header)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if header.checksum != checksum(plain, arrays):
            raise ValueError("it was changed")
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError, OSError) as error:
        raise _damaged(path, error) from error
    return header, arrays


def _damaged(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{path}: not an evaluation, or cut off ({first_line(error)})", hint="evaluate again", file=path
    )


def _scored(index: int, arrays: Mapping[str, NDArray[Any]], batches: int) -> list[Scored]:
    """What each batch keeps: `units` of them, of so many `rows` each."""
    if not batches:
        return []
    table, rows, units = (arrays[f"{index}.{name}"] for name in ("table", "rows", "units"))
    ends = np.cumsum(units)
    if len(units) != batches or ends[-1] != len(rows) or rows.sum() != len(table):
        raise ValueError("its scores are not those of its batches")
    counts = np.split(_whole(rows), ends[:-1])
    tables = np.split(table, np.cumsum([part.sum() for part in counts])[:-1])
    return [Scored(*pair) for pair in zip(tables, counts, strict=True)]


def _difference(
    entry: _Entry, index: int, arrays: Mapping[str, NDArray[Any]], batches: int
) -> RunningDifference:
    figures = [arrays[f"{index}.difference.{at}"] for at in range(len(entry.outputs))]
    if any(one.shape != (batches, FIGURES) for one in figures) or (batches and not figures):
        raise ValueError("its differences are not those of its batches")
    difference = RunningDifference(entry.precision, keep=True)
    for number, rows in enumerate(zip(*(one.tolist() for one in figures), strict=True)):
        told = {output: entry.mismatches.get(output, {}).get(str(number), "") for output in entry.outputs}
        difference.include(
            {
                output: OutputSums.of_figures(output, row, told[output])
                for output, row in zip(entry.outputs, rows, strict=True)
            }
        )
    return difference


def _whole(numbers: Any) -> NDArray[np.int64]:
    array = np.asarray(numbers, np.int64)
    if (array < 0).any():
        raise ValueError("its counts are no whole numbers")
    return array
