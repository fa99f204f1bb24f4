"""A sweep does what runs of its recipes do, once, and goes on after failures and kills."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from sweeps import CELLS, MODELS, RECIPE, Asked, write_sweep

from qcompile.bench.results.results import load_results
from qcompile.errors import ClusterError, InvalidOption, RecipeError
from qcompile.files import digest_files
from qcompile.pipeline.matrix import members
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe import Recipe, parse_recipe, read_recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.steps import Done, Step
from qcompile.pipeline.store import Store
from qcompile.pipeline.sweep import plan_sweep, sweep
from qcompile.progress import Progress
from qcompile.reporting.source import read_source
from qcompile.reporting.summary import summarize

MakePath = Callable[..., Path]
GUIDE = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text(encoding="utf-8")


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file)


def test_cells_are_what_single_runs_make_and_are_made_once(recipe: Path, tmp_path: Path) -> None:
    """Three models by three artifacts, two at a time, against one run after the other."""
    executor, over = Asked(parallel=2), []
    report = sweep(recipe, executor=executor, listener=lambda *stage: over.append(stage[:2]))
    assert list(report.artifacts) == CELLS
    assert not report.failures
    assert sorted(over) == sorted(report.stages.items())
    assert len(executor.done) == len(set(executor.done))
    own = RECIPE[RECIPE.index("[[artifact]]") : RECIPE.index("[sweep]")]
    for model, data in MODELS.items():
        single = tmp_path / f"{model}.toml"
        tables = "".join(
            f'[[artifact]]\nname = "openvino-{precision}"\ntarget = "openvino"\nprecision = "{precision}"\n'
            for precision in ("fp32", "int8")
        )
        head = f'version = 1\nname = "{model}"\n[model]\nsource = "{model}.onnx"\n'
        single.write_text(f'{head}[data]\ncalibration = "{data}.npz"\n{own}{tables}')
        for name, path in run(single, output=tmp_path / "single" / model).artifacts.items():
            cell = f"{model}-{name}"
            assert digest_files([report.artifacts[cell]]) == digest_files([path]) == report.digests[cell]
    executor = Asked()
    again = sweep(recipe, executor=executor)
    assert executor.done == []
    assert (again.artifacts, again.digests) == (report.artifacts, report.digests)
    assert plan_sweep(read_recipe(recipe)).pending == []


def test_shapes_of_a_model_share_its_stages(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("[sweep]", '[sweep]\nshapes = ["1", "2", "4"]\nexclude = ["[mo]*"]'))
    planned = plan_sweep(read_recipe(recipe))
    executor = Asked(parallel=3)
    assert len(sweep(recipe, executor=executor).artifacts) == 9
    assert len(executor.done) == len(set(executor.done)) == len(planned.stages) == len(planned.pending)


def test_a_cell_that_fails_says_why_and_the_rest_goes_on(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mlp.npz").rename(tmp_path / "moved.npz")
    shutil.copy(tmp_path / "residual.npz", tmp_path / "mlp.npz")
    (tmp_path / "other.onnx").write_bytes(b"no model")
    report = sweep(recipe)
    assert list(report.artifacts) == [*CELLS[:3], "mlp-plain", "mlp-openvino-fp32"]
    assert list(report.failures) == ["mlp-openvino-int8", *CELLS[6:]]
    assert "mlp.npz" in report.failures["mlp-openvino-int8"].message
    assert "other.onnx" in report.failures["other-plain"].message
    (tmp_path / "moved.npz").replace(tmp_path / "mlp.npz")
    executor = Asked()
    assert len(sweep(recipe, executor=executor).artifacts) == 6
    assert executor.done == [
        ("mlp", stage) for stage in ("calibrate", "quantize-openvino-int8", "build-openvino-int8")
    ]


def test_a_lost_cluster_ends_the_sweep_and_what_was_done_is_kept(recipe: Path) -> None:
    lost = {"other": ClusterError("no worker is left")}
    with pytest.raises(ClusterError):
        sweep(recipe, executor=Asked(fails=lost))
    executor = Asked()
    sweep(recipe, executor=executor)
    assert {name for name, _ in executor.done} == {"other"}


def test_threads_end_with_a_lost_cluster(recipe: Path) -> None:
    class Lost(Asked):
        def do(
            self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress
        ) -> Done | None:
            if recipe.name != "other":
                assert self.cancelled.wait(60), "nobody ends what waits"
            raise ClusterError("no worker is left")

    before = threading.active_count()
    with pytest.raises(ClusterError):
        sweep(recipe, executor=Lost(parallel=3))
    assert threading.active_count() == before


def test_static_int8_of_a_float_file_without_data_is_impossible(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace('calibration = "mlp.npz"\n', ""))
    report = sweep(recipe, only=["mlp-*"])
    assert list(report.artifacts) == ["mlp-plain", "mlp-openvino-fp32"]
    assert list(report.impossible) == ["mlp-openvino-int8"]
    assert "mlp.onnx holds no Q/DQ" in report.impossible["mlp-openvino-int8"]
    assert not report.failures


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_after_a_kill_only_the_missing_is_done(recipe: Path) -> None:
    """A sweep is killed when its first recipe is done and its second is at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "qcompile", "sweep", "-v", str(recipe)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    finished, deadline = set(), time.monotonic() + 300
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if stage := re.match(r"\s*done  (\w+): ([\w-]+)", line):
                finished.add((stage[1], stage[2]))
            if ("mlp", "simplify") in finished or time.monotonic() > deadline:
                break
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert ("residual", "build-openvino-int8") in finished
    executor = Asked()
    report = sweep(recipe, executor=executor)
    assert list(report.artifacts) == CELLS
    assert not finished & set(executor.done)
    assert ("other", "build-plain") in executor.done
    for path in report.output.rglob("*.onnx"):
        onnx.load(path)
    assert not [path for path in report.output.rglob("*tmp*") if path.is_dir()]


def test_a_measured_sweep_is_one_results_file_and_one_report(recipe: Path, tmp_path: Path) -> None:
    """The figures of a model stand beside those of another; each is compared with its own baseline."""
    bench = '[bench]\nbaseline = "plain"\nmax_time_s = 0.2\nthreads = 1\n'
    matrix = '[sweep]\nexclude = ["*-int8", "other-openvino-fp32"]'
    recipe.write_text(RECIPE.replace("[sweep]", matrix) + bench)
    (tmp_path / "other.onnx").write_bytes(b"no model")
    report = sweep(recipe)
    assert report.results.as_json() == load_results(report.output / "results.json").as_json()
    assert report.page == report.output / "report.html"
    assert "Recommendations" in report.page.read_text(encoding="utf-8")
    rows = {row.name: row for row in report.results.rows}
    assert {name: row.status for name, row in rows.items()} == {
        **{
            f"{model}-{name}": "measured"
            for model in ("residual", "mlp")
            for name in ("plain", "pytorch", "openvino-fp32")
        },
        "other-plain": "failed",
    }
    for model in ("residual", "mlp"):
        row = rows[f"{model}-openvino-fp32"]
        assert (row.machine, report.results.baseline_of(row)) == (model, f"{model}-plain")
    settings = report.results.settings
    assert settings["command"] == ["qcompile", "sweep", str(recipe)]
    assert "inputs" not in settings  # the models have others
    reasons = summarize(read_source(report.output / "results.json")).reasons
    assert [reason.split(":")[0] for reason in reasons] == ["residual", "mlp"]
    assert not list(report.output.glob("*/report.html"))


def test_what_is_no_sweep_of_its_own_is_refused(recipe: Path) -> None:
    with Store(recipe.parent / "out").locked(), pytest.raises(InvalidOption, match="another run is using it"):
        sweep(recipe)
    for verb in (run, plan):
        with pytest.raises(RecipeError, match="key 'sweep' makes many recipes") as refused:
            verb(recipe)
        assert refused.value.hint == f"qcompile sweep {recipe}"
    recipe.write_text(
        'version = 1\nname = "m"\n[model]\nsource = "mlp.onnx"\n'
        '[[artifact]]\nname = "a"\ntarget = "openvino"\n'
    )
    with pytest.raises(RecipeError, match="key 'sweep' is missing"):
        sweep(recipe)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sweep.models", '[sweep]\nmodels = ["a=../home/code.py:build"]'),
        ("sweep.model.source", '[[sweep.model]]\nname = "a"\nsource = "../home/code.py:build"\n[sweep]'),
        (
            "sweep.model.evaluation",
            '[[sweep.model]]\nname = "a"\nsource = "m.onnx"\nevaluation = "../home/code.py:data"\n[sweep]',
        ),
    ],
)
def test_code_of_a_matrix_outside_of_the_folder_is_refused(tmp_path: Path, key: str, text: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/code.py").write_text("raise SystemExit('it ran')\n")
    path = tmp_path / "inside/recipe.toml"
    path.parent.mkdir()
    path.write_text(f'version = 1\nname = "m"\n{text}\ntargets = ["openvino"]\nprecisions = ["fp32"]\n')
    for verb in (sweep, lambda path: plan_sweep(read_recipe(path))):
        with pytest.raises(RecipeError, match="outside of the recipe's folder") as refused:
            verb(path)
        assert refused.value.data["key"] == key
    assert not (path.parent / "out").exists()


def test_the_recipe_of_the_guide_is_a_sweep_of_fourteen_cells(tmp_path: Path) -> None:
    text = GUIDE.split("<!-- sweep -->\n```toml\n")[1].split("```")[0]
    every = members(parse_recipe(text.encode(), tmp_path / "recipe.toml"))
    assert (len(every), sum(len(member.cells) for member in every)) == (4, 14)
    assert not [cell for member in every for cell in member.cells if cell.why_not]
