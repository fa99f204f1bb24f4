"""The file of an evaluation of a part of the data: a safetensors file (no pickle) with a JSON header.

It holds all that `merge` needs to go on exactly: of each batch its number, the statistics or records of its
samples and the difference of its outputs; of the part, counts. Equal evaluations give equal bytes.

    batches                 [batches] int64: their numbers in the data
    0.units                 [batches] int64: statistics or records in each batch, of the first artifact
    0.statistics            [units, ...] float64
    0.record.1              [rows, ...]: the second array of all records, one record behind the other
    0.record.1.rows         [units] int64: of each record
    0.by_class              [classes, 3] float64
    1.difference.0          [batches, 15] float64: `OutputSums.figures` of the first output
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...calibration.checksum import checksum
from ...errors import ArtifactError, first_line
from ...files import require_file
from .accuracy import ScoreSums, Tally
from .evaluated import Answers, Evaluated
from .metric import Metric, RecordMetric, Scored
from .running_difference import FIGURES, OutputSums, RunningDifference

VERSION = 1
_KEY = "qcompile"
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Entry:
    """One artifact.

    Attributes:
        precision: Its own.
        samples: How many were scored.
        same: How many predictions equal the baseline's.
        predictions: How many were compared with the baseline's.
        outputs: Names of the outputs that were compared; none of the baseline's.
        mismatches: Output to the batch, counted in the file, to the shapes that differ.
        records: Arrays of a record; 0 where there are statistics, or nothing.
    """

    precision: str
    samples: _Count = 0
    same: _Count = 0
    predictions: _Count = 0
    outputs: tuple[str, ...] = ()
    mismatches: dict[str, dict[str, str]] = field(default_factory=dict)
    records: _Count = 0


@dataclass(frozen=True)
class _Header:
    """What lies under the metadata key `qcompile`.

    Attributes:
        version: Of the format.
        of: What was evaluated: metric, inputs, data; files of one evaluation hold the same.
        base: Name of the baseline.
        part, parts: Which part of the data this is, from 1, and how many there are.
        artifacts: Name to what its arrays mean.
        checksum: "sha256:..." of header and arrays.
    """

    version: int
    of: dict[str, Any]
    base: str
    part: _Positive
    parts: _Positive
    artifacts: dict[str, _Entry]
    checksum: str


def header_schema() -> dict[str, Any]:
    """Return the JSON Schema of the header."""
    return msgspec.json.schema(_Header)


def save_scores(found: Evaluated, of: Mapping[str, Any], path: Path) -> None:
    """Write what was found to `path` (inside `files.writing`).

    Args:
        found: Of a part of the data.
        of: What was evaluated: metric, inputs, ...; JSON that tells whether others may go on with it.
        path: The file.
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {"batches": np.array(found.batches, np.int64)}
    entries = {}
    for index, (name, answers) in enumerate(found.answers.items()):
        entry, own = _packed(answers)
        entries[name] = msgspec.to_builtins(entry)
        arrays |= {f"{index}.{key}": np.ascontiguousarray(array) for key, array in own.items()}
    header = {
        "version": VERSION,
        "of": dict(of),
        "base": found.base,
        "part": found.part,
        "parts": found.parts,
        "artifacts": entries,
    }
    header["checksum"] = checksum(header, arrays)
    path.write_bytes(save(arrays, metadata={_KEY: json.dumps(header)}))


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
        batches = _whole(arrays["batches"]).tolist()
        if batches != list(
            range(header.part - 1, header.part - 1 + len(batches) * header.parts, header.parts)
        ):
            raise ValueError("its batches are not those of its part")
        answers = {
            name: _unpacked(entry, _of(index, arrays), len(batches), metric, is_base=name == header.base)
            for index, (name, entry) in enumerate(header.artifacts.items())
        }
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise _damaged(path, error) from error
    return Evaluated(header.base, header.part, header.parts, batches, answers)


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


def _packed(answers: Answers) -> tuple[_Entry, dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {}
    tally, records = Tally(), 0
    if answers.sums is not None:
        tally = answers.sums.tally
        records = _pack_scored(answers.sums, arrays)
        if tally.by_class is not None:
            arrays["by_class"] = tally.by_class
    batches = answers.difference.batches if answers.difference else []
    outputs = tuple(batches[0]) if batches else ()
    mismatches: dict[str, dict[str, str]] = {}
    for index, output in enumerate(outputs):
        sums = [batch[output] for batch in batches]
        arrays[f"difference.{index}"] = np.array([one.figures() for one in sums], np.float64)
        told = {str(number): one.mismatch for number, one in enumerate(sums) if one.mismatch}
        mismatches |= {output: told} if told else {}
    entry = _Entry(
        answers.precision, tally.samples, tally.same, tally.predictions, outputs, mismatches, records
    )
    return entry, arrays


def _pack_scored(sums: ScoreSums, arrays: dict[str, NDArray[Any]]) -> int:
    """Add statistics or records to the arrays; returns of how many arrays a record is."""
    metric, scored = sums.metric, sums.scored
    arrays["units"] = np.array([one.units for one in scored], np.int64)
    if not scored:
        return 0
    if not isinstance(metric, RecordMetric):
        arrays["statistics"] = sums.statistics
        return 0
    records = [metric.arrays_of(record) for one in scored for record in one.records]
    for index, column in enumerate(zip(*records, strict=True)):
        arrays[f"record.{index}"] = np.concatenate(column)
        arrays[f"record.{index}.rows"] = np.array([len(one) for one in column], np.int64)
    return len(records[0]) if records else 0


def _of(index: int, arrays: _Arrays) -> _Arrays:
    """The arrays of one artifact."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): one for name, one in arrays.items() if name.startswith(prefix)}


def _unpacked(entry: _Entry, own: _Arrays, batches: int, metric: Metric | None, *, is_base: bool) -> Answers:
    answers = Answers(entry.precision)
    if metric is not None:
        answers.sums = ScoreSums(metric)
        by_class = own.get("by_class")
        if by_class is not None and (by_class.dtype != np.float64 or by_class.shape[1:] != (3,)):
            raise ValueError("its classes are no counts")
        tally = Tally(entry.samples, entry.same, entry.predictions, by_class)
        answers.sums.include(_unpack_scored(entry, own, batches, metric), tally)
    if not is_base:
        answers.difference = _difference(entry, own, batches)
    return answers


def _unpack_scored(entry: _Entry, own: _Arrays, batches: int, metric: Metric) -> list[Scored]:
    units = _whole(own["units"])
    if len(units) != batches:
        raise ValueError(f"{len(units)} batches are scored; {batches} are required")
    ends = np.cumsum(units)
    if not batches:
        return []
    if not isinstance(metric, RecordMetric):
        statistics = own["statistics"]
        if statistics.dtype != np.float64 or statistics.ndim not in (2, 3) or len(statistics) != ends[-1]:
            raise ValueError("its statistics are not those of its batches")
        return [Scored(part) for part in np.split(statistics, ends[:-1])]
    columns = [_rows(own[f"record.{at}"], own[f"record.{at}.rows"]) for at in range(entry.records)]
    records = [metric.record_of(arrays) for arrays in zip(*columns, strict=True)]
    if len(records) != ends[-1]:
        raise ValueError("its records are not those of its batches")
    return [Scored(records=records[end - count : end]) for end, count in zip(ends, units, strict=True)]


def _rows(joined: NDArray[Any], rows: NDArray[Any]) -> list[NDArray[Any]]:
    ends = np.cumsum(_whole(rows))
    if (ends[-1] if len(ends) else 0) != len(joined):
        raise ValueError("its records are cut off")
    return np.split(joined, ends[:-1])


def _difference(entry: _Entry, own: _Arrays, batches: int) -> RunningDifference:
    figures = [own[f"difference.{at}"] for at in range(len(entry.outputs))]
    if any(one.shape != (batches, FIGURES) or one.dtype != np.float64 for one in figures):
        raise ValueError("its differences are not those of its batches")
    if batches and not figures:
        raise ValueError("it compares no output")
    # Sums of squares are not below zero, and no more rows agree than there are.
    if any(
        (one[:, :2] < 0).any() or (one[:, 7] < 0).any() or (one[:, 7] > one[:, 8]).any() for one in figures
    ):
        raise ValueError("its differences are none of outputs")
    difference = RunningDifference(entry.precision, keep=True)
    for number, rows in enumerate(zip(*(one.tolist() for one in figures), strict=True)):
        difference.include(
            {
                output: OutputSums.of_figures(
                    output, row, entry.mismatches.get(output, {}).get(str(number), "")
                )
                for output, row in zip(entry.outputs, rows, strict=True)
            }
        )
    return difference


def _whole(array: NDArray[Any]) -> NDArray[np.int64]:
    """Counts or numbers, one behind the other."""
    if array.dtype != np.int64 or array.ndim != 1 or (array < 0).any():
        raise ValueError("its counts are no whole numbers")
    return array
