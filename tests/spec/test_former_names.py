"""Names that options and values had before: what is still read, and what is said in place of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from commands import MakePath
from jsonschema import Draft202012Validator
from reference_pages import verbs

import qcompile
from qcompile.artifact import Manifest, int8_isa
from qcompile.cli.main import group
from qcompile.cli.session import Session
from qcompile.cli.verb import verb
from qcompile.errors import InvalidOption, RecipeError
from qcompile.files import manifest_path
from qcompile.pipeline.recipe import read_recipe
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.decode import Refused, decode, parse_spec
from qcompile.spec.measure import BenchCommand
from qcompile.spec.option import options_of
from qcompile.spec.recipes import recipe_schema
from qcompile.spec.removed import COMMANDS, OPTIONS, SOURCES, removed_option, removed_source
from qcompile.spec.words import FORMER_ISAS

WITH_ISA = [made.spec for _, made in verbs() if any(one.name == "isa" for one in options_of(made.spec))]
REMOVED = [
    ("rest", "bf16", "`float_precision`"),
    ("processor", "avx2", "`isa`"),
    ("form", "qdq", "`quant_format`"),
    ("calibrator", "ours", "ranges"),
]


def required(spec: type) -> list[str]:
    """What a command must be given beside the option."""
    more = {"target": "tensorrt", "precision": "int8", "ranges": "m.ranges", "output": "o", "model": "m.onnx"}
    return [
        word
        for one in options_of(spec)
        if one.name in more
        for word in ([more[one.name]] if one.spelling.argument else [one.flag, more[one.name]])
    ]


def typed(spec: type, *words: str) -> tuple[list[Any], click.testing.Result]:
    taken: list[Any] = []

    @verb(spec, "example")
    def command(_: Session, one: Any) -> None:
        taken.append(one)

    return taken, CliRunner().invoke(command, [*required(spec), *words])


@pytest.mark.parametrize("spec", WITH_ISA)
@pytest.mark.parametrize("old", FORMER_ISAS)
def test_the_command_line_takes_a_former_instruction_set_and_warns(spec: type, old: str) -> None:
    taken, done = typed(spec, "--isa", old)
    assert taken[0].isa == FORMER_ISAS[old], done.output
    assert f"warning: --isa {old} is now {FORMER_ISAS[old]}\n" in done.stderr


def recipe(folder: Path, line: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(
        'version = 1\nname = "net"\n[model]\nsource = "m.py:build"\n[data]\ncalibration = "x.npz"\n'
        f'[[artifact]]\nname = "a"\ntarget = "tensorrt"\nprecision = "int8"\n{line}\n'
    )
    return path


@pytest.mark.parametrize("old", FORMER_ISAS)
def test_recipes_and_python_take_it_and_warn(old: str, tmp_path: Path) -> None:
    new = FORMER_ISAS[old]
    path, told = recipe(tmp_path, f'isa = "{old}"'), list[str]()
    with pytest.warns(DeprecationWarning, match=rf"`artifact\[0\]\.isa` {old} is now {new}"):
        assert read_recipe(path).artifact[0].isa == new
    read_recipe(path, told=told.append)
    assert told == [f"{path}: `artifact[0].isa` {old} is now {new}"]
    with pytest.warns(DeprecationWarning, match=f"`isa` {old} is now {new}"):
        assert parse_spec(BuildSpec, {"target": "onnxruntime", "isa": old}).isa == new
    validator = Draft202012Validator(recipe_schema()["$defs"]["ArtifactSection"]["properties"]["isa"])
    assert validator.is_valid(old)
    assert not validator.is_valid("other")


@pytest.mark.parametrize(("name", "value", "now"), REMOVED)
def test_what_went_is_refused_with_its_name_of_today(name: str, value: str, now: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as refused:
        qcompile.build("m.onnx", "m", target="tensorrt", precision="int8", ranges="m.ranges", **{name: value})
    assert f"went with 0.3.0: its name is {now}" in refused.value.hint
    with pytest.raises(RecipeError) as in_recipe:
        read_recipe(recipe(tmp_path, f'{name} = "{value}"'))
    assert f"its name is {now}" in in_recipe.value.hint


def test_the_warning_names_the_line_that_calls(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import qcompile\nqcompile.build('m.onnx', 'm', target='openvino', isa='vnni', threads=-1)\n"
    )
    code = compile(script.read_text(), str(script), "exec")
    with (
        pytest.warns(DeprecationWarning, match="is now") as caught,
        pytest.raises(InvalidOption, match="`threads`"),
    ):
        exec(code, {})
    assert (caught[0].filename, caught[0].lineno) == (str(script), 2)


def test_the_options_of_a_manifest_of_before_are_read() -> None:
    options = {"rest": "bf16", "processor": "vnni", "form": "qdq", "calibrator": "ours", "unknown": 1}
    assert Manifest("engine", "build", options=options).current_options == {
        "float_precision": "bf16", "isa": "avx512-vnni", "quant_format": "qdq", "calibrator": "ranges",
        "unknown": 1,
    }  # fmt: skip


@pytest.mark.parametrize("old", FORMER_ISAS)
def test_the_device_of_a_manifest_of_before_tells_the_instruction_set(old: str) -> None:
    manifest = Manifest("onnx", "build", "openvino", "int8", device={"isa": old, "features": ["avx2"]})
    assert int8_isa(manifest) == FORMER_ISAS[old]


def test_openvino_computes_an_artifact_of_before_as_its_manifest_says(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    from qcompile.engines.openvino import engine

    built = qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target="openvino").path
    manifest = json.loads(manifest_path(built).read_text())
    manifest |= {"precision": "int8", "options": {"rest": "bf16", "gpus": [], "min_shapes": {}}}
    manifest_path(built).write_text(json.dumps(manifest))
    computed_in: list[str] = []
    monkeypatch.setattr(engine, "why_emulated", lambda _: "")
    monkeypatch.setattr(
        engine.OpenVino, "_compiled", lambda _, __, precision, *___, **____: computed_in.append(precision)
    )
    engine.OpenVino().open(str(built))
    assert computed_in == ["bf16"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_to_use_instead(name: str) -> None:
    result = CliRunner().invoke(group, [name])
    assert result.exit_code == 2
    assert f"{name} went with 0.3.0: {COMMANDS[name]}" in result.output
    with pytest.raises(AttributeError, match=r"went with 0\.3\.0"):
        getattr(qcompile, name)


def test_a_name_that_never_was_is_unknown_only() -> None:
    assert "went with" not in CliRunner().invoke(group, ["frobnicate"]).output
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        _ = qcompile.frobnicate


@pytest.mark.parametrize("name", OPTIONS)
def test_a_key_of_a_recipe_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(BenchCommand, {name.rpartition(".")[2]: 1})
    if removed_option(name.rpartition(".")[2]):
        assert OPTIONS[name] in refused.value.hint


@pytest.mark.parametrize("prefix", SOURCES)
def test_a_prefix_says_what_to_use_instead(prefix: str) -> None:
    assert SOURCES[prefix] in removed_source(f"{prefix}:anything")
