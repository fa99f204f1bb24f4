"""Every verb takes its options as one object, or by name; command line and recipe hand the object on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from keyword_types import PARAMETERS, SPECS

import qcompile
from qcompile.bench.diff.diff import parse_tolerances
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.cli.main import group
from qcompile.cli.verb import Verb
from qcompile.compiler.quantize.qat.train import prepare
from qcompile.errors import InvalidOption
from qcompile.pipeline.sweep import sweep
from qcompile.spec.decode import spec_from_call
from qcompile.spec.looking import TritonOptions, TritonSpec
from qcompile.spec.measure import DiffCommand, DiffSpec
from qcompile.spec.models import ExportCommand, ExportSpec, ModelSection
from qcompile.spec.option import fields_of

CLI = Path(qcompile.__file__).parent / "cli"
INNER: dict[str, Callable[..., object]] = {
    "layer_diff": layer_diff, "qat": prepare, "sweep": sweep,
}  # fmt: skip
"""Verbs that are not in `qcompile` itself."""
WITHOUT_COMMAND = {"load", "qat"}


def verb_of(name: str) -> Callable[..., object]:
    function: Callable[..., object] = INNER.get(name) or getattr(qcompile, name)
    return function


def test_options_are_compared_by_their_values() -> None:
    one, same, other = (DiffSpec(samples=samples) for samples in (17, 17, 18))
    assert one == same
    assert hash(one) == hash(same)
    assert one not in (other, DiffCommand(reference="a", artifact="b", samples=17))
    assert {one: 1}[same] == 1
    assert "samples=17" in repr(one)
    assert repr(one).startswith("DiffSpec(")


def commands(command: click.Command = group) -> Iterator[Verb]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, "it is listed"
                yield from commands(inner)
    elif isinstance(command, Verb):
        yield command


@pytest.mark.parametrize("name", SPECS)
def test_a_verb_takes_one_object_or_its_fields_by_name(name: str) -> None:
    parameters = inspect.signature(inspect.unwrap(verb_of(name))).parameters.values()
    objects = [one for one in parameters if one.kind is one.POSITIONAL_ONLY and one.default is None]
    assert objects[-1].name == "spec", "behind the subjects"
    assert any(one.kind is one.VAR_KEYWORD for one in parameters)
    fields = {one.name for one in fields_of(SPECS[name])}
    beside = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert fields & beside == PARAMETERS.get(name, set())


@pytest.mark.parametrize("name", [name for name in SPECS if name not in WITHOUT_COMMAND])
def test_a_command_is_the_object_of_its_verb(name: str) -> None:
    """So that it is handed on whole."""
    assert any(issubclass(command.spec, SPECS[name]) for command in commands())


@pytest.mark.parametrize("name", [name for name in SPECS if name not in WITHOUT_COMMAND])
def test_a_command_hands_its_object_to_the_verb(name: str) -> None:
    functions = (
        function
        for path in CLI.glob("*.py")
        for function in ast.parse(path.read_text()).body
        if isinstance(function, ast.FunctionDef) and function.decorator_list
    )
    kinds = {command.spec.__name__ for command in commands() if issubclass(command.spec, SPECS[name])}
    for function in functions:
        arguments = {
            ast.unparse(one).rpartition(".")[2] for one in getattr(function.decorator_list[0], "args", ())
        }
        if arguments & kinds:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            assert any(ast.unparse(one) == "options" for call in calls for one in call.args), function.name


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_no_command_lists_its_options_once_more(path: Path) -> None:
    """`x=options.x, y=options.y` forgets the option that comes next."""
    for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
        repeated = [
            word.arg
            for word in call.keywords
            if isinstance(word.value, ast.Attribute) and ast.unparse(word.value) == f"options.{word.arg}"
        ]
        assert len(repeated) < 3, f"{path.name}:{call.lineno}: {', '.join(map(str, repeated))}"


def test_the_object_may_be_of_a_command_or_a_section_with_keywords_in_place_of_some_fields() -> None:
    typed = ExportCommand(model="m.py:f", output=Path("m.onnx"), opset=18, outputs=("y",))
    assert spec_from_call(ExportSpec, typed, {}) == ExportSpec(opset=18, outputs=("y",))
    assert spec_from_call(ExportSpec, typed, {"opset": 17}) == ExportSpec(opset=17, outputs=("y",))
    assert spec_from_call(ExportSpec, ModelSection(source="m.py:f", trust=True), {}) == ExportSpec(trust=True)


def test_what_the_object_lacks_is_asked_for_by_name() -> None:
    packaged = spec_from_call(TritonSpec, TritonOptions(instances=2), {"name": "net"})
    assert (packaged.name, packaged.instances, packaged.version) == ("net", 2, 1)
    with pytest.raises(InvalidOption, match="`name`: is missing"):
        spec_from_call(TritonSpec, TritonOptions(instances=2), {"version": 3})


def test_limits_of_outputs_may_be_a_mapping() -> None:
    spec = spec_from_call(DiffSpec, None, {"atol": {"logits": 1e-2}, "rules": {"logits": "classes"}})
    assert parse_tolerances(spec.atol, option="`atol`") == {"logits": 1e-2}
    assert spec.rules == ("logits:classes",)


def test_options_of_layers_and_of_outputs_share_the_fields_of_both() -> None:
    typed = DiffCommand(reference="a.onnx", artifact="b.onnx", samples=4, threads=2)
    assert spec_from_call(DiffSpec, typed, {}) == DiffSpec(samples=4, threads=2)
