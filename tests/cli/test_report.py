"""`qcompile report` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from report_results import layers_json, results_json, write


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qcompile", "report", *words], cwd=folder, capture_output=True, text=True
    )


def test_a_report_is_written_and_its_size_said(tmp_path: Path) -> None:
    write(tmp_path / "results.json", results_json(2))
    write(tmp_path / "layers.json", layers_json())
    done = run(tmp_path, "results.json", "-o", "out/report.html", "--layers", "layers.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out/report.html  ")
    assert "loads nothing" in done.stdout
    text = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "Errors of the layers" in text


def test_json_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "results.json", results_json(1))
    done = run(tmp_path, "results.json", "--json")
    assert json.loads(done.stdout) == {
        "path": "report.html",
        "size_bytes": (tmp_path / "report.html").stat().st_size,
    }


def test_a_wrong_file_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    write(tmp_path / "layers.json", layers_json())
    write(tmp_path / "results.json", results_json(1))
    done = run(tmp_path, "layers.json")
    assert done.returncode == 1
    assert "qcompile.results" in done.stderr
    done = run(tmp_path, "resuls.json")
    assert done.returncode == 2
    assert "did you mean results.json?" in done.stderr
    assert not (tmp_path / "report.html").exists()
