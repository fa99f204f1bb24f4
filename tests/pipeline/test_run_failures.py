"""`run` with artifacts that cannot be built: the others are built, measured and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qcompile
from qcompile.cli import main
from qcompile.errors import CalibrationError, DataError, QCompileError

pytestmark = pytest.mark.usefixtures("short_blocks")

RECIPE = """
version = 1
name = "tiny"

[model]
source = "residual.onnx"

[data]
calibration = "calibration.npz"

[[artifact]]
name = "bad"
target = "tensorrt-rtx"
precision = "fp16"
gpus = ["sm86"]
min_shapes = ["nobody:2x2"]

[[artifact]]
name = "cpu"
target = "onnxruntime"
"""

BENCH = """
[bench]
batch_size = 2
threads = 1
max_time_s = 0.01
baseline = "cpu"
"""


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    tiny_file("residual")
    samples("residual", 8).rename(tmp_path / "calibration.npz")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def exit_code(*words: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def test_the_others_go_on_and_the_row_says_why(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(RECIPE + BENCH)
    assert exit_code("run", recipe, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert "nobody" in said["failures"]["bad"]["message"]
    assert list(said["artifacts"]) == ["cpu"]
    rows = {row["name"]: row for row in said["results"]["artifacts"]}
    assert rows["cpu"]["status"] == "measured"
    assert (rows["bad"]["status"], rows["bad"]["engine"]) == ("failed", "tensorrt-rtx")
    assert "nobody" in rows["bad"]["reason"]
    page = Path(said["report"]).read_text(encoding="utf-8")
    assert "nobody" in page
    assert json.loads((recipe.parent / "out/results.json").read_text())["artifacts"] == [*rows.values()]

    again = qcompile.run(recipe)
    assert again.stages.pop("build-bad") == "failed", "it is tried again"
    assert set(again.stages.values()) == {"skipped"}
    assert again.results is not None
    assert exit_code("run", recipe) == 1
    assert "bad: failed: " in capsys.readouterr().err

    recipe.write_text(
        RECIPE.replace("tensorrt-rtx", "onnxruntime")
        .replace('precision = "fp16"\n', "")
        .replace('gpus = ["sm86"]\nmin_shapes = ["nobody:2x2"]\n', "")
    )
    mended = qcompile.run(recipe)
    assert not mended.failures
    assert mended.stages["build-cpu"] == "skipped"


def test_without_anything_that_can_be_built_the_model_is_measured_and_the_rows_say_why(recipe: Path) -> None:
    wrong = 'target = "tensorrt-rtx"\ngpus = ["sm86"]\nmin_shapes = ["nobody:2x2"]'
    recipe.write_text(RECIPE.replace('target = "onnxruntime"', wrong) + BENCH)
    report = qcompile.run(recipe)
    assert list(report.failures) == ["bad", "cpu"]
    assert report.results is not None
    assert [row.status for row in report.results.rows] == ["measured", "failed", "failed"]
    assert report.results.baseline == "pytorch"
    assert "'cpu' was not built" in report.results.row("bad").warnings[0]
    assert report.page is not None


def test_without_a_benchmark_the_exit_code_says_it(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", recipe, "-q") == 1
    assert "bad: not built: " in capsys.readouterr().err
    assert (recipe.parent / "out/cpu.onnx").is_file()


def test_artifacts_that_need_no_ranges_outlive_the_calibration(recipe: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "calibration.npz", x=np.full((4, 4, 8, 8), np.nan, np.float32))
    recipe.write_text(RECIPE.replace("fp16", "int8").replace('min_shapes = ["nobody:2x2"]\n', ""))
    report = qcompile.run(recipe)
    assert list(report.artifacts) == ["cpu"]
    assert isinstance(report.failures["bad"], DataError | CalibrationError)
    recipe.write_text(
        recipe.read_text().replace('target = "onnxruntime"', 'target = "openvino"\nprecision = "int8"')
    )
    with pytest.raises(QCompileError, match="NaN"):
        qcompile.run(recipe)
