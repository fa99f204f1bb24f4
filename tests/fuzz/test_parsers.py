"""Every parser takes any input: it returns, or raises an error of qcompile.

The corpus has an archive for each parser. `QCOMPILE_FUZZ_EXAMPLES=100000 pytest tests/fuzz` draws more inputs
near those of the corpus.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import mutated
from parsers import FOLDER, PARSERS, inputs

from qcompile.errors import QCompileError

EXAMPLES = int(os.environ.get("QCOMPILE_FUZZ_EXAMPLES", "5"))
HEAVY = {"report": 5, "onnx": 5, "image": 2, "results": 2}
"""Parsers that take more than a millisecond, and the part of the examples that they get."""
IN_PROCESS = [name for name, parser in PARSERS.items() if not parser.crash]


def refusal(name: str, content: bytes, folder: Path) -> str:
    """Parse an input; the error of ours, or nothing. Another error is a defect, and fails the test."""
    try:
        PARSERS[name].parse(content, folder)
    except QCompileError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{name}: {content[:2000]!r}") from error
    return ""


def test_every_parser_has_a_corpus_and_every_corpus_a_parser() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in (FOLDER / "corpus").iterdir()} == set(PARSERS)


@pytest.mark.parametrize("name", IN_PROCESS)
def test_the_corpus_is_read_or_refused(name: str, tmp_path: Path) -> None:
    outcomes = [refusal(name, content, tmp_path) for content in inputs(name).values()]
    assert outcomes


@pytest.mark.parametrize("name", IN_PROCESS)
def test_inputs_near_the_corpus_are_read_or_refused(name: str, tmp_path: Path) -> None:
    contents, chance = list(inputs(name).values()), random.Random(name)
    for _ in range(EXAMPLES // HEAVY.get(name, 1)):
        content = mutated(chance.choice(contents), contents, as_json=PARSERS[name].json, chance=chance)
        refusal(name, content, tmp_path)


HANG = {"042"}
"""ONNX Runtime 1.31.1 does not return from making their session: `--untrusted` ends it."""
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_parsers import refusal
from parsers import inputs
names = sys.argv[3:]
for name in names:
    folder = Path(sys.argv[2]) / name
    folder.mkdir()
    print(name, "refused" if refusal("onnx", inputs("onnx")[name], folder) else "read", flush=True)
"""


def test_damaged_models_are_read_or_refused_and_only_a_library_may_crash(tmp_path: Path) -> None:
    """One child reads all files; where a library ends it, the next child goes on behind that file."""
    waiting, outcomes, ended = [name for name in inputs("onnx") if name not in HANG], [], []
    while waiting:
        (folder := tmp_path / str(len(waiting))).mkdir()
        command = [sys.executable, "-c", CHILD, str(FOLDER), str(folder), *waiting]
        with (folder / "said").open("w+") as said, (folder / "errors").open("w+") as errors:
            try:
                code = subprocess.run(command, stdout=said, stderr=errors, timeout=60, check=False).returncode
            except subprocess.TimeoutExpired:
                code = -1
        lines = [line.split()[1] for line in (folder / "said").read_text().splitlines()]
        outcomes += lines
        if code == 0:
            break
        assert code < 0, (folder / "errors").read_text()[-3000:]  # a defect of ours is an exit code
        ended.append(waiting[len(lines)])
        waiting = waiting[len(lines) + 1 :]
    assert {"read", "refused"} == set(outcomes)
    assert len(ended) < 3, ended
