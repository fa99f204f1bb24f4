"""The tutorial is a notebook: it is run, and the page shows what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tutorial import NOTEBOOK, PAGE, cells, notebook, written

PIECES = cells(PAGE.read_text(encoding="utf-8"))
LONGEST_S = 600


def masked(text: str) -> list[str]:
    """Lines without what differs from machine to machine: figures, and the widths of tables and bars."""
    text = re.sub(r"\d+(?:[.,]\d+)*%?", "#", text)
    return [re.sub(r"[ ━┃┏┓┡┩│└┘┴┳╇#]+", " ", line).strip() for line in text.splitlines()]


def test_every_cell_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    """In a session of its own, which ends with it, kernel and workers included."""
    tool = Path(__file__).parents[1] / "support/tutorial.py"
    process = subprocess.Popen(
        [sys.executable, "-P", str(tool), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "QCOMPILE_CORES": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=LONGEST_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, printed[-4000:]
    renewed = cells((tmp_path / PAGE.name).read_text(encoding="utf-8"))
    assert len(PIECES) > 24
    for shown, new in zip(PIECES, renewed, strict=True):
        assert bool(shown.output) == bool(new.output), shown.source
        assert shown.measured or masked(shown.output) == masked(new.output), shown.source


def test_the_page_is_its_cells_with_their_outputs_and_the_notebook_has_the_same_cells() -> None:
    outputs = [piece.output for piece in PIECES if piece.source]
    assert all(outputs)
    assert written(PIECES, outputs) == PAGE.read_text(encoding="utf-8")
    assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == notebook(PIECES)
