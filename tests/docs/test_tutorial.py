"""The tutorial is a notebook: it is run, and the page shows what it prints."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "examples/write_tutorial.py"
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "docs/tutorial.ipynb"
LONGEST_S = 600


@cache
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tutorial", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_tutorial"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def masked(text: str) -> list[str]:
    """Lines without what differs from machine to machine: figures, and the widths of tables and bars."""
    text = re.sub(r"\d+(?:[.,]\d+)*%?", "#", text)
    return [re.sub(r"[ ━┃┏┓┡┩│└┘┴┳╇#]+", " ", line).strip() for line in text.splitlines()]


def run_tool(folder: Path) -> None:
    """Run the tool in a session of its own, which ends with it, kernel and workers included."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(TOOL), "--into", str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LONGEST_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, printed[-4000:]


def test_every_cell_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    run_tool(tmp_path)
    renewed = (tmp_path / "tutorial.md").read_text(encoding="utf-8")
    code = [piece for piece in tool().cells(PAGE) if piece.source]
    assert len(code) > 12
    for piece, shown, printed in zip(code, tool().outputs(PAGE), tool().outputs(renewed), strict=True):
        assert bool(shown) == bool(printed), piece.source
        if not piece.measured:
            assert masked(shown) == masked(printed), piece.source
    assert (tmp_path / "tutorial.ipynb").read_text(encoding="utf-8") == NOTEBOOK.read_text(encoding="utf-8")


def test_the_page_and_the_notebook_have_the_same_cells() -> None:
    """`python examples/write_tutorial.py` renews both."""
    assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == tool().notebook(tool().cells(PAGE))


def test_the_page_is_its_cells_and_their_outputs() -> None:
    pieces = tool().cells(PAGE)
    assert tool().written(pieces, tool().outputs(PAGE)) == PAGE
    changed = tool().notebook(tool().cells(PAGE.replace("import qcompile\n", "import qcompile as q\n")))
    assert changed != tool().notebook(pieces)


def test_every_cell_has_a_visible_result() -> None:
    assert all(tool().outputs(PAGE))


def test_cells_are_short_and_valid() -> None:
    for piece in tool().cells(PAGE):
        if piece.source and not piece.source.startswith("%%sh"):
            ast.parse(piece.source)
            if '"""' not in piece.source:
                assert piece.source.count("\n") < 16, piece.source


def test_the_notebook_is_valid() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4))
    assert all(not cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])
