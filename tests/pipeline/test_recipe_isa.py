"""The instruction set in keys of stages: what "auto" stands for, so another processor has another key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipes import artifact

from qcompile.engines.capabilities import capabilities
from qcompile.engines.registry import engine
from qcompile.pipeline.auto import _isa
from qcompile.pipeline.portable import portable_text
from qcompile.pipeline.recipe import Recipe, parse_recipe, read_recipe
from qcompile.pipeline.stages import Made, build_stage, lower_stage, with_isa
from qcompile.pipeline.trial_stages import trial_text
from qcompile.tuning import making
from qcompile.tuning.making import TrialAsk, TrialMaker, TrialSetting

OnProcessor = Callable[..., None]


@pytest.fixture
def recipe(write_recipe: Callable[..., Path]) -> Callable[..., Recipe]:
    """`recipe("openvino", isa="avx2")` is a recipe of one INT8 artifact for a processor."""

    def read(target: str = "onnxruntime", **options: str) -> Recipe:
        cpu = artifact("cpu", target, "int8", **options)
        return read_recipe(write_recipe(cpu, artifact("rtx", "tensorrt-rtx", gpus=["sm86"])))

    return read


def keys(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of quantization and build, as they are stored."""
    one, made = recipe.artifact[0], Made(recipe.folder / "residual.onnx", "sha256:0")
    lowered = lower_stage(recipe, one, made, made, capabilities(engine(one.target)))
    assert lowered is not None
    built = build_stage(recipe, one, str(made.path), made.digest)
    quantized: dict[str, Any] = json.loads(json.dumps(lowered.key))
    return quantized, json.loads(json.dumps(built.key))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_another_instruction_set_has_another_key(
    target: str, recipe: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    pytest.importorskip(target)
    on_processor()
    older = keys(recipe(target))
    on_processor("avx512_vnni")
    newer = keys(recipe(target))
    assert [key["options"]["isa"] for key in older] == ["avx2", "avx2"]
    assert [key["options"]["isa"] for key in newer] == ["avx512-vnni", "avx512-vnni"]


def test_a_graph_for_onnx_runtime_is_that_of_every_processor_with_the_instruction_set(
    recipe: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    on_processor("avx512_vnni")
    here = keys(recipe())[0]
    on_processor("avx512_vnni", "avx512_bf16")
    assert keys(recipe())[0] == here
    on_processor()
    assert keys(recipe(isa="avx512-vnni"))[0] == here


def test_an_instruction_set_that_a_recipe_names_is_obeyed(
    recipe: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    on_processor("avx512_vnni")
    for name in ("avx2", "neon"):
        assert [key["options"]["isa"] for key in keys(recipe(isa=name))] == [name, name]
    one = recipe(isa="avx2").artifact[0]
    assert with_isa(one, "amx") == one


def test_what_runs_on_a_gpu_is_for_no_instruction_set(recipe: Callable[..., Recipe]) -> None:
    assert with_isa(recipe().artifact[1], "amx").isa == "auto"


def test_what_is_sent_elsewhere_names_it(recipe: Callable[..., Recipe]) -> None:
    read = recipe()
    sent = replace(read, artifact=tuple(with_isa(one, "avx2") for one in read.artifact))
    text = portable_text(sent)
    assert text.count(b'isa = "avx2"') == 1
    assert parse_recipe(text, read.path) == sent


def test_trials_are_for_the_instruction_set_of_their_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = TrialSetting(tmp_path / "m.onnx", tmp_path / "m.ranges", "data.npz", "cosine", isa="avx2")
    assert json.loads(trial_text(setting))["isa"] == "avx2"
    maker = TrialMaker.__new__(TrialMaker)
    monkeypatch.setattr(maker, "setting", setting, raising=False)
    assert maker._spec(TrialAsk("int8", "onnxruntime", "int8")).isa == "avx2"
    assert making.TrialSetting(setting.model, setting.ranges, "data.npz", "cosine").isa == "auto"


def test_a_search_is_for_the_instruction_set_of_the_recipe(recipe: Callable[..., Recipe]) -> None:
    assert _isa(recipe().artifact) == "auto"
    assert _isa(recipe(isa="avx2").artifact) == "avx2"
