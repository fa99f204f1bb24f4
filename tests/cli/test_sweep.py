"""`qcompile sweep` as it is typed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Qc
from rich.console import Console
from sweeps import CELLS, RECIPE, write_sweep

from qcompile.bench.results.sweep_results import CellLatency, CellResult, load_sweep
from qcompile.cli.sweep_board import SHOWN, Board, cell_line, cells_table
from qcompile.pipeline.sweep.cells import Member

MakePath = Callable[..., Path]
FLOAT = RECIPE[: RECIPE.index("[[artifact]]")] + '[sweep]\ntargets = ["openvino"]\nprecisions = ["fp32"]\n'


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file, FLOAT)


def test_a_failed_cell_is_told_and_the_exit_code_is_1(qc: Qc, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"no model")
    said = qc("sweep", recipe, "--scheduler", "none")
    assert said.code == 1
    lines = [line.split()[:2] for line in said.err.splitlines()]
    assert ["done", "residual-openvino-fp32"] in lines
    assert ["failed", "other-openvino-fp32"] in lines
    assert "3 cells: 2 done, 1 failed" in said.out
    assert "other.onnx" in said.out
    assert (tmp_path / "out" / "sweep.html").is_file()
    again = qc("sweep", recipe, "--scheduler", "none", "--json")
    value = json.loads(again.out)
    assert again.code == 1
    assert (value["planned"], value["counts"], value["unchanged"]) == (3, {"done": 2, "failed": 1}, 2)
    assert [cell["name"] for cell in value["cells"]] == [
        f"{model}-openvino-fp32" for model in ("residual", "mlp", "other")
    ]
    assert value["cells"][0]["digest"].startswith("sha256:")
    (tmp_path / "other.onnx").unlink()


def test_only_and_dry_run(qc: Qc, done: Qc, recipe: Path, tmp_path: Path) -> None:
    shown = done("sweep", recipe, "--dry-run", "--only", "mlp-*,other-*")
    assert "2 cells; to do: 6 of 6 stages; nothing was run" in shown.out
    assert not (tmp_path / "out").exists()
    done("sweep", recipe, "--scheduler", "none", "--only", "mlp-*", "-o", tmp_path / "else", "-q")
    assert [cell.name for cell in load_sweep(tmp_path / "else" / "sweep.json").cells] == ["mlp-openvino-fp32"]
    value = json.loads(done("sweep", recipe, "--dry-run", "--json", "-o", tmp_path / "else").out)
    assert {cell["name"]: cell["state"] for cell in value["cells"]} == {
        "residual-openvino-fp32": "to do",
        "mlp-openvino-fp32": "done",
        "other-openvino-fp32": "to do",
    }
    same = done("sweep", recipe, "--scheduler", "none", "--only", "mlp-*", "-o", tmp_path / "else")
    assert "1 done" in same.out
    run = qc("run", recipe)
    assert run.code == 2
    assert f"hint: qcompile sweep {recipe}" in run.err


def test_a_recipe_without_a_matrix_is_refused(qc: Qc, recipe: Path) -> None:
    recipe.write_text(
        'version = 1\nname = "m"\n[model]\nsource = "mlp.onnx"\n'
        '[[artifact]]\nname = "a"\ntarget = "openvino"\n'
    )
    said = qc("sweep", recipe, "--scheduler", "none")
    assert said.code == 2
    assert "key 'sweep' is missing" in said.err
    assert "qcompile run" in said.err


def shown(board: Board, monkeypatch: pytest.MonkeyPatch, lines: int) -> list[str]:
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "120")
    console = Console(file=io.StringIO(), width=120)
    console.print(board.render())
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def cell(name: str, state: str = "done") -> CellResult:
    latency = CellLatency(median_ms=1.5) if state == "done" else None
    return CellResult(
        name=name, model="m", target="openvino", precision="fp32", state=state,  # type: ignore[arg-type]
        reason="" if state == "done" else "it broke", latency=latency, size_bytes=2_000_000,
    )  # fmt: skip


def test_the_live_table_fits_the_terminal_with_thousands_of_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board()
    board.planned = 10_000
    for number in range(50):
        board.began(Member(f"m{number}", "", "", (), None))
    board.progress("m0: build: load", 3, 7)
    board.progress("nobody: build")
    for number in range(5_000):
        board.finished(cell(f"cell-{number}", "failed" if number % 2 else "done"), changed=number % 4 == 0)
    text = shown(board, monkeypatch, 24)
    assert len(text) <= 24
    assert "5000 of 10000 cells, 1250 done, 2500 failed, 1250 unchanged" in text[0]
    assert any("build: load 3/7" in line for line in text)
    assert any("cell-4999" in line and "failed" in line for line in text)
    for number in range(50):
        board.left(Member(f"m{number}", "", "", (), None))
    assert not any("m0-*" in line for line in shown(board, monkeypatch, 24))


def test_cells_as_lines_and_rows() -> None:
    assert cell_line(cell("a")).split() == ["done", "a", "1.50", "ms", "baseline", "2.00", "MB"]
    assert cell_line(cell("b", "failed")).split() == ["failed", "b", "it", "broke"]
    many = [cell(f"c{number}", "failed" if number == 70 else "done") for number in range(SHOWN + 20)]
    assert cells_table(many).row_count == 1
    assert cells_table(many[:SHOWN]).row_count == SHOWN
    assert len(CELLS) == 9
