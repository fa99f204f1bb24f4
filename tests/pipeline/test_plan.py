"""One visit of the stages: `run --dry-run` says what it would do, another executor does as much.

The table of kinds: a new kind of stage is one row, which every driver and executor goes by.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Qc
from executors import Noting
from recipes import artifact

import qcompile
from qcompile.core.files import digest_files
from qcompile.errors import DataError, EngineUnavailable, MissingFile
from qcompile.pipeline.cluster.resources import WorkerFacts, place_stage
from qcompile.pipeline.plan import RATE, by_rule, difference, plan
from qcompile.pipeline.recipe.published import published
from qcompile.pipeline.recipe.recipe import Recipe, read_recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.stages.graph import KINDS, key_of, stages_of
from qcompile.pipeline.stages.stage import (
    SOURCE,
    FinishedStage,
    Key,
    Needs,
    Rule,
    Stage,
    StageFile,
    StageJob,
    StageKind,
    Workload,
    find_artifact,
)
from qcompile.pipeline.stages.stages import calibrate_parts
from qcompile.pipeline.stages.store import Store

CPU, INT8 = artifact("cpu"), artifact("cpu-int8", precision="int8")
BENCH = '[bench]\nmax_time_s = 7\nbaseline = "cpu"\n'
STAGES = ["export", "simplify", "calibrate", "build-cpu", "quantize-cpu-int8", "build-cpu-int8"]


@pytest.fixture
def recipe(write_recipe: Callable[..., Path]) -> Path:
    """A recipe of an ONNX file, without a measurement."""
    return write_recipe(CPU, INT8, "[calibrate]\nsamples = 16\n")


def files(folder: Path) -> Mapping[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


def test_a_plan_says_what_a_run_would_do_before_between_and_after(recipe: Path) -> None:
    untouched = files(recipe.parent)
    before = plan(recipe)
    assert files(recipe.parent) == untouched
    assert not (recipe.parent / "out").exists()
    assert [one.name for one in before.stages] == STAGES
    assert {one.state for one in before.stages} == {"to do"}
    assert {one.estimate.source for one in before.stages} == {"rule"}
    assert before.stages[-1].why == "follows export"
    seconds = before.total("seconds")
    assert seconds is not None
    assert 5 < seconds < 60

    report = qcompile.run(recipe)
    assert list(report.stages) == STAGES, "the plan has the stages of the run"
    untouched = files(recipe.parent)
    after = plan(recipe)
    assert files(recipe.parent) == untouched
    assert {one.state for one in after.stages} == {"done"}
    assert {one.estimate.source for one in after.stages} == {"measured"}
    assert (after.total("seconds"), after.pending) == (0.0, [])

    recipe.write_text(recipe.read_text().replace("samples = 16", "samples = 8"))
    changed = plan(recipe)
    assert [one.state for one in changed.stages] == ["done", "done", "changed", "done", "changed", "changed"]
    assert [one.why for one in changed.pending] == ["options.samples", *["follows calibrate"] * 2]
    assert {one.estimate.source for one in changed.pending} == {"measured"}, "of the last time"

    again = plan(recipe, again=("build",))
    assert [one.why for one in again.stages if one.name == "build-cpu"] == ["requested"]


def test_what_a_run_could_not_do_is_said(recipe: Path) -> None:
    run(recipe)
    (recipe.parent / "calibration.npz").unlink()
    with pytest.raises(MissingFile, match=r"calibration\.npz"):
        plan(recipe)


def test_a_recipe_that_measures_takes_as_long_as_its_measurement(recipe: Path) -> None:
    recipe.write_text(recipe.read_text() + BENCH)
    stages = {stage.name: stage.estimate.seconds for stage in plan(recipe).stages}
    assert list(stages) == [*STAGES, "bench", "report"]
    assert stages["bench"] is not None
    assert stages["bench"] >= 7


def test_rules_count_with_work_weights_and_precision(recipe: Path) -> None:
    workload = Workload(100_000_000, 10**9, 2, calibrated=200, evaluated=500, rows=3, max_time_s=30)
    assert by_rule(KINDS["calibrate"].rule, workload).seconds == pytest.approx(2 + 3 * 200 * 1e9 / (2 * RATE))
    assert by_rule(KINDS["export"].rule, workload).seconds == pytest.approx(5)
    assert by_rule(KINDS["bench"].rule, workload).seconds == pytest.approx(
        30 + 3 * (4 + 500 * 1e9 / (2 * RATE))
    )
    sizes = [by_rule(KINDS["build"].rule, workload, one).disk_bytes for one in read_recipe(recipe).artifact]
    assert sizes == [100_000_000, 30_000_000]
    unknown = replace(workload, multiply_adds=None)
    assert by_rule(KINDS["calibrate"].rule, unknown).seconds is None, "no guess without multiply-adds"
    assert by_rule(KINDS["simplify"].rule, unknown).seconds is not None


def test_differences_are_named_by_their_path() -> None:
    old = {"source": "a", "options": {"samples": 1, "method": "x"}, "tools": {"onnx": "1"}, "gone": 1}
    new = {"source": "a", "options": {"samples": 2, "method": "x"}, "tools": {"onnx": "2"}, "file": "f"}
    assert difference(old, new) == "options.samples, tools.onnx, file, gone"
    assert difference(old, old) == ""


def test_the_command_prints_stages_and_totals(recipe: Path, qc: Qc) -> None:
    code, out, _ = qc("run", recipe, "--dry-run", "--json")
    assert code == 0
    said = json.loads(out)
    assert [one["stage"] for one in said["stages"]] == STAGES
    assert said["seconds"] == pytest.approx(sum(one["seconds"] for one in said["stages"]))
    assert "to do: 6 of 6 stages, about" in qc("run", recipe, "--dry-run").out


def test_recipe_toml_is_the_default(
    recipe: Path, tmp_path: Path, qc: Qc, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe.parent / "recipe.toml").write_bytes(recipe.read_bytes())
    monkeypatch.chdir(recipe.parent)
    assert "to do: 6 of 6 stages, about" in qc("run", "--dry-run").out
    assert "key 'sweep' is missing" in qc("sweep").err
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for verb in ("run", "sweep"):
        code, _, said = qc(verb)
        assert code == 2
        assert (
            "recipe recipe.toml does not exist\n  hint: name a recipe, or write one by `qcompile init`"
            in said
        )


class InParts(Noting):
    """Three steps at a time, and a calibration in three parts."""

    def __init__(self) -> None:
        super().__init__(parallel=3, shards=3)
        self.together = threading.Barrier(2, timeout=60)

    def do_here(self, recipe: Recipe, stage: Stage, store: Store, **options: Any) -> FinishedStage | None:
        if stage.name in ("build-cpu", "quantize-cpu-int8"):
            self.together.wait()  # passes only where both are asked for at a time
        return super().do_here(recipe, stage, store, **options)


def test_parts_give_the_files_of_one_process(recipe: Path, tmp_path: Path) -> None:
    executor = InParts()
    parted = run(recipe, output=tmp_path / "parted", executor=executor)
    whole = run(recipe, output=tmp_path / "whole")
    assert sorted(stage.name for stage in executor.asked if stage.name.startswith("calibrate-")) == [
        f"calibrate-{part}-of-3" for part in (1, 2, 3)
    ]
    assert parted.artifacts.keys() == whole.artifacts.keys() == {"cpu", "cpu-int8"}
    # ONNX Runtime names the nodes that it adds to cpu.onnx in another order now and then.
    for name in ("tiny.onnx", "tiny.ranges", "tiny.ranges.json", "cpu-int8.graph.onnx", "cpu-int8.onnx"):
        files = [digest_files([folder / name]) for folder in (tmp_path / "parted", tmp_path / "whole")]
        assert files[0] == files[1], name
    parts = [path.name for path in (tmp_path / "parted").iterdir() if "-of-" in path.name]
    assert not parts, "they are no artifacts"
    # What one process did is done for several.
    again = run(recipe, output=tmp_path / "whole", executor=InParts())
    assert set(again.stages.values()) == {"skipped"}
    assert not [name for name in again.stages if name.startswith("calibrate-")]


@pytest.mark.parametrize(
    ("shards", "is_done", "number"), [(99, False, 16), (3, False, 3), (1, False, 1), (3, True, 1)]
)
def test_a_calibration_has_no_more_parts_than_samples(
    shards: int, is_done: bool, number: int, recipe: Path
) -> None:
    stage = Stage(kind="calibrate")
    parts = calibrate_parts(read_recipe(recipe), stage, Noting(shards=shards), lambda: is_done)
    shards_of = [f"{part}/{number}" for part in range(1, number + 1)] if number > 1 else [""]
    assert [part.shard for part in parts] == shards_of


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/recipe.toml"))


def listing_key(_: Recipe, stage: Stage) -> Key:
    return {"artifacts": {name: made.digest for name, made in stage.built.items()}}


def listing_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    if recipe.name == "wrong":
        raise DataError("no listing")
    return job.path.write_text(json.dumps(sorted(stage.built)))


LISTING = StageKind(
    inputs=lambda *_: {"built": "build"},
    file=lambda *_: "listing.json",
    key=listing_key,
    work=listing_work,
    needs=lambda *_: Needs(("printer",)),
    rule=Rule(lambda *_: 7.0, writes_weights=False),
)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, write_recipe: Callable[..., Path]) -> Path:
    """A recipe of two artifacts, where every recipe ends with a stage of a new kind."""
    monkeypatch.setitem(KINDS, "listing", LISTING)
    return write_recipe(artifact("a"), artifact("b"), model="simplify = false", data="")


def test_a_row_is_a_stage_of_runs_and_dry_runs(listing: Path) -> None:
    (planned,) = [stage for stage in plan(listing).stages if stage.name == "listing"]
    assert (planned.state, planned.why, planned.estimate.seconds) == ("to do", "follows export", 7.0)
    report = run(listing)
    assert list(report.stages)[-1] == "listing"
    assert json.loads((report.output / "listing.json").read_text()) == ["a", "b"]
    assert sorted(report.artifacts) == ["a", "b"], "what is built, and nothing else"
    assert set(run(listing).stages.values()) == {"skipped"}
    assert {stage.state for stage in plan(listing).stages} == {"done"}
    assert run(listing, again=("listing",)).stages["listing"] == "done"


def test_a_stage_without_its_engine_is_left_to_the_next_where_its_row_says_so(
    monkeypatch: pytest.MonkeyPatch, write_recipe: Callable[..., Path]
) -> None:
    """So a build says what is missing, not the quantization before it."""

    def applies(*_: object) -> bool:
        raise EngineUnavailable("not installed", engine="onnxruntime")

    pytest.importorskip("onnxruntime")
    recipe = read_recipe(write_recipe(artifact("a"), data=""))
    stage = Stage(kind="quantize", artifact="a", files={"model": StageFile(recipe.path, "sha256:0")})
    row = replace(KINDS["quantize"], applies=applies)
    monkeypatch.setitem(KINDS, "quantize", row)
    assert key_of(recipe, stage) is None
    monkeypatch.setitem(KINDS, "quantize", replace(row, optional=False))
    assert key_of(recipe, stage) is not None


def test_a_row_says_where_a_stage_may_go_and_that_the_run_ends_with_it(listing: Path) -> None:
    recipe, stage = read_recipe(listing), Stage(kind="listing")
    workers = [
        WorkerFacts(name, f"tcp://{name}:1", {"slots": 1.0, name: 1000.0}) for name in ("printer", "other")
    ]
    assert place_stage(recipe, stage, workers)[0] == ["tcp://printer:1"]
    with pytest.raises(EngineUnavailable, match="listing: no worker has printer"):
        place_stage(recipe, stage, workers[1:])
    listing.write_text(listing.read_text().replace('"tiny"', '"wrong"'))
    with pytest.raises(DataError, match="no listing"):
        run(listing)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_stage_follows_those_that_write_its_files(path: Path) -> None:
    recipe, written = read_recipe(path), set[tuple[str, str]]()
    for group in stages_of(recipe):
        for stage in (stage for branch in group for stage in branch):
            for role, kind in KINDS[stage.kind].inputs(recipe, stage.artifact).items():
                if role != SOURCE and not (kind == "calibrate" and KINDS[kind].replaced(recipe)):
                    names = [stage.artifact] if stage.artifact else [one.name for one in recipe.artifact]
                    of = names if KINDS[kind].per_artifact else [""]
                    assert {(kind, name) for name in of} <= written, (stage.name, role)
            written.add((stage.kind, stage.artifact))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_names_of_artifacts_are_judged_by_all_files_that_stages_publish(path: Path) -> None:
    """A recipe in which two stages publish one file is refused; results and page have their own names."""
    recipe = read_recipe(path)
    judged = {file for file, _, _ in published(recipe)}
    for stage in (stage for group in stages_of(recipe) for branch in group for stage in branch):
        is_float = stage.artifact and find_artifact(recipe, stage.artifact).precision == "fp32"
        if stage.kind not in ("bench", "report") and not (stage.kind == "quantize" and is_float):
            assert KINDS[stage.kind].file(recipe, stage) in judged, stage.name
