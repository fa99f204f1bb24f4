from __future__ import annotations

import json
from pathlib import Path

import pytest

from qcompile import errors
from qcompile.errors import InvalidOption, ModelError, QCompileError, first_line

TREE = {
    "UsageError": "QCompileError",
    "InvalidOption": "UsageError",
    "MissingFile": "UsageError",
    "RecipeError": "UsageError",
    "ModelError": "QCompileError",
    "ExportError": "ModelError",
    "UnsupportedOperator": "ModelError",
    "DataError": "QCompileError",
    "CalibrationError": "QCompileError",
    "QuantizationError": "QCompileError",
    "BuildError": "QCompileError",
    "IntentNotReached": "BuildError",
    "EngineUnavailable": "QCompileError",
    "ArtifactError": "QCompileError",
    "OutOfMemory": "QCompileError",
    "StorageError": "QCompileError",
    "ClusterError": "QCompileError",
    "WorkerError": "QCompileError",
}


def error_types() -> dict[str, type[QCompileError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, QCompileError)
    }


def test_the_tree_is_the_public_one() -> None:
    found = {name: value.__base__.__name__ for name, value in error_types().items() if value.__base__}
    assert found == TREE | {"QCompileError": "Exception"}


def test_every_error_is_drawn_at_the_top_of_its_file() -> None:
    drawing = errors.__doc__ or ""
    assert [name for name in error_types() if name not in drawing] == []


@pytest.mark.parametrize("name", sorted(TREE))
def test_only_a_wrong_request_is_a_usage_error(name: str) -> None:
    kind = error_types()[name]
    assert kind("x").exit_code == (2 if issubclass(kind, errors.UsageError) else 1)


def test_the_hint_follows_the_message() -> None:
    error = InvalidOption("input 'x': found 8; at most 4 is required", hint="raise --max-shapes")
    assert str(error) == "input 'x': found 8; at most 4 is required\n  hint: raise --max-shapes"
    assert str(InvalidOption("no hint")) == "no hint"


def test_the_json_form_holds_plain_values() -> None:
    error = ModelError(
        "message",
        hint="hint",
        file=Path("/a/model.onnx"),
        nodes=("conv1", "conv2"),
        shapes={"x": (1, 3)},
        kinds={"int8"},
        ratio=0.5,
        reached=False,
        nothing=None,
    )
    expected = {
        "error": "ModelError",
        "message": "message",
        "hint": "hint",
        "data": {
            "file": "/a/model.onnx",
            "nodes": ["conv1", "conv2"],
            "shapes": {"x": [1, 3]},
            "kinds": ["int8"],
            "ratio": 0.5,
            "reached": False,
            "nothing": None,
        },
    }
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
