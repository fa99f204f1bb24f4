"""The cells of docs/tutorial.md: run, compared with the page, and written as a notebook.

    python tests/support/tutorial.py   # runs the cells; renews the page's outputs and docs/tutorial.ipynb

A block of Python is a cell, a block of console commands is a cell that the shell runs. What a cell printed
stands below it, between `<!-- output -->` and `<!-- end of output -->`. A comment `<!-- measured -->` above a
cell says that its output changes from run to run. A block below `<!-- not a cell -->` is left alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE, NOTEBOOK = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial.ipynb"
EXAMPLES = ("digits", "qat")
LONGEST_CELL_S = 240

_CELL = re.compile(
    r"((?:<!-- [\w ]+ -->\n)?)```(python|console)\n(.*?)```\n"
    r"(?:\n<!-- output -->\n```text\n(.*?)\n```\n<!-- end of output -->\n)?",
    re.S,
)


@dataclass(frozen=True)
class Cell:
    """A piece of the page: prose, or what Jupyter runs with the output that the page shows."""

    text: str
    source: str = ""
    output: str = ""
    measured: bool = False


def cells(page: str) -> list[Cell]:
    """Cut a page into prose and cells, in order."""
    pieces, prose = [], 0
    for match in _CELL.finditer(page):
        note, language, source, output = match.groups()
        if "not a cell" in note:
            continue
        pieces.append(Cell(page[prose : match.start()]))
        code = source.rstrip("\n")
        code = f"%%sh\n{code}" if language == "console" else code
        text = f"{note}```{language}\n{source}```\n"
        pieces.append(Cell(text, code, output or "", measured="measured" in note))
        prose = match.end()
    return [piece for piece in (*pieces, Cell(page[prose:])) if piece.text]


def written(pieces: list[Cell], outputs: list[str]) -> str:
    """Return the page with an output below each cell that printed something."""
    texts, page = iter(outputs), ""
    for piece in pieces:
        output = next(texts) if piece.source else ""
        page += piece.text
        page += f"\n<!-- output -->\n```text\n{output}\n```\n<!-- end of output -->\n" if output else ""
    return page


def notebook(pieces: list[Cell]) -> dict[str, Any]:
    """Return the notebook, in Jupyter's format 4.5, without outputs."""
    return {
        "cells": [_notebook_cell(piece, number) for number, piece in enumerate(pieces)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _notebook_cell(piece: Cell, number: int) -> dict[str, Any]:
    text = piece.source or piece.text.replace("<!-- not a cell -->\n", "")
    cell = {"id": f"cell-{number}", "metadata": {}, "source": text.strip("\n").splitlines(keepends=True)}
    if not piece.source:
        return {"cell_type": "markdown", **cell}
    return {"cell_type": "code", "execution_count": None, **cell, "outputs": []}


def execute(folder: Path) -> list[str]:
    """Run the notebook's cells in a folder with the examples, and return what each printed."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    for name in EXAMPLES:
        shutil.copytree(
            ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("out", "__pycache__")
        )
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = str(folder / name.lower())
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    book = nbformat.reads(json.dumps(notebook(cells(PAGE.read_text(encoding="utf-8")))), as_version=4)  # type: ignore[no-untyped-call]
    # Sockets are files: no port can be taken by another process.
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "k"))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(book, km=kernel, timeout=LONGEST_CELL_S, resources=resources).execute(cleanup_kc=True)
    return [_printed(cell.outputs) for cell in book.cells if cell.cell_type == "code"]


def _printed(values: list[Any]) -> str:
    """What a cell wrote to standard output, and its last value, without colours."""
    texts = [value.text for value in values if value.output_type == "stream" and value.name == "stdout"]
    texts += [value.data["text/plain"] for value in values if value.output_type == "execute_result"]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", "".join(texts)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def main(folder: Path) -> None:
    """Run the cells, and write the page and the notebook into a folder."""
    pieces = cells(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="qcompile-") as place:
        outputs = execute(Path(place))
    (folder / PAGE.name).write_text(written(pieces, outputs), encoding="utf-8")
    book = json.dumps(notebook(pieces), indent=1, ensure_ascii=False)
    (folder / NOTEBOOK.name).write_text(f"{book}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PAGE.parent)
