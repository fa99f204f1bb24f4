"""What a report is made of: the results file, and the files of layers, ranges and recipe given with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...artifact import require_file
from ...errors import ArtifactError
from ..accuracy import unit_of
from ..published import published_rows
from ..results import load_results
from .formats import clean, number, shortened

if TYPE_CHECKING:
    from ...calibration.ranges import Ranges

LAYERS_KIND = "qcompile.layers"
LAYERS_VERSION = 1
LONGEST_NAME = 48

Family = Literal["float", "half", "int8", "low", "mixed"]
FAMILIES: dict[Family, str] = {
    "float": "FP32",
    "half": "FP16, BF16",
    "int8": "INT8",
    "low": "FP8, INT4",
    "mixed": "other",
}


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95% interval, None where there is none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Subject:
    """One artifact of the report.

    Attributes:
        number: 1, 2, ...: what charts call it.
        name: Its name.
        is_baseline: Whether the others are compared with it.
        family: Group of its precision, which decides its colour.
        entry: Everything the results file says of it.
        row: Its row of the published table.
        latency_ms: Median; None where it was not measured.
        speedup: Against the baseline; None for the baseline itself and where there is none.
        drop: Of accuracy against the baseline, in `drop_unit`; positive is worse.
        drop_unit: "points", or "units" of the metric.
        size_bytes: File with its side files.
    """

    number: int
    name: str
    is_baseline: bool
    family: Family
    entry: Mapping[str, Any]
    row: Mapping[str, Any]
    latency_ms: float | None
    speedup: Interval | None
    drop: Interval | None
    drop_unit: str
    size_bytes: float | None

    @property
    def label(self) -> str:
        """Its name, as long as a line may be."""
        return shortened(self.name, LONGEST_NAME)

    @property
    def is_measured(self) -> bool:
        """Whether it has a latency that may be shown."""
        return self.entry.get("status") == "measured" and self.latency_ms is not None

    @property
    def verdict(self) -> str:
        """ "faster", "slower", "no difference"; empty where nothing may be said."""
        return str(self.row.get("verdict") or "")

    def part(self, key: str) -> Mapping[str, Any]:
        """Return a mapping of the entry; an empty one where there is none."""
        found = self.entry.get(key)
        return found if isinstance(found, Mapping) else {}

    def parts(self, key: str) -> list[Mapping[str, Any]]:
        """Return a list of mappings of the entry."""
        found = self.entry.get(key)
        return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


@dataclass(frozen=True)
class Layers:
    """The `layers.json` of one `diff --layers`: tensors worst first."""

    file: str
    reference: str
    artifact: str
    first_bad: Mapping[str, Any]
    tensors: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """Everything a report shows, with texts that can be shown."""

    subjects: Sequence[Subject]
    results: Mapping[str, Any]
    layers: Sequence[Layers] = ()
    ranges: Ranges | None = None
    recipe: str | None = None

    @property
    def measured(self) -> list[Subject]:
        """The artifacts with a latency."""
        return [subject for subject in self.subjects if subject.is_measured]

    @property
    def baseline(self) -> Subject | None:
        """What the others are compared with."""
        return next((subject for subject in self.subjects if subject.is_baseline), None)

    def part(self, key: str) -> Mapping[str, Any]:
        """Return a mapping of the results file; an empty one where there is none."""
        found = self.results.get(key)
        return found if isinstance(found, Mapping) else {}


def read_source(
    results_path: Path, *, layers: Sequence[Path] = (), ranges: Path | None = None, recipe: Path | None = None
) -> Source:
    """Read every file of a report.

    Raises:
        MissingFile: If one is not there.
        ArtifactError: If one is not what it should be.
    """
    results = load_results(results_path)
    try:
        facts = clean(results.as_json())
        subjects = _subjects(facts, clean(published_rows(results)))
        text = facts["settings"].get("recipe")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{results_path}: not a results file ({type(error).__name__}: {error})", file=results_path
        ) from error
    if recipe is not None:
        text = clean(require_file(recipe, what="recipe").read_text(encoding="utf-8", errors="replace"))
    return Source(
        subjects,
        facts,
        tuple(_layers(path) for path in layers),
        _ranges(ranges) if ranges is not None else None,
        text if isinstance(text, str) and text.strip() else None,
    )


def family_of(precision: str) -> Family:
    """Return the group of a precision as manifests and layers spell it."""
    name = precision.lower()
    if name in ("fp32", "float32", "float", "tf32", "fp64", "float64", "double"):
        return "float"
    if name in ("fp16", "float16", "half", "bf16", "bfloat16"):
        return "half"
    if name in ("int8", "uint8"):
        return "int8"
    return "low" if name.startswith(("fp8", "float8", "int4", "uint4", "fp4", "float4")) else "mixed"


def _subjects(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Subject]:
    """The artifacts, the baseline first; `rows` are in the same order."""
    ordered = sorted(facts["artifacts"], key=lambda entry: entry["name"] != facts["baseline"])
    return [
        _subject(index, entry, row, entry["name"] == facts["baseline"])
        for index, (entry, row) in enumerate(zip(ordered, rows, strict=True), 1)
    ]


def _subject(index: int, entry: Mapping[str, Any], row: Mapping[str, Any], is_baseline: bool) -> Subject:
    accuracy = entry.get("accuracy") or {}
    return Subject(
        number=index,
        name=str(entry["name"]),
        is_baseline=is_baseline,
        family=family_of(str(entry.get("precision", ""))),
        entry=entry,
        row=row,
        latency_ms=_positive((entry.get("latency_ms") or {}).get("median")),
        speedup=None if is_baseline else _interval(entry.get("speedup") or {}, "value"),
        drop=_interval(accuracy, "drop_points"),
        drop_unit=unit_of(str(accuracy["metric"])) if accuracy.get("metric") else "points",
        size_bytes=_positive(entry.get("size_bytes")),
    )


def _interval(found: Mapping[str, Any], key: str) -> Interval | None:
    value = number(found.get(key))
    return None if value is None else Interval(value, number(found.get("low")), number(found.get("high")))


def _positive(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _layers(path: Path) -> Layers:
    require_file(path, what="layers")
    try:
        value = clean(json.loads(path.read_text(encoding="utf-8")))
        if value["kind"] != LAYERS_KIND or value["schema_version"] != LAYERS_VERSION:
            raise ArtifactError(
                f"{path}: {value['kind']} of version {value['schema_version']}; "
                f"{LAYERS_KIND} of version {LAYERS_VERSION} is required",
                hint="qcompile diff --layers writes it",
                file=path,
            )
        tensors = [{**tensor, "tensor": str(tensor["tensor"])} for tensor in value["tensors"]]
        return Layers(
            path.name, str(value["reference"]), str(value["artifact"]), value["first_bad"] or {}, tensors
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path}: not a file of layers ({type(error).__name__}: {error})",
            hint="qcompile diff --layers writes it",
            file=path,
        ) from error


def _ranges(path: Path) -> Ranges:
    from ...calibration import load_ranges

    return load_ranges(path)
