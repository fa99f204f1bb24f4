"""Each behaviour of the stand-ins for TensorRT, CUDA and PyCUDA says where it is known from.

A behaviour is a class, or a function of more than three statements, at the top of a file of `STAND_INS`. It
names its source in its docstring or in a comment inside: `Source: ...`, with a line of public source, an
issue, a document, the real TensorRT-RTX that is installed here, or a recording of a real TensorRT. What is
there for the tests alone says that: `Source: the tests' own`. A short file may name the source once, for
all of it. What was only believed has no place.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
SAMPLES = Path(__file__).parents[2] / "samples/tensorrt"
NAMES = ("simulated_*.py", "recorded_tensorrt.py", "replayed_tensorrt.py", "computed_plan.py")
STAND_INS = sorted(path for name in NAMES for path in SUPPORT.glob(name))
SMALL = 3
"""Functions of no more statements only pass something on."""
SHORT = 130
"""Files of no more lines may name a source in their docstring."""

SOURCES = {
    "line of public source": r"\w\.(h|cpp|hpp|cu|py|md|ipynb)\b",
    "issue or pull request": r"(issues?|pull)[ /]\S*[ /]?\d+",
    "document": r"docs\.nvidia\.com|documentation|driver API|\bguide\b|public notes",
    "the real TensorRT-RTX": r"(TensorRT-RTX|tensorrt_rtx) 1\.\d",
    "recording": r"recording (?P<file>\S+\.jsonl)",
    "the tests' own": r"the tests' own",
}
"""What a source is, and how it is told from other words."""


def behaviours(text: str) -> dict[str, str]:
    """Name of each behaviour of a file to its text."""
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            if statements <= SMALL:
                continue
        elif not isinstance(node, ast.ClassDef):
            continue
        found[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def sources(text: str) -> list[str]:
    """The kinds of source that a behaviour names."""
    found: list[str] = []
    for cited in re.findall(r"Source: (.+?)(?:\n\s*\n|\"\"\"|$)", text, re.DOTALL):
        plain = " ".join(cited.replace("#", " ").split())
        found += [kind for kind, pattern in SOURCES.items() if re.search(pattern, plain)]
    return found


@pytest.mark.parametrize("path", STAND_INS, ids=lambda path: path.stem)
def test_every_behaviour_names_its_source(path: Path) -> None:
    text = path.read_text()
    if text.count("\n") <= SHORT and sources(ast.get_docstring(ast.parse(text)) or ""):
        return
    without = [name for name, body in behaviours(text).items() if not sources(body)]
    assert not without, "say where it is known from, or take it out"


def test_recordings_that_are_named_are_there() -> None:
    named = {
        match["file"] for path in STAND_INS for match in re.finditer(SOURCES["recording"], path.read_text())
    }
    assert named <= {path.name for path in SAMPLES.iterdir()}


def test_a_behaviour_without_source_is_found() -> None:
    text = '''
class Believed:
    """It surely does."""

def decides(x):
    """Source: somebody said so."""
    a = x
    b = a
    c = b
    return c

def passes_on(x):
    return x

class Known:
    """Source: NvInfer.h of release/10.13, `IBuilder`: see include/NvInfer.h."""
'''
    found = behaviours(text)
    assert list(found) == ["Believed", "decides", "Known"]
    assert [bool(sources(one)) for one in found.values()] == [False, False, True]
