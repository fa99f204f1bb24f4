"""Read the inputs of a report (results, and files of layers, ranges and recipe); types of its sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...core.figures import clean, shortened
from ...core.files import require_file
from ...spec.measure import Budget
from ..results.render import render
from ..results.results import Results, load_results, read_results
from ..results.row import Interval, Row, Unit
from ..results.statistics import Speedup

if TYPE_CHECKING:
    from ...calibration.ranges import Ranges
    from ..diff.layers.outcome import LayerDiff

NO_BUDGET = Budget()
LONGEST_NAME = 48

Family = Literal["float", "half", "int8", "low", "mixed"]
_PRECISIONS: dict[Family, tuple[str, ...]] = {
    "float": ("fp32", "float32", "float", "tf32", "fp64", "float64", "double"),
    "half": ("fp16", "float16", "half", "bf16", "bfloat16"), "int8": ("int8", "uint8"),
}  # fmt: skip
_LOW = ("fp8", "float8", "mxfp8", "int4", "uint4", "fp4", "float4", "nvfp4")
FAMILIES: dict[Family, str] = {
    "float": "FP32", "half": "FP16, BF16", "int8": "INT8", "low": "FP8, INT4", "mixed": "other",
}  # fmt: skip


@dataclass(frozen=True)
class ReportedArtifact:
    """One artifact of the report; the charts show its number, 1, 2, ..."""

    number: int
    row: Row
    is_baseline: bool

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def label(self) -> str:
        return shortened(self.row.name, LONGEST_NAME)

    @property
    def family(self) -> Family:
        return family_of(self.row.precision)

    @property
    def text(self) -> SimpleNamespace:
        return render(self.row, self.row.name if self.is_baseline else "")

    @property
    def is_measured(self) -> bool:
        return self.row.status == "measured" and self.row.latency is not None

    @property
    def status(self) -> str:
        """State of an artifact that has no latency."""
        return "no latency" if self.row.status == "measured" else self.row.status

    @property
    def latency_ms(self) -> float | None:
        return self.row.latency.median_ms if self.row.latency else None

    @property
    def speedup(self) -> Speedup | None:
        """Speed-up over the baseline; None for the baseline itself or without a comparison."""
        return None if self.is_baseline else self.row.speedup

    @property
    def verdict(self) -> str:
        """ "faster", "slower", "no difference"; empty without a comparison."""
        return self.row.speedup.verdict if self.row.speedup else ""

    @property
    def drop(self) -> Interval | None:
        return self.row.accuracy.drop if self.row.accuracy else None

    @property
    def drop_unit(self) -> Unit:
        return self.row.accuracy.unit if self.row.accuracy else "points"

    @property
    def size_bytes(self) -> int | None:
        return self.row.size_bytes or None


@dataclass(frozen=True)
class ReportSource:
    subjects: Sequence[ReportedArtifact]
    results: Results
    layers: Sequence[tuple[str, LayerDiff]] = ()
    """Name and content of each file of layer differences."""
    ranges: Ranges | None = None
    recipe: str | None = None
    budget: Budget = NO_BUDGET
    """Limits of a recommended artifact."""

    @property
    def measured(self) -> list[ReportedArtifact]:
        return [subject for subject in self.subjects if subject.is_measured]

    @property
    def baseline(self) -> ReportedArtifact | None:
        return next((subject for subject in self.subjects if subject.is_baseline), None)

    def baseline_of(self, subject: ReportedArtifact) -> ReportedArtifact | None:
        """Return the baseline that was measured on the artifact's machine."""
        name = self.results.baseline_of(subject.row)
        return next((other for other in self.subjects if other.name == name), None)


def read_source(
    results_path: Path,
    *,
    layers: Sequence[Path] = (),
    ranges: Path | None = None,
    recipe: Path | None = None,
    budget: Budget = NO_BUDGET,
) -> ReportSource:
    from ...calibration import load_ranges
    from ..diff.layers.outcome import load_layers

    results = read_results(clean(load_results(results_path).as_json()))
    ordered = sorted(results.rows, key=lambda row: row.name != results.baseline)
    subjects = [
        ReportedArtifact(at, row, row.name == results.baseline_of(row)) for at, row in enumerate(ordered, 1)
    ]
    text = results.settings.get("recipe")
    if recipe is not None:
        text = clean(require_file(recipe, what="recipe").read_text(encoding="utf-8", errors="replace"))
    return ReportSource(
        subjects,
        results,
        tuple((path.name, load_layers(path)) for path in layers),
        load_ranges(ranges) if ranges is not None else None,
        text if isinstance(text, str) and text.strip() else None,
        budget,
    )


def compared_layers(source: ReportSource, folder: Path) -> list[tuple[str, LayerDiff]]:
    """Return name and content of each `layers*.json` in a folder that compares an artifact of the report."""
    from ..diff.layers.outcome import load_layers

    files = {path.name: load_layers(path) for path in sorted(folder.glob("layers*.json"))}
    artifacts = {Path(subject.row.artifact).name for subject in source.subjects}
    return [(name, diff) for name, diff in files.items() if Path(diff.artifact).name in artifacts]


def family_of(precision: str) -> Family:
    name = precision.lower()
    family = next((family for family, names in _PRECISIONS.items() if name in names), None)
    return family or ("low" if name.startswith(_LOW) else "mixed")


class Figure(NamedTuple):
    """A chart, as HTML, with its title and a note on how to read it."""

    chart: str
    title: str
    note: str = ""


class Cell(NamedTuple):
    """A cell of a table: its text, a smaller line below, and the artifact of the mark before it."""

    text: str
    below: str = ""
    subject: ReportedArtifact | None = None
    tone: str = ""


def row_of(subject: ReportedArtifact, *texts: str) -> list[Cell]:
    return [Cell(subject.label, subject=subject), *map(Cell, texts)]


class ReportTable(NamedTuple):
    """A table; `words` are the columns without figures, and a `narrow` table has its rows close together."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = (0,)
    folded: bool = False
    narrow: bool = False


class Block(NamedTuple):
    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        signs: Artifacts that the key lists with their numbers; with `precisions`, it explains the colours.
        pairs: Whether charts are arranged in pairs.
        lines: Name of a line to its colour and its dashes, in SVG.
        missing: Reason for an empty section, which becomes one line at the end of the page.
        name, title: Anchor and heading, set by `page.sections`.
    """

    lead: str = ""
    charts: Sequence[Figure] = ()
    tables: Sequence[ReportTable] = ()
    blocks: Sequence[Block] = ()
    signs: Sequence[ReportedArtifact] = ()
    precisions: bool = False
    items: Sequence[str] = ()
    pairs: bool = False
    lines: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    missing: str = ""
    name: str = ""
    title: str = ""
