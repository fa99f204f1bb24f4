"""New weights for a built engine, on stand-ins for TensorRT 8.5, 10 and 11."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from simulated_machine import Machine
from simulated_plan import read_plan

import qcompile
from qcompile.errors import ArtifactError, BuildError, InvalidOption, ModelError

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]


@pytest.fixture
def model(tiny_file: MakeFile) -> Path:
    """The tiny residual model."""
    return tiny_file("residual")


@pytest.fixture
def retrained(model: Path, tmp_path: Path) -> Path:
    """The same with other weights."""
    made = onnx.load(model)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(2), tensor.name))
    onnx.save(made, tmp_path / "retrained.onnx")
    return tmp_path / "retrained.onnx"


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_gets_the_weights_of_another_model(
    version: str, precision: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    built = here.build(model, precision, options={"refit": True})
    fresh = here.build(retrained, precision, name="fresh", options={"refit": True})
    new = qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    plans = [read_plan(one.path.read_bytes())["weights"] for one in (built, fresh, new)]
    assert plans[2] == plans[1] != plans[0]
    assert new.manifest.stage == "refit"
    assert new.manifest.proof["refitted_with"] == new.manifest.sources["graph"]
    assert new.manifest.proof["layers_by_precision"] == built.manifest.proof["layers_by_precision"]
    assert qcompile.load_artifact(new.path).manifest == new.manifest


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_layers_that_the_build_kept_in_float32_are_kept_by_the_refit(
    version: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    kept: dict[str, Any] = {"layers": {"conv1": "fp32"}, "exclude": ["gemm"], "options": {"refit": True}}
    built = here.build(model, "fp16", **kept)
    assert built.manifest.proof["layers_by_precision"] == {
        "fp16": {"CONVOLUTION": 1}, "fp32": {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 1}
    }  # fmt: skip
    fresh = here.build(retrained, "fp16", name="fresh", **kept)
    new = qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    weights = [read_plan(one.path.read_bytes())["weights"] for one in (fresh, new)]
    assert weights[0] == weights[1]
    assert new.manifest.sources["graph"] == fresh.manifest.sources["graph"]


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_a_stripped_engine_becomes_whole(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    here = machine(version)
    stripped = here.build(model, options={"strip_weights": True})
    assert read_plan(stripped.path.read_bytes())["stripped"]
    whole = qcompile.refit(stripped.path, model, tmp_path / "whole.engine")
    plan = read_plan(whole.path.read_bytes())
    assert not plan["stripped"]
    assert all(entry["sha256"] for entry in plan["weights"].values())
    assert whole.manifest.size_bytes > stripped.manifest.size_bytes


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_a_stripped_engine_takes_other_weights_only_where_it_was_built_for_refits(
    version: str, machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine(version)
    stripped = here.build(model, options={"strip_weights": True})
    with pytest.raises(ModelError, match=r"retrained.onnx: its weights are not those") as caught:
        qcompile.refit(stripped.path, retrained, tmp_path / "new.engine")
    assert "`refit` beside `strip_weights`" in caught.value.hint
    assert not (tmp_path / "new.engine").exists()
    both = here.build(model, name="both", options={"strip_weights": True, "refit": True})
    assert "weights" not in both.manifest.proof
    fresh = here.build(retrained, name="fresh", options={"refit": True})
    new = qcompile.refit(both.path, retrained, tmp_path / "new.engine")
    plans = [read_plan(one.path.read_bytes())["weights"] for one in (fresh, new)]
    assert plans[0] == plans[1]


def test_a_refit_needs_no_budget_for_weights_that_stream(
    machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    here = machine("10.16")
    built = here.build(model, options={"refit": True, "weight_streaming": "50%"})
    before = len(here.told("weight_streaming_budget_v2"))
    qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    assert len(here.told("weight_streaming_budget_v2")) == before == 1


def test_the_weights_of_a_build_are_the_same_in_a_file_that_stores_them_otherwise(
    machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    stripped = machine("10.16").build(model, options={"strip_weights": True})
    made = onnx.load(model)
    made.doc_string = "exported again"
    made.graph.initializer.sort(key=lambda tensor: tensor.name, reverse=True)
    onnx.save(made, tmp_path / "again.onnx")
    whole = qcompile.refit(stripped.path, tmp_path / "again.onnx", tmp_path / "whole.engine")
    assert whole.manifest.sources["graph"] != stripped.manifest.sources["graph"]


def test_an_engine_that_takes_none_says_how_to_build_one_that_does(
    machine: OnMachine, model: Path, retrained: Path, tmp_path: Path
) -> None:
    built = machine("10.16").build(model)
    with pytest.raises(ArtifactError, match="takes no new weights") as caught:
        qcompile.refit(built.path, retrained, tmp_path / "new.engine")
    assert caught.value.hint == "build it with `refit`"
    assert not (tmp_path / "new.engine").exists()


def test_another_model_is_refused(
    machine: OnMachine, model: Path, tiny_file: MakeFile, tmp_path: Path
) -> None:
    built = machine("10.16").build(model, options={"refit": True})
    with pytest.raises(ModelError, match="its inputs and outputs are not those of"):
        qcompile.refit(built.path, tiny_file("mlp"), tmp_path / "new.engine")


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
def test_weights_of_another_shape_are_named(
    version: str, machine: OnMachine, model: Path, tmp_path: Path
) -> None:
    built = machine(version).build(model, options={"refit": True})
    made = onnx.load(model)
    for tensor in made.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w1"))
    for node in made.graph.node:
        if node.name == "conv1":
            del node.attribute[:]
    onnx.save(made, tmp_path / "other.onnx")
    with pytest.raises(BuildError, match=r"other\.onnx: .*w"):
        qcompile.refit(built.path, tmp_path / "other.onnx", tmp_path / "new.engine")
    assert not (tmp_path / "new.engine").exists()


def test_only_engines_of_tensorrt_can_be_refitted(model: Path, tmp_path: Path) -> None:
    built = qcompile.build(model, tmp_path / "cpu.onnx", target="onnxruntime")
    with pytest.raises(InvalidOption, match="is for onnxruntime; an engine of TensorRT is required"):
        qcompile.refit(built.path, model, tmp_path / "new.engine")
