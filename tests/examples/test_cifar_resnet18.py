"""The comparison of ResNet-18: every row is there, figures fit each other, and the README shows them."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from small_examples import modules

from qcompile.bench.results.export import HEADER
from qcompile.bench.results.results import Results, load_results
from qcompile.bench.results.row import Row

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


def table(text: str) -> dict[str, list[str]]:
    """The first table of a README: the first cell of each row to its other cells; "" has the header's."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    start = next(index for index, line in enumerate(lines) if line.startswith("| method |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    wide = [row for row in rows if len(row) == len(rows[0])]
    return {"": wide[0]} | {
        row[0].removesuffix(" (baseline)"): row[1:] for row in wide[1:] if "---" not in row
    }


def run(folder: Path, *only: str, max_time_s: float = 1.0) -> Results:
    """Train a narrow network for seconds, and compare."""
    environment = {key: value for key, value in os.environ.items() if key != "CIFAR10"}
    for words in (
        ["train.py", "--width", "8", "--epochs", "2", "--samples", "768"],
        ["compare.py", "--write-readme", "--max-time", str(max_time_s), *(f"--only={name}" for name in only)],
    ):
        subprocess.run(
            [sys.executable, "-W", "ignore", str(folder / words[0]), *words[1:]],
            cwd=folder.parent, env=environment, check=True, capture_output=True,
        )  # fmt: skip
    return load_results(folder / "out/stand_in/results.json")


def check_figures(row: Row, base: Row, batch: int) -> None:
    """Figures of one row follow from each other."""
    assert row.latency is not None
    assert row.throughput_per_s is not None
    assert row.latency.min_ms is not None
    assert row.latency.max_ms is not None
    mean_ms = batch / row.throughput_per_s * 1e3
    assert row.latency.min_ms <= mean_ms <= row.latency.max_ms
    assert row.held_bytes is not None
    assert base.held_bytes is not None
    assert row.size_ratio == pytest.approx(base.held_bytes / row.held_bytes)
    assert row.memory is not None
    assert base.memory is not None
    assert row.memory.peak_bytes is not None
    assert base.memory.peak_bytes is not None
    assert row.memory_ratio == pytest.approx(base.memory.peak_bytes / row.memory.peak_bytes)
    assert row.accuracy is not None
    assert row.accuracy.samples == 512
    if row is not base:
        assert row.speedup is not None
        assert row.accuracy.drop is not None
        assert base.accuracy is not None
        assert row.accuracy.drop.value == pytest.approx(100 * (base.accuracy.value - row.accuracy.value))
        assert row.difference is not None
        assert row.difference.mean_abs_error is not None
        assert row.difference.max_abs_error is not None
        assert 0 < row.difference.mean_abs_error < row.difference.max_abs_error


def test_a_namesake_of_its_model_that_was_imported_before_is_put_aside(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model", ModuleType("model"))
    request.getfixturevalue("example")
    assert load("train").WIDTH == 64


@pytest.mark.slow
def test_the_comparison_has_every_row_measured_or_with_its_reason(example: Path) -> None:
    results = run(example, *MEASURED, *NOT_HERE)
    rows = {row.name: row for row in results.rows}
    base, int8 = rows["pytorch"], rows["torch.ao INT8 static (FX, x86)"]
    for name in MEASURED:
        assert rows[name].status == "measured", rows[name].reason
        check_figures(rows[name], base, 128)
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
    written = table((example / "README.md").read_text())
    committed = table((EXAMPLE / "README.md").read_text())
    assert list(written) == list(committed)
    assert written[""] == committed[""] == list(HEADER)
    assert written["pytorch (compile)"][0] == "not run: left out by --only"
    assert all(cells[0] for cells in written.values())
    assert "synthetic stand-in for CIFAR-10" in (example / "README.md").read_text()
    reduction = 1 - 1 / (rows["ONNX-Runtime-INT8-static"].size_ratio or 1)
    assert written["ONNX-Runtime-INT8-static"][HEADER.index("size saved") - 1] == f"{reduction:.1%}"


@pytest.mark.slow
def test_every_way_of_pytorch_runs(example: Path) -> None:
    results = run(example, max_time_s=2.0)
    failed = {row.name: row.reason for row in results.rows if row.status == "failed"}
    assert not failed


@pytest.mark.usefixtures("example")
def test_the_readme_has_every_row_and_column_of_the_recipe() -> None:
    compare = load("compare")
    names = compare.row_names(compare.recipe_for("stand_in", compare.Settings()))
    shown = table((EXAMPLE / "README.md").read_text())
    assert list(shown) == ["", *names]
    assert shown[""] == list(HEADER)
    assert {one.row for one in load("published").PUBLISHED} <= set(names)


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
    recipe = load("compare").recipe_for("cifar10", load("compare").Settings())
    assert recipe.data.evaluation == "cifar10.py:evaluation"
    assert recipe.output == "out/cifar10"


def test_weights_of_other_data_are_refused(example: Path) -> None:
    from safetensors.numpy import save_file

    about = json.dumps({"data": "cifar10", "title": "CIFAR-10"})
    save_file({"a": np.zeros(1, np.float32)}, example / "resnet18.safetensors", metadata={"about": about})
    compare = load("compare")
    with pytest.raises(SystemExit, match="trained on CIFAR-10; delete it"):
        compare.compare(compare.Settings())
