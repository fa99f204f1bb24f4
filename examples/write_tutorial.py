"""Run the cells of docs/tutorial.md, and write what they print there.

    python examples/write_tutorial.py             # the page and docs/tutorial.ipynb
    python examples/write_tutorial.py --into DIR  # both into a folder; the tests compare them

The page is the source. A block of Python is a cell. A block of console commands is a cell that the shell
runs. What a cell printed stands below it, between `<!-- output -->` and `<!-- end of output -->`. A comment
`<!-- measured -->` above a cell says that its output changes from run to run. A block below
`<!-- not a cell -->` is left alone. The notebook has the cells without their outputs.

It needs nbclient and ipykernel. The cells run in a temporary folder with copies of the two examples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/tutorial.md"
EXAMPLES = ("digits", "mixed_precision")
LONGEST_CELL_S = 240

_OUTPUT = re.compile(r"\n<!-- output -->\n.*?<!-- end of output -->\n", re.S)
_CELL = re.compile(r"((?:<!-- [\w ]+ -->\n)?)```(python|console)\n(.*?)```\n", re.S)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Cell:
    """A piece of the page.

    Attributes:
        text: As it stands on the page, outputs left out.
        source: What Jupyter runs; empty for prose.
        measured: Whether its output changes from run to run.
    """

    text: str
    source: str = ""
    measured: bool = False


def cells(page: str) -> list[Cell]:
    """Cut a page into prose and cells, in order; their texts together are the page without outputs."""
    page = _OUTPUT.sub("", page)
    pieces: list[Cell] = []
    prose = at = 0
    while found := _CELL.search(page, at):
        note, language, source = found.groups()
        at = found.end()
        if "not a cell" in note:
            continue
        pieces.append(Cell(page[prose : found.start()]))
        code = source.rstrip("\n")
        code = f"%%sh\n{code}" if language == "console" else code
        pieces.append(Cell(found.group(), code, measured="measured" in note))
        prose = at
    return [piece for piece in (*pieces, Cell(page[prose:])) if piece.text]


def outputs(page: str) -> list[str]:
    """Return what the page shows below each of its cells, in order; empty where there is nothing."""
    shown = []
    for piece in cells(page):
        if piece.source:
            after = page[page.index(piece.text) + len(piece.text) :]
            found = _OUTPUT.match(after)
            shown.append(_text_of(found.group()) if found else "")
    return shown


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


def written(pieces: list[Cell], printed: list[str]) -> str:
    """Return the page with an output below each cell that printed something."""
    texts = iter(printed)
    page = ""
    for piece in pieces:
        page += piece.text
        output = next(texts) if piece.source else ""
        if output:
            page += f"\n<!-- output -->\n```text\n{output}\n```\n<!-- end of output -->\n"
    return page


def execute(pieces: list[Cell], folder: Path) -> list[str]:
    """Run the cells in a folder, and return what each printed.

    Raises:
        CellExecutionError: If a cell fails, with the cell and the traceback.
    """
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    for name in EXAMPLES:
        leave = shutil.ignore_patterns("out", "__pycache__")
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=leave)
    book = nbformat.reads(json.dumps(notebook(pieces)), as_version=4)  # type: ignore[no-untyped-call]
    # Sockets are files: no port can be taken by another process.
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "k"))
    NotebookClient(
        book,
        km=kernel,
        timeout=LONGEST_CELL_S,
        resources={"metadata": {"path": str(folder)}},
        on_cell_executed=_tell,
    ).execute(cleanup_kc=True)
    return [_printed(cell.outputs) for cell in book.cells if cell.cell_type == "code"]


def _tell(cell: Any, **_: Any) -> None:
    """Say what a cell printed: minutes pass, and a failure is understood by what came before it."""
    print(f"> {cell.source.splitlines()[-1]}\n{_printed(cell.outputs)}", file=sys.stderr, flush=True)


def _notebook_cell(piece: Cell, number: int) -> dict[str, Any]:
    lines = (piece.source or _for_jupyter(piece.text)).strip("\n").splitlines(keepends=True)
    if not piece.source:
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": lines}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": [],
        "source": lines,
    }


def _for_jupyter(text: str) -> str:
    return text.replace("<!-- not a cell -->\n", "")


def _text_of(output: str) -> str:
    found = re.search(r"```text\n(.*?)\n```\n", output, re.S)
    return found[1] if found else ""


def _printed(values: list[Any]) -> str:
    """What a cell wrote to standard output, and its last value."""
    texts = [value.text for value in values if value.output_type == "stream" and value.name == "stdout"]
    texts += [value.data["text/plain"] for value in values if value.output_type == "execute_result"]
    lines = _COLOURS.sub("", "".join(texts)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _prepare(folder: Path) -> None:
    """Leave nothing in the user's folders, and let cells find this interpreter's `qcompile`."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = str(folder / name.lower())
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}


def main() -> None:
    """Run the cells and write the page and the notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--into", type=Path, default=PAGE.parent, help="folder to write to")
    given = parser.parse_args()
    pieces = cells(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="qcompile-") as place:
        (Path(place) / "work").mkdir()
        _prepare(Path(place))
        printed = execute(pieces, Path(place) / "work")
    (given.into / PAGE.name).write_text(written(pieces, printed), encoding="utf-8")
    book = json.dumps(notebook(pieces), indent=1, ensure_ascii=False)
    (given.into / "tutorial.ipynb").write_text(f"{book}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
