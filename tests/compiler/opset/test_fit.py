"""A file comes out in the opset a reader knows and computes the same, or nothing comes out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from qcompile.artifact import load_artifact
from qcompile.compiler.opset.fit import fit_opset
from qcompile.errors import ModelError, UnsupportedOperator
from qcompile.model.onnx_file import count_operators, load_onnx, model_io, opset

STAGE = import_module("qcompile.compiler.opset.fit")

MEAN = """
<ir_version: 10, opset_import: ["" : 18]>
mean (float[batch,3,4] x) => (float[batch,3,1] y) <int64[1] axes={-1}> { y = ReduceMean(x, axes) }
"""


@pytest.fixture
def mean(tmp_path: Path) -> Path:
    """A mean over the last axis, in opset 18: an older parser would take it over all three."""
    path = tmp_path / "mean.onnx"
    onnx.save(parser.parse_model(MEAN), path)
    return path


def test_a_newer_file_is_written_in_the_opset_asked_for_with_its_checks(mean: Path, tmp_path: Path) -> None:
    artifact = fit_opset(mean, tmp_path / "old.onnx", 17)
    assert opset(load_onnx(artifact.path)) == 17
    assert model_io(load_onnx(artifact.path)) == model_io(load_onnx(mean)) == artifact.manifest.io
    assert artifact.manifest.options == {"opset": 17, "opset_before": 18}
    assert [check.name for check in artifact.manifest.checks] == [
        "ONNX checker and shape inference",
        "same outputs as before",
    ]
    assert artifact.manifest.checks[1].detail.startswith("2 inputs")
    assert load_artifact(artifact.path).manifest.as_json() == artifact.manifest.as_json()


def test_an_older_file_is_written_as_it_is(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    path = tiny_file("residual", opset=15)
    artifact = fit_opset(path, tmp_path / "same.onnx", 17)
    assert load_onnx(artifact.path) == load_onnx(path)
    assert len(artifact.manifest.checks) == 1


def test_a_file_that_claims_an_older_opset_than_its_operators_have_is_refused(
    mean: Path, tmp_path: Path
) -> None:
    model = load_onnx(mean)
    model.opset_import[0].version = 17
    onnx.save(model, mean)
    with pytest.raises(ModelError, match=r"ReduceMean.* has input size 2 not in range"):
        fit_opset(mean, tmp_path / "old.onnx", 17)
    assert not (tmp_path / "old.onnx").exists()


def test_a_conversion_that_only_changes_the_stamp_never_comes_out(
    mean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: parsers of opset 17 read the axes of ReduceMean from an attribute, and there is none."""

    def stamp(model: onnx.ModelProto, highest: int) -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.opset_import[0].version = highest
        return copy

    monkeypatch.setattr(STAGE, "lower_opset", stamp)
    with pytest.raises(ModelError, match="ReduceMean"):
        fit_opset(mean, tmp_path / "old.onnx", 17)
    assert not (tmp_path / "old.onnx").exists()


def test_a_conversion_that_drops_the_axes_never_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mean.onnx"
    onnx.save(parser.parse_model(MEAN.replace("batch,3,1", "i,j,k")), path)

    def drop(model: onnx.ModelProto, highest: int) -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.opset_import[0].version = highest
        del copy.graph.node[0].input[1:]
        return copy

    monkeypatch.setattr(STAGE, "lower_opset", drop)
    with pytest.raises(ModelError, match=r"in another opset it computes something else.*shape 1x1x1"):
        fit_opset(path, tmp_path / "old.onnx", 17)
    assert not (tmp_path / "old.onnx").exists()


def test_what_cannot_be_lowered_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bits.onnx"
    text = '<ir_version: 10, opset_import: ["" : 18]> g (int32[3] x) => (int32[3] y) { y = BitwiseNot(x) }'
    onnx.save(parser.parse_model(text), path)
    with pytest.raises(UnsupportedOperator, match="BitwiseNot"):
        fit_opset(path, tmp_path / "old.onnx", 17)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bits.onnx"]


def test_weights_in_a_file_of_their_own_are_carried_along(
    mean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for models over 2 GB, with the limit lowered: weights go to a side file again."""
    model = load_onnx(mean)
    weight = np.random.default_rng(0).standard_normal((4, 400)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["x", "w"], ["z"], "product"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["batch", 3, 400]))
    onnx.save(model, mean, save_as_external_data=True, location="mean.data", size_threshold=0)
    monkeypatch.setattr("qcompile.model.onnx_file.EXTERNAL_DATA_BYTES", 1000)
    artifact = fit_opset(mean, tmp_path / "old.onnx", 17)
    assert (tmp_path / "old.onnx.data").stat().st_size >= weight.nbytes
    assert count_operators(load_onnx(artifact.path)) == {"MatMul": 1, "ReduceMean": 1}
    assert artifact.manifest.checks[1].passed
