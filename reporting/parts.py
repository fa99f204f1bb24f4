"""Parts of a section: charts with captions, tables, lists, blocks of text to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .source import ReportedArtifact


@dataclass(frozen=True)
class Drawn:
    """A chart, as HTML, with its words: a title and what to read from it."""

    chart: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a smaller line below, the artifact whose sign stands before it."""

    text: str
    below: str = ""
    subject: ReportedArtifact | None = None
    tone: str = ""


def row_of(subject: ReportedArtifact, *texts: str) -> list[Cell]:
    """Return an artifact and figures of it."""
    return [Cell(subject.label, subject=subject), *map(Cell, texts)]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: What it shows.
        columns: Headers.
        rows: Cells; as many as columns.
        words: Columns whose cells are words; the others are figures, aligned on the right.
        folded: Whether it is shown only when it is asked for.
        narrow: Whether its rows are names with values, close to each other.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = (0,)
    folded: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Block:
    """Text to be copied."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        lead: What it says, in a sentence or two.
        charts, tables, blocks: In that order.
        signs: Artifacts whose numbers and signs the charts use.
        precisions: Whether the colours of precisions are explained.
        items: Lines of a list.
        pairs: Whether charts stand two beside each other.
        lines: Name of a line to its colour and its dashes, as SVG spells them.
        missing: Why there is nothing; the section is then one line at the end of the page.
        name, title: Its anchor and its heading, which `page.sections` knows.
    """

    lead: str = ""
    charts: Sequence[Drawn] = ()
    tables: Sequence[Table] = ()
    blocks: Sequence[Block] = ()
    signs: Sequence[ReportedArtifact] = ()
    precisions: bool = False
    items: Sequence[str] = ()
    pairs: bool = False
    lines: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    missing: str = ""
    name: str = ""
    title: str = ""
