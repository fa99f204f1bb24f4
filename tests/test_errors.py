from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qcompile import errors
from qcompile.errors import InvalidOption, ModelError, first_line


def drawn() -> dict[str, str]:
    """Error to its base, as the top of the file draws them."""
    bases, found = ["Exception"], {}
    for branches, name in re.findall(r"^    ((?:[│├└─ ]{4})*)(\w+)", errors.__doc__ or "", re.M):
        depth = len(branches) // 4
        bases[depth + 1 :] = [name]
        found[name] = bases[depth]
    return found


def test_the_tree_is_the_one_that_is_drawn_and_only_a_wrong_request_is_a_usage_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 19
    assert {kind.__name__: kind.__base__.__name__ for kind in kinds if kind.__base__} == drawn()
    assert {kind.__name__ for kind in kinds if kind("x").exit_code == 2} == {
        "UsageError", "InvalidOption", "MissingFile", "RecipeError",
    }  # fmt: skip


def test_the_hint_follows_the_message() -> None:
    error = InvalidOption("input 'x': found 8; at most 4 is required", hint="raise --max-shapes")
    assert str(error) == "input 'x': found 8; at most 4 is required\n  hint: raise --max-shapes"
    assert str(InvalidOption("no hint")) == "no hint"


def test_the_json_form_holds_plain_values() -> None:
    error = ModelError(
        "message", hint="hint", file=Path("/a/model.onnx"), nodes=("conv1", "conv2"), shapes={"x": (1, 3)},
        kinds={"int8"}, ratio=0.5, reached=False, nothing=None,
    )  # fmt: skip
    data = {
        "file": "/a/model.onnx", "nodes": ["conv1", "conv2"], "shapes": {"x": [1, 3]}, "kinds": ["int8"],
        "ratio": 0.5, "reached": False, "nothing": None,
    }  # fmt: skip
    expected = {"error": "ModelError", "message": "message", "hint": "hint", "data": data}
    assert json.loads(json.dumps(error.as_json())) == expected


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  first\nsecond"), "first"),
        (KeyError(), "KeyError"),
        (RuntimeError("   \n"), "RuntimeError"),
    ],
)
def test_the_first_line_of_an_error_says_something(error: BaseException, line: str) -> None:
    assert first_line(error) == line
