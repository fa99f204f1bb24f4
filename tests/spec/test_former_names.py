"""Former names of options and of values are understood everywhere, with a warning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from reference_pages import pages, verbs

import qcompile
from qcompile.building import build
from qcompile.cli.session import Session
from qcompile.cli.verb import verb
from qcompile.errors import InvalidOption
from qcompile.files import manifest_path
from qcompile.pipeline.recipe import Recipe, read_recipe
from qcompile.spec.artifacts import ArtifactSection, BuildSpec
from qcompile.spec.decode import Refused, current, given
from qcompile.spec.option import Option, fields_of, options_of
from qcompile.spec.recipes import recipe_schema

RENAMED = [one for one in options_of(ArtifactSection) if one.spelling.formerly]
VALUES = [(one, *pair) for one in options_of(ArtifactSection) for pair in one.spelling.former_values.items()]
MakeFile = Callable[..., Path]


def another(one: Option) -> Any:
    """A value of an option that is not its default."""
    return next(choice for choice in one.choices if choice != one.default)


def name_of(value: object) -> str:
    return value.key if isinstance(value, Option) else str(value)


def test_these_names_were_others_before() -> None:
    assert {one.name: one.spelling.formerly for one in RENAMED} == {
        "float_precision": "rest",
        "isa": "processor",
        "quant_format": "form",
    }
    assert [(one.name, old, new) for one, old, new in VALUES] == [
        ("isa", "vnni", "avx512-vnni"),
        ("isa", "arm", "neon"),
        ("calibrator", "ours", "ranges"),
    ]


def typed_before() -> Iterator[tuple[str, type, list[str], str, str, Any]]:
    """Each command and each former name in it: what is typed, its field, its value, and the warning."""
    for name, made in verbs():
        for one in options_of(made.spec):
            if one.spelling.formerly:
                typed = [one.former_flag, another(one)]
                yield name, made.spec, typed, f"{one.former_flag} is now {one.flag}", one.name, another(one)
            for old, new in one.spelling.former_values.items():
                yield name, made.spec, [one.flag, old], f"{one.flag} {old} is now {new}", one.name, new


def required(spec: type) -> list[str]:
    """What a command must be given beside the option."""
    more = {
        "target": "tensorrt",
        "precision": "int8",
        "ranges": "m.ranges",
        "output": "made",
        "model": "m.onnx",
    }
    return [
        word
        for one in options_of(spec)
        if one.name in more
        for word in ([more[one.name]] if one.spelling.argument else [one.flag, more[one.name]])
    ]


@pytest.mark.parametrize("case", list(typed_before()), ids=lambda case: f"{case[0]} {' '.join(case[2])}")
def test_the_command_line_takes_it_and_warns(case: Any) -> None:
    _, spec, typed, warning, field, value = case
    taken: list[Any] = []

    @verb(spec, "example")
    def command(_: Session, one: Any) -> None:
        taken.append(one)

    done = CliRunner().invoke(command, [*required(spec), *typed])
    assert done.exit_code == 0, done.output
    assert getattr(taken[0], field) == value
    assert f"warning: {warning}\n" in done.stderr
    assert " ".join(typed) not in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.parametrize("one", RENAMED, ids=name_of)
def test_former_flags_are_in_no_help_and_on_no_page(one: Option) -> None:
    for _, made in verbs():
        with click.Context(made) as context:
            assert f"{one.former_flag} " not in made.get_help(context)
    assert f"| `{one.spelling.formerly}` |" not in pages()["reference/recipe.md"]


def recipe(folder: Path, line: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(
        'version = 1\nname = "net"\n[model]\nsource = "m.py:build"\n[data]\ncalibration = "x.npz"\n'
        f'[[artifact]]\nname = "a"\ntarget = "tensorrt"\nprecision = "int8"\n{line}\n'
    )
    return path


@pytest.mark.parametrize("one", RENAMED, ids=name_of)
def test_a_recipe_takes_the_former_key_and_warns(one: Option, tmp_path: Path) -> None:
    path = recipe(tmp_path, f"{one.spelling.formerly} = {json.dumps(another(one))}")
    warning = rf"artifact\[0\]\.{one.spelling.formerly}` is now `{one.name}`"
    with pytest.warns(DeprecationWarning, match=warning):
        found = read_recipe(path)
    assert getattr(found.artifact[0], one.name) == another(one)
    told: list[str] = []
    assert isinstance(read_recipe(path, told=told.append), Recipe)
    assert told == [f"{path}: `artifact[0].{one.spelling.formerly}` is now `{one.name}`"]


def former(one: Option) -> dict[str, Any]:
    return {one.spelling.formerly: another(one)}


@pytest.mark.parametrize(("one", "old", "new"), VALUES, ids=name_of)
def test_a_recipe_takes_the_former_value_and_warns(one: Option, old: str, new: str, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=rf"`artifact\[0\]\.{one.name}` {old} is now {new}"):
        found = read_recipe(recipe(tmp_path, f"{one.name} = {json.dumps(old)}"))
    assert getattr(found.artifact[0], one.name) == new


def test_an_editor_marks_former_names_as_deprecated() -> None:
    section = recipe_schema()["$defs"]["ArtifactSection"]
    for one in RENAMED:
        assert section["properties"][one.spelling.formerly]["deprecated"] is True
    for one, old, _ in VALUES:
        validator = Draft202012Validator(section["properties"][one.name])
        assert validator.is_valid(old)
        assert not validator.is_valid("other")


@pytest.mark.parametrize("one", RENAMED, ids=name_of)
def test_python_takes_the_former_keyword_and_warns(one: Option) -> None:
    warning = f"`{one.spelling.formerly}` is now `{one.name}`"
    with pytest.warns(DeprecationWarning, match=warning) as caught:
        spec = given(BuildSpec, {"target": "tensorrt", **former(one)})
    assert getattr(spec, one.name) == another(one)
    assert len(caught) == 1
    with (
        pytest.warns(DeprecationWarning, match=warning),
        pytest.raises(InvalidOption, match="`precision` 'x'"),
    ):
        build("m.onnx", "m.engine", target="tensorrt", precision="x", **former(one))
    with (
        pytest.warns(DeprecationWarning, match=warning),
        pytest.raises(InvalidOption, match="`precision` 'x'"),
    ):
        qcompile.quantize("m.onnx", "q.onnx", precision="x", **former(one))


@pytest.mark.parametrize(("one", "old", "new"), VALUES, ids=name_of)
def test_python_takes_the_former_value_and_warns(one: Option, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"`{one.name}` {old} is now {new}"):
        spec = given(
            BuildSpec, {"target": "tensorrt", "precision": "int8", "ranges": "m.ranges", one.name: old}
        )
    assert getattr(spec, one.name) == new


def test_an_option_by_both_of_its_names_is_refused() -> None:
    for one in RENAMED:
        with (
            pytest.warns(DeprecationWarning, match="is now"),
            pytest.raises(Refused, match="is given twice, by its former name"),
        ):
            given(BuildSpec, {"target": "tensorrt", one.name: another(one), **former(one)})


def test_the_warning_names_the_line_that_calls(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import qcompile\nqcompile.build('m.onnx', 'm', target='openvino', rest='fp16', threads=-1)\n"
    )
    code = compile(script.read_text(), str(script), "exec")
    with (
        pytest.warns(DeprecationWarning, match="is now") as caught,
        pytest.raises(InvalidOption, match="`threads`"),
    ):
        exec(code, {})
    assert (caught[0].filename, caught[0].lineno) == (str(script), 2)


def test_the_options_of_a_manifest_of_before_are_read() -> None:
    told: list[str] = []
    for one in RENAMED:
        assert current(BuildSpec, {**former(one), "unknown": 1}, told.append) == {
            one.name: another(one),
            "unknown": 1,
        }


def test_openvino_computes_an_artifact_of_before_as_its_manifest_says(
    tiny_file: MakeFile, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    from qcompile.engines.openvino.engine import _as_built

    built = qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target="openvino").path
    manifest = json.loads(manifest_path(built).read_text())
    manifest |= {"precision": "int8", "options": {"rest": "bf16", "gpus": [], "min_shapes": {}}}
    manifest_path(built).write_text(json.dumps(manifest))
    assert _as_built(built) == "bf16"


def test_every_former_name_is_of_no_option_that_there_is() -> None:
    for kind in {type_ for _, made in verbs() for type_ in (made.spec,)}:
        names = {one.name for one in fields_of(kind)}
        assert not names & {one.spelling.formerly for one in fields_of(kind)}
