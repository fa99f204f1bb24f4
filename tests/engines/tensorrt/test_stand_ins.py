"""Stand-ins have the names of real versions, and each behaviour says where it is known from.

A behaviour is a class, or a function of more than three statements, at the top of a file of `STAND_INS`. It
names its source in its docstring or in a comment inside: `Source: ...`, with a line of public source, an
issue, a document, or the real TensorRT-RTX that is installed here. What is there for the tests alone says
that: `Source: the tests' own`. A short file may name the source once, for all of it. What was only believed
has no place.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import tensorrt_rtx
from recorded_tensorrt import VERSIONS, recorded_module
from simulated_builder import simulated_tensorrt

SUPPORT = Path(__file__).parents[2] / "support"
NAMES = ("simulated_*.py", "recorded_tensorrt.py")
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
    "a TensorRT on a GPU": r"\d+\.\d+\.\d+\.\d+ .*\bon an [A-Z]\d+, 20\d\d-",
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


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_member_is_there_and_none_beside(version: str) -> None:
    folder = Path(recorded_module.__code__.co_filename).parent / "trt_api"
    prefix = "tensorrt_rtx" if version == "rtx" else f"tensorrt-{version}"
    (file,) = folder.glob(f"{prefix}*.json")
    names = json.loads(file.read_text())["names"]
    for module in (recorded_module(version), simulated_tensorrt(version)):
        assert module.__version__ in file.name
        public = {name for name in vars(module) if not name.startswith("_")}
        assert public - {"recorded_calls"} == set(names)
        for name, entry in names.items():
            if "enum" in entry:
                assert sorted(getattr(module, name).__members__) == sorted(entry["enum"])
            elif "members" in entry:
                found = {member for member in dir(getattr(module, name)) if not member.startswith("_")}
                built_in = set(dir(bytes)) if name == "IHostMemory" else set()
                assert found - built_in | set(entry["members"]) & built_in == set(entry["members"]), name


def test_the_recorded_names_are_those_of_the_installed_rtx() -> None:
    module = recorded_module("rtx")
    if module.__version__ != tensorrt_rtx.__version__:
        pytest.skip(f"recorded {module.__version__}, installed {tensorrt_rtx.__version__}")
    assert module.__name__ == tensorrt_rtx.__name__
    for name in (name for name in vars(module) if name[0] != "_" and name != "recorded_calls"):
        ours, theirs = getattr(module, name), getattr(tensorrt_rtx, name)
        if hasattr(ours, "__members__"):
            assert set(ours.__members__) == set(theirs.__members__), name
        elif isinstance(ours, type):
            assert all(hasattr(theirs, member) for member in ours._members), name
