"""PyTorch as the baseline it is, and TorchScript, which must compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine, require_builder
from qcompile.errors import BuildError, DataError, EngineUnavailable, ModelError
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import Precision

SOURCE = """
import random
import torch
from torch import nn

class Pair(nn.Module):
    def forward(self, left, right):
        return {"total": left + right, "difference": left - right}

class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1

class Counted(nn.Module):
    def forward(self, x):
        return x.reshape(len(x) * 2, -1)

class Random(nn.Module):
    def forward(self, x):
        return x * random.random()

def pair():
    return Pair()

def branch():
    return Branch()

def counted():
    return Counted()

def made():
    return Random()

def example():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.ones(2, 4)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of models."""
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def build(spec: str, output: Path, *inputs: str, precision: Precision = "fp32") -> Path:
    """Build for TorchScript."""
    return build_engine(
        BuildRequest(spec, output, BuildSpec(target="torchscript", precision=precision, inputs=inputs))
    ).path


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_eager_execution_takes_inputs_by_name_in_any_order(source: Path) -> None:
    left, right = normal(2, 3), normal(2, 3, seed=1)
    with load(f"{source}:pair") as runner:
        outputs = runner.infer({"right": right, "left": left})
        assert runner.contains == "host to host: one forward()"
    assert list(outputs) == ["total", "difference"]
    np.testing.assert_array_equal(outputs["difference"], left - right)


def test_eager_execution_is_in_evaluation_mode_without_gradients(source: Path) -> None:
    with load(f"{source}:example") as runner:
        first, second = (runner.infer({"input": normal(2, 4)})["output"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_example_of_a_model_says_what_it_takes(source: Path) -> None:
    with load(f"{source}:example") as runner:
        assert [str(tensor) for tensor in runner.io.inputs] == ["input:2x4:float32"]
        with pytest.raises(DataError, match="is float64; float32 is required"):
            runner.infer({"input": normal(2, 4).astype(np.float64)})


def test_a_forward_that_fails_is_an_error_of_the_model(source: Path) -> None:
    with load(f"{source}:pair") as runner, pytest.raises(ModelError, match="PyTorch fails on the feeds"):
        runner.infer({"left": normal(2, 3), "right": normal(4, 5)})


def test_eager_execution_is_timed_as_often_as_asked(torch_model: str) -> None:
    with load(torch_model, threads=torch.get_num_threads()) as runner:
        durations = runner.time({"x": normal(1, 3, 8, 8)}, 5)
    assert durations.shape == (5,)
    assert durations.dtype == np.int64
    assert (durations > 0).all()


def test_there_is_nothing_to_build_for_eager_execution() -> None:
    with pytest.raises(EngineUnavailable, match="there is nothing to build"):
        require_builder("pytorch")


@pytest.mark.parametrize("fed", [("left", "right"), ("right", "left")])
def test_a_program_of_torch_export_takes_inputs_by_name_in_any_order(
    fed: tuple[str, str], tmp_path: Path
) -> None:
    class Difference(torch.nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left - right

    program = torch.export.export(Difference(), (torch.ones(2, 3), torch.ones(2, 3)))
    torch.export.save(program, tmp_path / "m.pt2")
    values = {"left": normal(2, 3), "right": normal(2, 3, seed=1)}
    with load(tmp_path / "m.pt2") as runner:
        (found,) = runner.infer({name: values[name] for name in fed}).values()
    np.testing.assert_array_equal(found, values["left"] - values["right"])


def test_torchscript_computes_what_eager_execution_does_at_any_batch(
    torch_model: str, tmp_path: Path
) -> None:
    path = build(torch_model, tmp_path / "m.pt", "x:[batch,3,8,8]")
    with load(path) as scripted, load(torch_model) as eager:
        assert [str(tensor) for tensor in scripted.io.inputs] == ["x:[batch,3,8,8]:float32"]
        assert [str(tensor) for tensor in scripted.io.outputs] == ["output:[?,5]:float32"]
        for batch in (1, 4):
            feeds = {"x": normal(batch, 3, 8, 8, seed=batch)}
            expected = eager.infer(feeds)["output"]
            np.testing.assert_allclose(scripted.infer(feeds)["output"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", [("left", "right"), ("right", "left")])
@pytest.mark.parametrize("fed", [("left", "right"), ("right", "left")])
def test_torchscript_takes_inputs_by_name_in_any_order(
    names: tuple[str, str], fed: tuple[str, str], source: Path, tmp_path: Path
) -> None:
    path = build(f"{source}:pair", tmp_path / "m.pt", *(f"{name}:[n,3]" for name in names))
    values = {"left": normal(4, 3), "right": normal(4, 3, seed=1)}
    with load(path) as runner:
        outputs = runner.infer({name: values[name] for name in fed})
        with pytest.raises(DataError, match="input 'right' is missing"):
            runner.infer({"left": values["left"]})
    np.testing.assert_array_equal(outputs["total"], values["left"] + values["right"])
    np.testing.assert_array_equal(outputs["difference"], values["left"] - values["right"])


def test_torchscript_is_loaded_with_its_manifest(source: Path, tmp_path: Path) -> None:
    artifact = build_engine(
        BuildRequest(f"{source}:example", tmp_path / "m.pt", BuildSpec(target="torchscript"))
    )
    assert artifact.manifest.kind == artifact.manifest.target == "torchscript"
    assert artifact.manifest.proof["dtypes"] == ["torch.float32"]
    assert [check.name for check in artifact.manifest.checks] == ["same outputs as PyTorch"]
    with load(artifact.path) as runner:
        assert runner.io == artifact.manifest.io


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_torchscript_of_another_precision_is_an_error(
    precision: Precision, torch_model: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=f"built in fp32; {precision} was asked for"):
        build(torch_model, tmp_path / "m.pt", "x:1x3x8x8", precision=precision)
    assert not (tmp_path / "m.pt").exists()


@pytest.mark.parametrize(
    ("function", "shape"),
    [("made", "2x3"), ("branch", "2x3"), ("counted", "[n,4]")],
    ids=["random", "a branch on data", "an extent frozen by the trace"],
)
def test_a_trace_that_computes_something_else_is_refused_and_named(
    function: str, shape: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(BuildError) as caught:
        build(f"{source}:{function}", tmp_path / "m.pt", f"x:{shape}")
    assert f"models.py:{function}" in caught.value.message
    assert not (tmp_path / "m.pt").exists()
