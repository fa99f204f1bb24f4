"""The table of kinds: a new kind of stage is one row, which every driver and executor goes by."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recipes import artifact

from qcompile.cluster.resources import Facts, place
from qcompile.errors import DataError, EngineUnavailable
from qcompile.pipeline.graph import KINDS, key_of, stages_of
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe import Recipe, published, read_recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.stage import SOURCE, Job, Key, Made, Needs, Rule, Stage, StageKind, named_artifact

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/recipe.toml"))


def listing_key(_: Recipe, stage: Stage) -> Key:
    return {"artifacts": {name: made.digest for name, made in stage.built.items()}}


def listing_work(recipe: Recipe, stage: Stage, job: Job) -> object:
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
    stage = Stage(kind="quantize", artifact="a", files={"model": Made(recipe.path, "sha256:0")})
    row = replace(KINDS["quantize"], applies=applies)
    monkeypatch.setitem(KINDS, "quantize", row)
    assert key_of(recipe, stage) is None
    monkeypatch.setitem(KINDS, "quantize", replace(row, optional=False))
    assert key_of(recipe, stage) is not None


def test_a_row_says_where_a_stage_may_go_and_that_the_run_ends_with_it(listing: Path) -> None:
    recipe, stage = read_recipe(listing), Stage(kind="listing")
    workers = [Facts(name, f"tcp://{name}:1", {"slots": 1.0, name: 1000.0}) for name in ("printer", "other")]
    assert place(recipe, stage, workers).workers == ("tcp://printer:1",)
    with pytest.raises(EngineUnavailable, match="listing: no worker has printer"):
        place(recipe, stage, workers[1:])
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
        is_float = stage.artifact and named_artifact(recipe, stage.artifact).precision == "fp32"
        if stage.kind not in ("bench", "report") and not (stage.kind == "quantize" and is_float):
            assert KINDS[stage.kind].file(recipe, stage) in judged, stage.name
