"""A small part of the campaign of damaged ONNX files, and the outcomes that its children report."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from qcompile.cli import main

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks/reliability"
FILES = range(48)
NAMES = ("mutations", "forked_verbs", "model_mutations", "mutation_seeds")


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, whose neighbours are no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("mutations")
    for name in NAMES:
        sys.modules.pop(name, None)


def test_damaged_files_are_taken_or_refused_in_one_message(
    mutations: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = []
    for number in FILES:
        seed, done = mutations.write_mutant(number, tmp_path)
        for words in (["inspect", "m.onnx"], ["simplify", "m.onnx", "-o", "s.onnx"]):
            with pytest.raises(SystemExit) as ended:
                main([*words, "-q"])
            said = capsys.readouterr().err
            subject = f"{number}, {seed}, {done}: {said}"
            assert ended.value.code in (0, 1), subject
            assert said.count("error: ") == ended.value.code, subject
            assert "unexpected" not in said, subject
            codes.append(ended.value.code)
    assert {0, 1} == set(codes)


def test_a_number_makes_one_file_and_the_kinds_are_whole_without_damage(
    mutations: ModuleType, tmp_path: Path
) -> None:
    contents = []
    for _ in range(2):
        mutations.write_mutant(77, tmp_path)
        contents.append((tmp_path / "m.onnx").read_bytes())
    assert contents[0] == contents[1]
    seeds = importlib.import_module("mutation_seeds")
    for name in seeds.SEEDS:
        onnx.checker.check_model(seeds.SEEDS[name]())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the campaign forks")
def test_every_kind_of_end_of_a_child_is_told_and_the_verbs_behind_it_run(
    tmp_path: Path,
) -> None:
    """In a process of its own: a test process has threads, and must not fork."""
    import subprocess

    program = """
import os, sys, time
from pathlib import Path
import forked_verbs
from forked_verbs import run_steps
forked_verbs.RESIDENT_BYTES = 600 << 20
def crash(): os.abort()
def hang(): time.sleep(600)
def grow():
    held = b"x" * (800 << 20)
    time.sleep(600)
folder = Path(sys.argv[1])
forked_verbs.SECONDS = 2.0
outcomes = run_steps([("crash", crash), ("hang", hang)], folder)
forked_verbs.SECONDS = 100.0
steps = [("grow", grow), ("fine", lambda: ["--version"]), ("wrong", lambda: ["inspect", "none.onnx"])]
print([one.kind for one in [*outcomes, *run_steps(steps, folder)]])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True, cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{Path(__file__).resolve().parents[3]}"},
    )  # fmt: skip
    assert done.stdout.strip() == "['crash', 'hang', 'memory', 'ok', 'refused']", done.stderr
