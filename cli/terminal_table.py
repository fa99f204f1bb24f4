"""A table that fits its terminal: texts wrap, and columns are left out before a figure is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..core.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

_LONGEST_FIGURE = 24
_LARGEST_WORD = 1 / 3


@dataclass
class TerminalTable:
    """A table of plain text, laid out when it is printed.

    Names and texts wrap at spaces; a word longer than a third of the terminal is split. Other columns are
    never narrower than their cells.

    Attributes:
        texts: Columns of words, by position; the first column always is. A longer cell than
            `_LONGEST_FIGURE` makes its column a text, too, but does not align it to the left.
        spare: Titles in the order in which they are left out; after them, columns from the right.
        compact: Whether only spaces separate the columns.
    """

    title: str
    columns: Sequence[str]
    texts: Sequence[int] = ()
    spare: Sequence[str] = ()
    compact: bool = False
    rows: list[list[str]] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        widths = self._fit(options.max_width)
        table = Table(title=Text(plain(self.title)) if self.title else None, title_justify="left")
        table.header_style = "bold"
        if self.compact:
            table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
        for index, width in widths.items():
            justify: Literal["left", "right"] = "left" if index == 0 or index in self.texts else "right"
            table.add_column(
                Text(plain_cell(self.columns[index])), justify=justify, width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(Text(row[index]) for index in widths if index < len(row)))
        yield table
        omitted = [" ".join(title.split()) for i, title in enumerate(self.columns) if i not in widths]
        if omitted:
            names = ", ".join(map(plain, omitted))
            yield Text(f"{options.max_width} columns are too few for {names}; --json prints all")

    def _fit(self, width: int) -> dict[int, int]:
        """Return the width of each column to show, by its position."""
        cells = [
            [plain_cell(title), *(row[index] for row in self.rows if index < len(row))]
            for index, title in enumerate(self.columns)
        ]
        widest = {index: _longest(column, "\n") for index, column in enumerate(cells)}
        word = max(int(width * _LARGEST_WORD), 1)
        least = {
            index: min(_longest(column, None), word)
            if index in (0, *self.texts) or widest[index] > _LONGEST_FIGURE
            else widest[index]
            for index, column in enumerate(cells)
        }
        spare = [self.columns.index(title) for title in self.spare if title in self.columns]
        spare += [index for index in reversed(range(1, len(cells))) if index not in spare]
        gap, frame = (2, -1) if self.compact else (3, 1)
        while sum(least.values()) + gap * len(least) + frame > width and len(least) > 1:
            del least[spare.pop(0)]
        widths = {index: widest[index] for index in least}
        for _ in range(sum(widths.values()) + gap * len(widths) + frame - width):
            index = max(widths, key=lambda index: (widths[index] > least[index], widths[index]))
            widths[index] = max(widths[index] - 1, 1)
        return widths


def _longest(cells: Sequence[str], separator: str | None) -> int:
    from rich.cells import cell_len

    return max((cell_len(part) for cell in cells for part in cell.split(separator)), default=1)


def plain_cell(text: str) -> str:
    """Return a cell with everything but its line breaks made plain."""
    return "\n".join(map(plain, text.split("\n")))
