"""Terminals, pipes and file names of other encodings than UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import MakePath

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TERMINALS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": C_LOCALE,
}


def run(
    *words: object, folder: Path, variables: dict[str, str], **streams: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "qcompile", *map(str, words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=False, **streams)


@pytest.fixture
def folder(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> Path:
    """A folder beyond ASCII with a model and samples of it."""
    folder = tmp_path / "dé"
    folder.mkdir()
    tiny_file("mlp").rename(folder / "modèle.onnx")
    samples("mlp", 16).rename(folder / "données.npz")
    return folder


@pytest.mark.parametrize("terminal", TERMINALS)
def test_signs_that_a_terminal_lacks_are_written_in_ascii(folder: Path, terminal: str) -> None:
    run("quantize", "modèle.onnx", "--mode", "dynamic", "-o", "é8.onnx", folder=folder, variables={})
    diff = ("diff", "modèle.onnx", "é8.onnx", "--data", "données.npz")
    done = run(*diff, folder=folder, variables=TERMINALS[terminal])
    assert done.returncode == 0, done.stderr
    assert b"SNR >= " in done.stdout
    found = run(*diff, "--json", folder=folder, variables=TERMINALS[terminal])
    assert found.returncode == 0
    assert "SNR ≥ " in json.dumps(json.loads(found.stdout), ensure_ascii=False)
    shown = run("--help", folder=folder, variables=TERMINALS[terminal])
    assert (shown.returncode, shown.stderr) == (0, b"")


def test_verbs_work_in_the_c_locale_where_names_are_beyond_ascii(folder: Path) -> None:
    for words in (
        ("calibrate", "modèle.onnx", "--data", "données.npz", "-o", "é.ranges"),
        ("quantize", "modèle.onnx", "--ranges", "é.ranges", "-o", "é8.onnx"),
        ("simplify", "modèle.onnx", "-o", "simplifié.onnx"),
        ("build", "modèle.onnx", "--target", "onnxruntime", "-o", "construit.é.onnx"),
        ("diff", "modèle.onnx", "é8.onnx", "--data", "données.npz"),  # in workers
        ("init", "modèle.onnx", "--data", "données.npz", "-o", "recette-é.toml"),
    ):
        done = run(*words, folder=folder, variables=C_LOCALE)
        assert done.returncode == 0, done.stderr
    assert {"é.ranges", "é8.onnx", "simplifié.onnx", "construit.é.onnx", "recette-é.toml"} <= set(
        os.listdir(folder)
    )


@pytest.mark.skipif(os.name == "nt", reason="file names of POSIX")
@pytest.mark.parametrize("verb", ["simplify", "diff"])
def test_a_name_that_is_no_utf8_is_refused_in_words(folder: Path, verb: str) -> None:
    name = os.fsdecode(b"mod\xe8le.onnx")
    (folder / "modèle.onnx").rename(folder / name)
    rest = ("-o", "s.onnx") if verb == "simplify" else (name,)
    done = run(verb, name, *rest, folder=folder, variables={"PYTHONUTF8": "1"})
    assert done.returncode == 1
    assert b"its name is not UTF-8" in done.stderr
    assert b"hint: rename it" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="streams of POSIX")
def test_closed_streams_end_no_command(folder: Path) -> None:
    code = f"exec {sys.executable} -m qcompile simplify modèle.onnx -o s.onnx <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", code], cwd=folder, check=False).returncode == 0
    assert (folder / "s.onnx").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is full")
def test_json_that_cannot_be_written_is_said_on_standard_error(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run("inspect", "modèle.onnx", "--json", folder=folder, variables={}, stdout=full)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_what_user_code_prints_in_a_worker_raises_nothing(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import torch\nprint('≥ é')\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        print('≥ é')\n        return x\n\n\ndef build():\n    return Model(), torch.ones(2, 8)\n",
        encoding="utf-8",
    )
    np.savez(folder / "x.npz", x=np.ones((2, 8), np.float32))
    done = run(
        "diff", "own.py:build", "own.py:build", "--data", "x.npz", folder=folder, variables=TERMINALS["ascii"]
    )
    assert done.returncode == 0, done.stderr
