"""Kinds of machines: an artifact for each GPU of a cluster, and what is measured where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executors import Noting
from hypothesis import given
from hypothesis import strategies as st
from recipes import artifact, recipe_of
from simulated_machine import install

import qcompile
from qcompile.bench.results.results import Results, save_results
from qcompile.bench.results.row import Latency, Row
from qcompile.core.artifact import read_manifest
from qcompile.core.files import digest_files
from qcompile.errors import InvalidOption, RecipeError
from qcompile.pipeline.recipe.recipe import Recipe
from qcompile.pipeline.run import run
from qcompile.pipeline.stages.graph import key_of
from qcompile.pipeline.stages.stage import (
    FinishedStage,
    Stage,
    StageFile,
    built_on,
    expand_cluster_artifacts,
    find_artifact,
    group_by_machine,
)
from qcompile.pipeline.stages.store import Store

ENGINE = {"name": "engine", "target": "tensorrt-rtx", "gpus": ["cluster"]}
FLOAT = {"name": "float", "target": "onnxruntime"}
KINDS = ("sm86", "sm89", "sm90")
TABLES = (artifact("float"), artifact("engine", "tensorrt-rtx", gpus=["cluster"]))


class OnKinds(Noting):
    """This process, as if it were a cluster with these GPUs; every benchmark is made up."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(kinds=kinds)

    def do_here(self, recipe: Recipe, stage: Stage, store: Store, **options: Any) -> FinishedStage | None:
        if stage.kind != "bench" or stage.parts:
            return super().do_here(recipe, stage, store, **options)
        key = key_of(recipe, stage)
        assert key is not None

        def work(folder: Path) -> None:
            rows = [
                Row(name, name, "pytorch", latency=Latency(median_ms=1.0))
                for name in ("pytorch", *stage.built)
            ]
            settings = {"threads": 1, "inputs": {}}
            save_results(Results(baseline="pytorch", rows=rows, settings=settings,
                                 environment={"processor": stage.machine, "before": {}}),
                         folder / key["file"])  # fmt: skip

        stored = store.run(stage.name, key, work, again=options["again"])
        return FinishedStage(
            StageFile(stored.folder / key["file"], stored.files[key["file"]]), stored.was_done
        )


def test_an_artifact_for_the_cluster_becomes_one_for_each_kind() -> None:
    recipe = expand_cluster_artifacts(recipe_of(FLOAT, ENGINE), KINDS[:2])
    assert [(one.name, one.gpus) for one in recipe.artifact] == [
        ("float", ()), ("engine-sm86", ("sm86",)), ("engine-sm89", ("sm89",)),
    ]  # fmt: skip
    assert expand_cluster_artifacts(recipe, KINDS) is recipe
    written = recipe_of(FLOAT, ENGINE)  # a worker knows no kinds
    for one in recipe.artifact:
        assert find_artifact(written, one.name) == one
    with pytest.raises(KeyError):
        find_artifact(written, "other-sm86")


@pytest.mark.parametrize(
    ("artifacts", "sections", "says"),
    [
        ([{**ENGINE, "gpus": ["cluster", "sm86"]}], {}, "give it alone"),
        ([ENGINE], {"bench": {"baseline": "engine"}}, "one of pytorch, engine-sm86, engine-sm89, "),
        ([ENGINE, {**FLOAT, "name": "engine-sm86"}], {}, "with artifacts for sm86, sm89, sm90, key"),
    ],
)
def test_what_cannot_be_expanded_is_refused(
    artifacts: list[dict[str, object]], sections: dict[str, object], says: str
) -> None:
    with pytest.raises(RecipeError, match=says):
        expand_cluster_artifacts(recipe_of(*artifacts, **sections), KINDS)


def test_tensorrt_is_built_where_that_gpu_is_and_rtx_anywhere() -> None:
    recipe = expand_cluster_artifacts(
        recipe_of(ENGINE, {**ENGINE, "name": "trt", "target": "tensorrt"}), ["sm90"]
    )
    assert {one.name: built_on(one) for one in recipe.artifact} == {"engine-sm90": "", "trt-sm90": "sm90"}


def test_tensorrt_takes_the_kind_of_its_own_gpu(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stand-in, whose GPU is sm86."""
    machine = install(monkeypatch, tmp_path, "10.16")
    model = tiny_file("residual", batch=1)
    named, plain = machine.build(model, name="a", gpus=["sm86"]), machine.build(model, name="b")
    assert named.manifest.device == plain.manifest.device
    assert named.manifest.device["gpus"] == ["sm86"]
    for gpus, says in (["sm90"], "builds only for the GPU in this machine"), (["cluster"], "is for recipes"):
        with pytest.raises(InvalidOption, match=says):
            machine.build(model, name="c", gpus=gpus)


@given(
    built_for=st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.sampled_from(KINDS), unique=True, max_size=3)
    ),
    kinds=st.lists(st.sampled_from(KINDS), unique=True).map(sorted),
    device=st.sampled_from([[], ["cpu"], ["cuda"], ["all"]]),
)
def test_every_artifact_is_measured_once_for_each_kind_that_it_is_for(
    built_for: dict[str, list[str]], kinds: list[str], device: list[str]
) -> None:
    artifacts = [{**FLOAT, "name": name} for name in "abcdef"]
    groups = group_by_machine(recipe_of(*artifacts, bench={"devices": device}), built_for, kinds)
    on_gpu = bool(kinds) and device in (["cuda"], ["all"])
    for name, gpus in built_for.items():
        there = [kind for kind in kinds if kind in gpus]
        expected = there or ([kinds[0]] if on_gpu else [""])
        assert [kind for kind, names in groups.items() if name in names] == expected
    assert groups  # the baseline is measured anyhow
    if not kinds:
        assert list(groups) == [""]


@pytest.fixture
def recipe(write_recipe: Callable[..., Path], tiny_file: Callable[..., Path]) -> Callable[..., Path]:
    tiny_file("residual", batch=1)
    return lambda *tables: write_recipe(*tables, model="simplify = false", data="")


def test_engines_are_built_for_every_kind_and_measured_apart(
    recipe: Callable[..., Path], tmp_path: Path
) -> None:
    path, executor = recipe(*TABLES, "[bench]\n"), OnKinds("sm86", "sm89")
    report = run(path, output=tmp_path / "out", executor=executor)
    assert not report.failures
    for kind in executor.kinds:
        manifest = read_manifest(report.artifacts[f"engine-{kind}"])
        assert manifest is not None
        assert manifest.device["gpus"] == [kind]
    benches = {stage.name: list(stage.built) for stage in executor.asked if stage.kind == "bench"}
    assert benches.pop("bench") == ["float", "engine-sm86", "engine-sm89"], "put together here"
    assert benches == {
        "bench-cpu": ["float"], "bench-sm86": ["engine-sm86"], "bench-sm89": ["engine-sm89"],
    }  # fmt: skip
    assert report.results is not None
    assert [(row.name, row.machine) for row in report.results.rows] == [
        ("pytorch", "cpu"), ("float", "cpu"), ("pytorch (sm86)", "sm86"), ("engine-sm86", "sm86"),
        ("pytorch (sm89)", "sm89"), ("engine-sm89", "sm89"),
    ]  # fmt: skip
    again = run(path, output=tmp_path / "out", executor=OnKinds("sm86", "sm89"))
    assert set(again.stages.values()) == {"skipped"}


def test_one_machine_measures_as_it_did(recipe: Callable[..., Path], tmp_path: Path) -> None:
    path = recipe(TABLES[0], artifact("engine", "tensorrt-rtx", gpus=["sm86"]), "[bench]\n")
    executor = OnKinds()
    report = run(path, output=tmp_path / "out", executor=executor)
    (stage,) = [stage for stage in executor.asked if stage.kind == "bench"]
    assert (stage.name, stage.machine, list(stage.built)) == ("bench", "", ["float", "engine"])
    assert report.results is not None
    assert not report.results.machines
    plain = run(path, output=tmp_path / "plain", executor=OnKinds())
    assert digest_files([report.artifacts["engine"]]) == digest_files([plain.artifacts["engine"]])


def test_without_a_cluster_it_is_said_before_anything_runs(
    recipe: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"key 'artifact\[1\].gpus' is 'cluster'; there is no") as caught:
        qcompile.run(recipe(*TABLES), output=tmp_path / "out")
    assert "`scheduler`" in caught.value.hint
    assert not (tmp_path / "out").exists()
