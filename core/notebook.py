"""Displays for Jupyter: a bar for the progress of a verb, tables of results, and plots.

`bench/report/notebook.py` makes the tables and plots; it is imported when Jupyter shows the first one.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import EngineUnavailable, InvalidOption, first_line
from .files import check_output, write_text
from .plain_text import plain

_VIEWS = ".bench.report.notebook"
"""Module with the tables and plots."""
_BAR_EVERY_S = 0.2


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class ProgressBar:
    """A `Progress` that shows a bar below the cell; the end of the block removes it."""

    def __init__(self) -> None:
        self._text, self._shown_s = "", 0.0
        self._place: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._show("")

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        now = time.monotonic()
        if text == self._text and now - self._shown_s < _BAR_EVERY_S:
            return
        self._text, self._shown_s = text, now
        state = f' value="{done}" max="{total}"' if total else ""
        count = f" {done}{f' of {total}' if total else ''}" if done or total else ""
        self._show(f"<progress{state}></progress> {html.escape(plain(text))}{count}")

    def _show(self, content: str) -> None:
        from IPython.display import HTML, display

        if self._place is None:
            self._place = display(HTML(content), display_id=True)
        else:
            self._place.update(HTML(content))


@dataclass(frozen=True)
class Plot:
    """A picture, which Jupyter shows and `save` writes to an .svg file."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the picture to an .svg file, and return its path."""
        path = Path(path)
        if path.suffix != ".svg":
            raise InvalidOption(f"`path` {path.name}: .svg is required", option="path")
        check_output(path)
        write_text(path, self.svg)
        return path


def html_of(value: object) -> str:
    """Return the HTML of an artifact, results, ranges, a comparison of `diff`, or a recommendation."""
    text: str = _views().html_of(value)
    return text


def plot_of(value: object, **options: object) -> Plot:
    """Return the picture of ranges or results."""
    return Plot(_views().picture_of(value, **options))


def frame_of(value: object) -> Any:
    """Return a `pandas.DataFrame` of results."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        problem = f"pandas cannot be imported ({first_line(error)})"
        raise EngineUnavailable(problem, hint="pip install pandas", engine="pandas") from error
    titles, rows = _views().flat_rows(value)
    return pandas.DataFrame(rows, columns=titles)


def _views() -> Any:
    return import_module(_VIEWS, (__package__ or "").partition(".")[0])


def html_table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of texts, escaped."""

    def cells(tag: str, texts: Sequence[object]) -> str:
        return "".join(f"<{tag}>{html.escape(plain(text))}</{tag}>" for text in texts)

    head = f"<thead><tr>{cells('th', titles)}</tr></thead>" if titles else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    caption = f"<caption>{html.escape(plain(caption))}</caption>"
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"
