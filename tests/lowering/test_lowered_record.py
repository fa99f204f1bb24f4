"""What the manifest of a lowered graph says of it is typed when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qcompile.artifact import Manifest, commit
from qcompile.errors import ArtifactError
from qcompile.files import writing
from qcompile.lowering import LoweredGraph, load_lowered

RECORD: dict[str, Any] = {
    "precision": "int8", "float_precision": "fp16", "layers": {"conv": "fp32"}, "planned": ["conv"],
    "left_in_float": {}, "warnings": ["w"], "worked_around": {"fault": ["conv"]},
}  # fmt: skip


def written(path: Path, record: Any) -> Path:
    with writing(path) as temporary:
        temporary.write_bytes(b"graph")
        commit(temporary, Manifest(kind="onnx", stage="lower", options={"lowered": record}))
    return path


def test_it_reads_back(tmp_path: Path) -> None:
    path = written(tmp_path / "a.graph.onnx", RECORD)
    assert load_lowered(path) == LoweredGraph(str(path), **RECORD)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "int7"}, {"precision": None}, {"float_precision": 5}, {"layers": ["conv"]},
        {"layers": {"conv": 5}}, {"planned": "conv"}, {"left_in_float": []}, {"warnings": [5]},
        {"worked_around": {"fault": "conv"}},
    ],
)  # fmt: skip
def test_a_wrong_type_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(tmp_path / "a.graph.onnx", RECORD | change)
    with pytest.raises(ArtifactError, match=r"a\.graph\.onnx: its manifest does not say how it was lowered"):
        load_lowered(path)


@pytest.mark.parametrize("record", [None, 5, [], "int8", {}])
def test_a_record_that_is_missing_is_named(tmp_path: Path, record: Any) -> None:
    path = written(tmp_path / "a.graph.onnx", record)
    with pytest.raises(ArtifactError, match="does not say how it was lowered"):
        load_lowered(path)
