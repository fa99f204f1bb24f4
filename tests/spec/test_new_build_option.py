"""A field added to the specs reaches the engine, the keys of stages and the manifest by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from commands import MakePath

import qcompile
from qcompile.building import build as building
from qcompile.core.artifact import read_manifest
from qcompile.core.processor import isa_here
from qcompile.core.progress import silent
from qcompile.engines.base import BuildOutcome, BuildRequest
from qcompile.engines.onnx_runtime import OnnxRuntime
from qcompile.errors import InvalidOption
from qcompile.pipeline.recipe.recipe import Recipe, read_recipe
from qcompile.pipeline.stages import stages
from qcompile.pipeline.stages.graph import carry_out, key_of
from qcompile.pipeline.stages.stage import Key, Stage, StageFile
from qcompile.spec.artifacts import ArtifactSection, BuildSpec
from qcompile.spec.decode import shared

Colour = Annotated[Literal["red", "blue"], "Colour of the artifact."]


class ColouredSpec(BuildSpec):
    """What `build` is told, with one more option."""

    colour: Colour = "red"


class ColouredSection(ArtifactSection):
    """`[[artifact]]` with it."""

    colour: Colour = "red"


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The colours that ONNX Runtime's builder was asked for, of specs with the field."""
    seen: list[str] = []
    builds = OnnxRuntime.build

    def build(self: OnnxRuntime, request: BuildRequest) -> BuildOutcome:
        assert isinstance(request.spec, ColouredSpec)
        seen.append(request.spec.colour)
        return builds(self, request)

    monkeypatch.setattr(OnnxRuntime, "build", build)
    for module in (building, stages):
        monkeypatch.setattr(module, "BuildSpec", ColouredSpec)
    return seen


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Recipe:
    """A recipe of one artifact."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'version = 1\nname = "net"\n[model]\nsource = "{tiny_file("mlp")}"\n'
        '[[artifact]]\nname = "cpu"\ntarget = "onnxruntime"\n'
    )
    return read_recipe(path)


def test_it_reaches_the_engine_and_the_manifest_of_a_build(
    colours: list[str], tiny_file: MakePath, tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    plain = qcompile.build(model, tmp_path / "a.onnx", target="onnxruntime").manifest
    blue = qcompile.build(model, tmp_path / "b.onnx", target="onnxruntime", colour="blue").manifest
    assert colours == ["red", "blue"]
    assert (plain.options, blue.options) == ({"isa": isa_here()}, {"isa": isa_here(), "colour": "blue"})
    with pytest.raises(InvalidOption, match="`colour` 'green': one of red, blue is required"):
        qcompile.build(model, tmp_path / "c.onnx", target="onnxruntime", colour="green")


def key(kind: str, recipe: Recipe, section: Any, files: dict[str, StageFile]) -> Key:
    """The key of a stage of an artifact."""
    stage = Stage(kind=kind, artifact=section.name, files=files)
    found = key_of(replace(recipe, artifact=(section,)), stage)
    assert found is not None
    return found


def test_it_reaches_the_engine_the_keys_and_the_manifest_of_a_run(
    colours: list[str], recipe: Recipe, tiny_file: MakePath, tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    red, blue = (shared(ColouredSection, recipe.artifact[0], colour=colour) for colour in ("red", "blue"))
    files = {"model": StageFile(model, "sha256:0")}
    keys = [key("build", recipe, one, files) for one in (red, blue)]
    assert [key["options"]["colour"] for key in keys] == ["red", "blue"]
    stage = Stage(kind="build", artifact=blue.name, files=files)
    carry_out(replace(recipe, artifact=(blue,)), stage, tmp_path, tmp_path, silent)
    manifest = read_manifest(tmp_path / f"{blue.name}.onnx")
    assert manifest is not None
    assert manifest.options == {"isa": isa_here(), "colour": "blue"}
    assert colours == ["blue"]


def test_it_is_part_of_the_key_of_a_graph(colours: list[str], recipe: Recipe, tiny_file: MakePath) -> None:
    dynamic = shared(ColouredSection, recipe.artifact[0], precision="int8", mode="dynamic", colour="blue")
    made = StageFile(tiny_file("mlp"), "sha256:0")
    assert key("quantize", recipe, dynamic, {"model": made})["options"]["colour"] == "blue"
    assert colours == []


@pytest.mark.parametrize("name", [one for one in BuildSpec.__dataclass_fields__ if one != "target"])
def test_every_option_of_a_build_that_runs_know_is_in_its_key(name: str, recipe: Recipe) -> None:
    built = key("build", recipe, recipe.artifact[0], {"model": StageFile(Path("m.onnx"), "sha256:0")})
    of_the_machine = {"ranges", "data", "calibration_cache"}  # digests stand for them
    elsewhere = {"inputs", "threads", "trust"}  # of [model]; threads are the bench's
    assert name in {**built["options"], **dict.fromkeys(of_the_machine | elsewhere)}
