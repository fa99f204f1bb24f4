"""Read the inputs of a report: results, and the files of layers, ranges and recipe given with it.

Parts of a section: charts with captions, tables, lists, blocks of text to copy.
"""

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
    """One artifact of the report; charts call it by its number, 1, 2, ..."""

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
        """Of one that has no figures."""
        return "no latency" if self.row.status == "measured" else self.row.status

    @property
    def latency_ms(self) -> float | None:
        return self.row.latency.median_ms if self.row.latency else None

    @property
    def speedup(self) -> Speedup | None:
        """Against the baseline; None for the baseline itself and where there is none."""
        return None if self.is_baseline else self.row.speedup

    @property
    def verdict(self) -> str:
        """ "faster", "slower", "no difference"; empty where nothing may be said."""
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
    """Name of each file, and what it holds."""
    ranges: Ranges | None = None
    recipe: str | None = None
    budget: Budget = NO_BUDGET
    """What an artifact may take to be recommended."""

    @property
    def measured(self) -> list[ReportedArtifact]:
        return [subject for subject in self.subjects if subject.is_measured]

    @property
    def baseline(self) -> ReportedArtifact | None:
        return next((subject for subject in self.subjects if subject.is_baseline), None)

    def baseline_of(self, subject: ReportedArtifact) -> ReportedArtifact | None:
        """What one is compared with: the baseline that was measured on its machine."""
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


def family_of(precision: str) -> Family:
    name = precision.lower()
    family = next((family for family, names in _PRECISIONS.items() if name in names), None)
    return family or ("low" if name.startswith(_LOW) else "mixed")


class Drawn(NamedTuple):
    """A chart, as HTML, with its words: a title and what to read from it."""

    chart: str
    title: str
    note: str = ""


class Cell(NamedTuple):
    """A cell of a table: its text, a smaller line below, the artifact whose sign stands before it."""

    text: str
    below: str = ""
    subject: ReportedArtifact | None = None
    tone: str = ""


def row_of(subject: ReportedArtifact, *texts: str) -> list[Cell]:
    return [Cell(subject.label, subject=subject), *map(Cell, texts)]


class ReportTable(NamedTuple):
    """A table; the columns `words` hold no figures, rows of a `narrow` one lie close to each other."""

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
        signs: Artifacts whose numbers the charts use; `precisions` says that their colours are explained.
        pairs: Whether charts stand two beside each other.
        lines: Name of a line to its colour and its dashes, as SVG spells them.
        missing: Why there is nothing; the section is then one line at the end of the page.
        name, title: Its anchor and its heading, which `page.sections` knows.
    """

    lead: str = ""
    charts: Sequence[Drawn] = ()
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
