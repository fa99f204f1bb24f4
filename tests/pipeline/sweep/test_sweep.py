"""A sweep does what runs of its recipes do, once, and goes on after failures and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
import pytest
from sweeps import CELLS, RECIPE, Asked, Noted, write_sweep

from qcompile.bench.results.sweep_results import CellResult, load_sweep
from qcompile.errors import ClusterError, RecipeError
from qcompile.files import digest_files
from qcompile.pipeline.executor import Done
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe import Recipe, read_recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.steps import Step
from qcompile.pipeline.store import Store
from qcompile.pipeline.sweep.preview import preview
from qcompile.pipeline.sweep.sweep import sweep
from qcompile.progress import Progress

MakePath = Callable[..., Path]


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file)


def states(path: Path) -> dict[str, str]:
    return {cell.name: cell.state for cell in load_sweep(path).cells}


def by_name(cells: Iterable[CellResult]) -> dict[str, CellResult]:
    return {cell.name: cell for cell in cells}


def test_cells_are_what_single_runs_make_and_are_made_once(recipe: Path, tmp_path: Path) -> None:
    """Three models by three artifacts, two at a time, against one run after the other."""
    executor, noted = Asked(parallel=2), Noted()
    report = sweep(recipe, executor=executor, listener=noted)
    assert report.counts == {"done": 9}
    results = load_sweep(report.results)
    assert (results.name, results.planned, results.finished) == ("tiny", 9, True)
    assert sorted(cell.name for cell in results.cells) == sorted(CELLS) == sorted(noted.cells)
    assert noted.count == 9
    assert noted.open == set()
    assert {cell: one for cell, (one, _) in noted.cells.items()} == {c.name: c for c in results.cells}
    assert len(executor.done) == len(set(executor.done))
    for model, data in (("residual", "residual"), ("mlp", "mlp"), ("other", "residual")):
        single = tmp_path / f"{model}.toml"
        head = f'version = 1\nname = "{model}"\n[model]\nsource = "{model}.onnx"\n[data]\n'
        own = RECIPE[RECIPE.index("[[artifact]]") : RECIPE.index("[sweep]")]
        tables = "".join(
            f'[[artifact]]\nname = "openvino-{precision}"\ntarget = "openvino"\nprecision = "{precision}"\n'
            for precision in ("fp32", "int8")
        )
        single.write_text(f'{head}calibration = "{data}.npz"\n{own}{tables}')
        for name, path in run(single, output=tmp_path / "single" / model).artifacts.items():
            cell = next(cell for cell in results.cells if cell.name == f"{model}-{name}")
            swept = report.output / cell.artifact
            assert digest_files([swept]) == digest_files([path]) == cell.digest
            assert cell.size_bytes == path.stat().st_size

    executor, noted = Asked(), Noted()
    again = sweep(recipe, executor=executor, listener=noted)
    assert executor.done == []
    assert again.unchanged == 9
    assert not any(changed for _, changed in noted.cells.values())
    # Two at a time end in any order.
    assert by_name(load_sweep(report.results).cells) == by_name(results.cells)
    assert {one.state for one in preview(read_recipe(recipe)).cells} == {"done"}


def test_shapes_of_a_model_share_its_stages(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("[sweep]", '[sweep]\nshapes = ["1", "2", "4"]\nexclude = ["[mo]*"]'))
    planned = preview(read_recipe(recipe))
    assert (len(planned.cells), planned.to_do) == (9, planned.stages)
    executor = Asked(parallel=3)
    report = sweep(recipe, executor=executor)
    assert report.counts == {"done": 9}
    assert len(executor.done) == len(set(executor.done)) == planned.stages
    executor = Asked(parallel=3)
    sweep(recipe, executor=executor, again=("build-openvino-fp32",))
    assert executor.done == [("residual", "build-openvino-fp32")]


def test_a_cell_that_fails_is_told_and_the_rest_goes_on(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mlp.npz").rename(tmp_path / "kept.npz")
    shutil.copy(tmp_path / "residual.npz", tmp_path / "mlp.npz")
    (tmp_path / "other.onnx").write_bytes(b"no model")
    noted = Noted()
    report = sweep(recipe, listener=noted)
    assert report.counts == {"done": 5, "failed": 4}
    assert report.failed == 4
    found = {cell.name: cell for cell in load_sweep(report.results).cells}
    assert found["mlp-openvino-fp32"].state == found["mlp-plain"].state == "done"
    assert "mlp.npz" in found["mlp-openvino-int8"].reason
    assert found["mlp-openvino-int8"].artifact == ""
    assert {found[name].state for name in CELLS if name.startswith("other")} == {"failed"}
    assert "other.onnx" in found["other-plain"].reason
    (tmp_path / "kept.npz").replace(tmp_path / "mlp.npz")
    executor = Asked()
    report = sweep(recipe, executor=executor)
    assert report.counts == {"done": 6, "failed": 3}
    assert executor.done == [
        ("mlp", "calibrate"),
        ("mlp", "quantize-openvino-int8"),
        ("mlp", "build-openvino-int8"),
    ]


def test_an_unexpected_error_fails_one_recipe(recipe: Path) -> None:
    class Broken(Asked):
        def do(
            self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress
        ) -> Done | None:
            if recipe.name == "mlp":
                raise ZeroDivisionError("a defect")
            return super().do(recipe, step, store, again=again, progress=progress)

    report = sweep(recipe, executor=Broken())
    found = {cell.name: cell for cell in load_sweep(report.results).cells}
    assert report.counts == {"done": 6, "failed": 3}
    assert found["mlp-plain"].reason == "unexpected ZeroDivisionError: a defect"


def test_a_lost_cluster_ends_the_sweep_and_what_was_done_is_kept(recipe: Path) -> None:
    class Lost(Asked):
        def do(
            self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress
        ) -> Done | None:
            if recipe.name == "other":
                raise ClusterError("no worker is left")
            return super().do(recipe, step, store, again=again, progress=progress)

    with pytest.raises(ClusterError):
        sweep(recipe, executor=Lost())
    results = load_sweep(recipe.parent / "out" / "sweep.json")
    assert not results.finished
    assert [cell.name for cell in results.cells] == CELLS[:6]


def test_threads_end_with_a_lost_cluster(recipe: Path) -> None:
    class Lost(Asked):
        def __init__(self) -> None:
            super().__init__(parallel=3)
            self.cancelled = threading.Event()

        def do(
            self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress
        ) -> Done | None:
            if recipe.name != "other":
                assert self.cancelled.wait(60), "nobody ends what waits"
            raise ClusterError("no worker is left")

        def cancel(self) -> None:
            self.cancelled.set()

    before = threading.active_count()
    with pytest.raises(ClusterError):
        sweep(recipe, executor=Lost())
    assert threading.active_count() == before


def test_static_int8_of_a_float_file_without_data_is_impossible(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace('calibration = "mlp.npz"\n', ""))
    report = sweep(recipe, only=["mlp-*"])
    found = {cell.name: cell for cell in load_sweep(report.results).cells}
    assert report.counts == {"done": 2, "impossible": 1}
    assert found["mlp-openvino-int8"].state == "impossible"
    assert "mlp.onnx holds no Q/DQ" in found["mlp-openvino-int8"].reason
    assert report.failed == 0


def test_only_leaves_what_is_known_of_the_others(recipe: Path) -> None:
    first = sweep(recipe, only=["mlp-*"])
    assert not load_sweep(first.results).finished
    second = sweep(recipe, only=["residual-plain"])
    assert sorted(states(second.results)) == sorted(
        [*(n for n in CELLS if n.startswith("mlp")), "residual-plain"]
    )
    assert second.unchanged == 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_after_a_kill_only_the_missing_is_done(recipe: Path) -> None:
    """A sweep is killed when its first recipe is done and its second is at work."""
    results = recipe.parent / "out" / "sweep.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "qcompile", "sweep", "-v", "--scheduler", "none", str(recipe)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        said = []
        assert process.stderr is not None
        deadline = time.monotonic() + 300
        for line in process.stderr:
            said.append(line.split())
            if line.split()[:3] == ["done", "mlp:", "simplify"] or time.monotonic() > deadline:
                break
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        said += [line.split() for line in process.communicate(timeout=60)[1].splitlines()]
    finished = {
        (one[1][:-1], one[2]) for one in said if len(one) > 2 and one[0] == "done" and one[1][-1] == ":"
    }
    assert ("residual", "build-openvino-int8") in finished
    if results.is_file():  # whole, of what was done until then
        assert set(states(results).values()) == {"done"}
    executor = Asked()
    report = sweep(recipe, executor=executor)
    assert report.counts == {"done": 9}
    assert not finished & set(executor.done)
    assert ("other", "build-plain") in executor.done
    for path in report.output.rglob("*.onnx"):
        onnx.load(path)
    assert not [path for path in report.output.rglob("*tmp*") if path.is_dir()]


def test_two_sweeps_in_one_folder_are_refused_and_run_refuses_a_matrix(recipe: Path) -> None:
    from qcompile.errors import InvalidOption

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


def test_code_of_a_matrix_outside_of_the_folder_is_refused_before_any_work(recipe: Path) -> None:
    elsewhere = recipe.parent / "home"
    elsewhere.mkdir()
    (elsewhere / "code.py").write_text("raise SystemExit('it ran')\n")
    inside = recipe.parent / "inside"
    inside.mkdir()
    cases = {
        "sweep.models": '[sweep]\nmodels = ["a=../home/code.py:build"]',
        "sweep.model.source": '[[sweep.model]]\nname = "a"\nsource = "../home/code.py:build"\n[sweep]',
        "sweep.model.evaluation": '[[sweep.model]]\nname = "a"\nsource = "m.onnx"\n'
        'evaluation = "../home/code.py:data"\n[sweep]',
    }
    for key, text in cases.items():
        path = inside / "recipe.toml"
        path.write_text(f'version = 1\nname = "m"\n{text}\ntargets = ["openvino"]\nprecisions = ["fp32"]\n')
        for verb in (sweep, lambda path: preview(read_recipe(path))):
            with pytest.raises(RecipeError, match="outside of the recipe's folder") as refused:
                verb(path)
            assert refused.value.data["key"] == key
        assert not (inside / "out").exists()
