"""The page of the Python interface says what the source says, in the words of the source."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import qcompile
from qcompile.cli.docstrings import sections_of
from qcompile.cli.public_names import public, results, taken
from qcompile.cli.reference import pages

PAGE = pages()["reference/python.md"]
CHAPTERS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_public_name_has_a_chapter() -> None:
    names = set(qcompile.__all__) - {"__version__"}
    assert set(public()) == names
    assert set(CHAPTERS) == names | set(results()) | set(taken())


@pytest.mark.parametrize("name", [name for name in public() if name.islower()])
def test_a_function_is_shown_with_the_parameters_and_defaults_that_python_knows(name: str) -> None:
    shown = re.search(r"```python\n(?:with )?qcompile\.(.*?)\n```", CHAPTERS[name], re.DOTALL)
    assert shown
    scope: dict[str, object] = {"silent": "function", "deprecated": "function"}
    text = re.sub(r" -> ContextManager", " -> Iterator", shown[1])
    exec(f"from __future__ import annotations\ndef {text}: ...", scope)
    made = inspect.signature(scope[name])  # type: ignore[arg-type]
    known = inspect.signature(inspect.unwrap(getattr(qcompile, name)))
    assert [*made.parameters] == [*known.parameters]
    for one in known.parameters.values():
        found = made.parameters[one.name]
        assert found.kind is one.kind
        assert found.default == (
            "function" if callable(one.default) and one.default is not one.empty else one.default
        )
        assert one.kind is one.VAR_KEYWORD or str(found.annotation) == str(one.annotation)


@pytest.mark.parametrize("name", [name for name in public() if name.islower()])
def test_every_parameter_of_a_function_is_told(name: str) -> None:
    _, sections = sections_of(public()[name].doc)
    told = {
        one
        for section in sections
        if section.title == "Arguments"
        for entry in section.entries
        for one in entry.names
    }
    assert told == set(inspect.signature(getattr(qcompile, name)).parameters) or name == "load_artifact"


def test_what_is_imported_on_the_page_is_there() -> None:
    shown = re.findall(r"^from (qcompile[\w.]*) import (\w+)$", PAGE, re.MULTILINE)
    assert ("qcompile.untrusted.limits", "Limits") in shown  # of run_untrusted, not of the gate
    for module, name in shown:
        assert hasattr(importlib.import_module(module), name)


def test_the_page_speaks_of_nothing_inside() -> None:
    """A module is no word for who reads the page."""
    rooms = r"artifact|bench|calibration|cluster|comparison|compiler|data|engines|model|pipeline|tuning"
    assert not re.findall(rf"`(?:{rooms})\.\w+(?:\.\w+)*`", PAGE)


def test_a_docstring_becomes_paragraphs_and_sections() -> None:
    body, sections = sections_of(
        "Do it.\n\nTwice\nover.\n\nArgs:\n    a, b: First\n        line.\n    options: More: words.\n\n"
        "Returns:\n    A thing.\n\nRaises:\n    ValueError: If not."
    )
    assert body == "Do it.\n\nTwice\nover."
    assert [one.title for one in sections] == ["Arguments", "Returns", "Raises"]
    assert [(entry.names, entry.text) for entry in sections[0].entries] == [
        (("a", "b"), "First line."),
        (("options",), "More: words."),
    ]
    assert sections[1].text == "A thing."
