"""The comparison of ResNet-18: every row is there, and figures fit each other."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from small_examples import modules

import qcompile
from qcompile.bench.results.results import Results, load_results

EXAMPLE = Path(__file__).parents[2] / "examples/cifar_resnet18"
MEASURED = (
    "pytorch", "torch.ao INT8 static (FX, x86)", "ONNX-Runtime-INT8-static", "OpenVINO-INT8",
)  # fmt: skip
NOT_HERE = ("TensorRT-FP16", "TensorRT-RTX-FP16")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example without weights and results, importable; CIFAR-10 is not there."""
    folder = tmp_path / "cifar_resnet18"
    ignored = shutil.ignore_patterns("out", "data", "*.safetensors", "__pycache__")
    shutil.copytree(EXAMPLE, folder, ignore=ignored)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CIFAR10", raising=False)
    with modules(folder):
        yield folder


def load(name: str) -> ModuleType:
    """A module of the copied example."""
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def run(folder: Path, *names: str, max_time_s: float = 1.0) -> Results:
    """Train a narrow network for seconds, and measure some rows of the recipe, or all."""
    load("train").train(width=8, epochs=2, samples=768)
    recipe = load("compare").recipe_for("stand_in", max_time_s)
    if names:
        assert recipe.bench is not None
        models = tuple(text for text in recipe.bench.models if text.split("=")[0] in names)
        bench = replace(recipe.bench, torch_modes=(), models=models)
        artifacts = tuple(artifact for artifact in recipe.artifact if artifact.name in names)
        recipe = replace(recipe, artifact=artifacts, bench=bench)
    qcompile.run(recipe)
    return load_results(folder / "out/stand_in/results.json")


@pytest.mark.slow
def test_the_comparison_has_every_row_measured_or_with_its_reason(example: Path) -> None:
    results = run(example, *MEASURED, *NOT_HERE)
    rows = {row.name: row for row in results.rows}
    base, int8 = rows["pytorch"], rows["torch.ao INT8 static (FX, x86)"]
    for name in MEASURED:
        assert rows[name].status == "measured", rows[name].reason
        assert rows[name].accuracy.samples == 512  # type: ignore[union-attr]
    assert base.parameters is not None
    for name in MEASURED[1:]:  # batch norms are folded into biases
        assert rows[name].precision == "int8"
        assert rows[name].parameters == pytest.approx(base.parameters, rel=0.01)
        assert 0.5 < 1 - 1 / (rows[name].size_ratio or 1) < 0.8
    assert int8.size_bytes is None
    for name in NOT_HERE:
        if rows[name].status != "measured":
            assert rows[name].status == "not run"
            assert rows[name].reason


@pytest.mark.slow
def test_every_way_of_pytorch_runs(example: Path) -> None:
    results = run(example, max_time_s=2.0)
    failed = {row.name: row.reason for row in results.rows if row.status == "failed"}
    assert not failed


@pytest.mark.usefixtures("example")
def test_the_readme_has_every_row_of_the_recipe() -> None:
    recipe = load("compare").recipe_for("stand_in")
    rows = {artifact.name for artifact in recipe.artifact}
    rows |= {text.split("=")[0] for text in recipe.bench.models}
    rows |= {f"pytorch ({mode})" for mode in recipe.bench.torch_modes}
    assert all(f"| {row} |" in (EXAMPLE / "README.md").read_text(encoding="utf-8") for row in rows)


@pytest.mark.usefixtures("example")
def test_the_network_has_as_many_parameters_as_the_published_one() -> None:
    model = load("model")
    assert sum(values.numel() for values in model.ResNet18().parameters()) == 11_181_642


@pytest.mark.usefixtures("example")
def test_the_stand_in_is_the_same_each_time_and_keeps_its_halves_apart() -> None:
    first, again = load("stand_in"), load("stand_in")
    images, labels = zip(*first.evaluation(), strict=True)
    others, _ = zip(*again.evaluation(), strict=True)
    np.testing.assert_array_equal(np.concatenate(images), np.concatenate(others))
    assert np.concatenate(images).shape == (512, 3, 32, 32)
    assert set(np.concatenate(labels).tolist()) == set(range(10))
    halves = [{digit.tobytes() for digit in first._digits(held_out=held)[0]} for held in (False, True)]
    assert not halves[0] & halves[1]


def test_cifar10_is_read_from_its_binary_files_where_they_are(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = example.parent / "cifar"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (600, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 600, dtype=np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(600, -1)], axis=1)
    for name in ("test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
        records.tofile(folder / f"{name}.bin")
    train = load("train")
    assert train.data_name() == "stand_in"
    monkeypatch.setenv("CIFAR10", str(folder))
    assert train.data_name() == "cifar10"
    cifar10 = load("cifar10")
    batches = list(cifar10.evaluation())
    assert [len(batch) for _, batch in batches] == [128] * 4
    red = (pixels[:128, 0].astype(np.float64) / 255 - 0.4914) / 0.2470
    np.testing.assert_allclose(batches[0][0][:, 0], red, atol=1e-5)
    np.testing.assert_array_equal(batches[0][1], labels[:128])
    assert len(cifar10.training()[1]) == 3000
    (folder / "test_batch.bin").write_bytes(b"half a record")
    with pytest.raises(ValueError, match="13 bytes; a multiple of 3073 is required"):
        list(cifar10.evaluation())
    recipe = load("compare").recipe_for("cifar10")
    assert recipe.data.evaluation == "cifar10.py:evaluation"
    assert recipe.output == "out/cifar10"
