"""An option is one field: it is then on the command line, in the recipe, the schema and the keys."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from qcompile.cli.session import Session
from qcompile.cli.verb import verb
from qcompile.errors import InvalidOption
from qcompile.spec.artifacts import BuildSpec, with_floats
from qcompile.spec.decode import Checked, Refused, decode
from qcompile.spec.option import COMMA, argument, fields_of, option, options_of
from qcompile.spec.words import Count


class Before(Checked):
    """Paint FILE."""

    file: Annotated[Path, argument("File to paint.")]
    colour: Annotated[Literal["red", "blue"], "Colour of the paint."] = "red"


class After(Before):
    """Paint FILE."""

    coats: Annotated[int, "Number of coats.", option("--coat", ge=1, le=9)] = 2


def painted(spec: type[Before]) -> tuple[click.Command, list[Before]]:
    """A command of the spec, and what it was given."""
    given: list[Before] = []

    @verb(spec, "paint wall.txt")
    def paint(_: Session, one: Before) -> None:
        given.append(one)

    return paint, given


def test_a_new_field_is_an_option_of_the_command_and_of_its_help() -> None:
    assert "--coat" not in CliRunner().invoke(painted(Before)[0], ["--help"]).output
    command, given = painted(After)
    said = CliRunner().invoke(command, ["--help"]).output
    assert "--coat" in said
    assert "Number of coats." in said
    assert "[default: 2" in said
    assert CliRunner().invoke(command, ["wall.txt", "--coat", "3"]).exit_code == 0
    assert given == [After(file=Path("wall.txt"), coats=3)]
    assert (
        str(CliRunner().invoke(command, ["wall.txt", "--coat", "0"]).exception)
        == "--coat 0: at least 1 is required"
    )


def test_a_new_field_is_decoded_checked_and_in_the_schema() -> None:
    values = {"file": "wall.txt", "coats": 9}
    assert decode(After, values).coats == 9
    with pytest.raises(Refused, match=r"`coats` 10: at most 9 is required"):
        decode(After, {**values, "coats": 10})
    with pytest.raises(Refused, match=r"`coats`: is unknown"):
        decode(Before, values)
    with pytest.raises(InvalidOption, match=r"`coats` 0: at least 1 is required"):
        After(file=Path("wall.txt"), coats=0)
    schema = msgspec.json.schema(After, schema_hook=lambda _: {"type": "string"})
    assert Draft202012Validator(schema).is_valid(values)
    assert not Draft202012Validator(schema).is_valid({**values, "coats": 10})


class Frame(Checked):
    """A table in a table."""

    width_mm: Annotated[float, "Width of the frame.", option("--frame", gt=0)] = 1.0
    corners: Annotated[tuple[str, ...], "A corner.", option("--corner", split=COMMA)] = ()
    gilded: Annotated[bool, "Gild it."] = False
    nails: Annotated[Count, "Number of nails."] = 4
    dry: Annotated[bool, "Do not wait.", option("--wet", off=True)] = True
    varnish: Annotated[bool | None, "Varnish it."] = None

    def check(self) -> None:
        """Gold needs width."""
        if self.gilded and self.width_mm < 2:
            raise Refused("gilded", "belongs to a `width_mm` of 2 and more")


class Picture(Checked):
    """Hang a picture."""

    frame: Frame = field(default_factory=Frame)
    rows: tuple[Frame, ...] = ()


def test_what_is_typed_becomes_the_type_of_the_field() -> None:
    given: list[Frame] = []

    @verb(Frame, "frame")
    def frame(_: Session, one: Frame) -> None:
        given.append(one)

    typed = "--frame 2.5 --corner a,b --corner c --gilded --wet --no-varnish".split()
    assert CliRunner().invoke(frame, typed).exit_code == 0
    assert CliRunner().invoke(frame, []).exit_code == 0
    corners = ("a", "b", "c")
    assert given == [Frame(width_mm=2.5, corners=corners, gilded=True, dry=False, varnish=False), Frame()]


def test_an_error_names_the_option_as_it_is_typed_or_by_its_path() -> None:
    @verb(Frame, "frame")
    def frame(_: Session, one: Frame) -> None:
        raise AssertionError(one)

    failed = CliRunner().invoke(frame, ["--gilded"]).exception
    assert isinstance(failed, Refused)
    assert failed.message == "--gilded: belongs to a --frame of 2 and more"
    assert failed.data["option"] == "--gilded"
    with pytest.raises(Refused) as caught:
        decode(Picture, {"rows": [{}, {"gilded": True}]})
    sentence = "belongs to a `width_mm` of 2 and more"
    assert (caught.value.key, caught.value.sentence) == ("rows[1].gilded", sentence)
    with pytest.raises(Refused, match=r"did you mean frame\.gilded") as caught:
        decode(Picture, {"frame": {"guilded": True}})
    assert caught.value.key == "frame.guilded"


def test_options_of_tables_have_their_path_and_their_default() -> None:
    assert all(option.sentence for option in options_of(Frame))
    with pytest.raises(Refused, match="`nails` 0: at least 1 is required"):
        Frame(nails=0)
    found = {one.key: one.default for one in options_of(Picture)}
    assert found["frame.width_mm"] == 1.0
    assert [one.name for one in fields_of(Picture)] == ["frame", "rows"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"frame": {"width_mm": "wide"}}, "is a text ('wide'); a number is required"),
        ({"frame": {"corners": ["a", 1]}}, "is a whole number (1); a text is required"),
        ({"frame": 3}, "is a whole number (3); a table is required"),
        ({"rows": {}}, "is a table ({}); a list is required"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_type(values: dict[str, object], said: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(Picture, values)
    assert caught.value.sentence == said


@pytest.mark.parametrize(
    ("options", "chosen", "floats"),
    [
        ({"target": "tensorrt", "precision": "int8"}, "fp16", "fp16"),
        ({"target": "tensorrt-rtx", "precision": "int8"}, "fp16", "fp16"),
        ({"target": "tensorrt-rtx", "precision": "int8", "layers": ("a=bf16",)}, "bf16", "bf16"),
        ({"target": "tensorrt-rtx", "precision": "int8", "float_precision": "fp32"}, "fp32", "fp32"),
        ({"target": "tensorrt", "precision": "int8", "mode": "weights"}, "auto", "fp32"),
        ({"target": "tensorrt", "precision": "fp8"}, "auto", "fp32"),
        ({"target": "onnxruntime", "precision": "int8"}, "auto", "fp32"),
        ({"target": "openvino", "precision": "int8", "float_precision": "bf16"}, "bf16", "bf16"),
    ],
)
def test_auto_is_fp16_in_int8_for_tensorrt(options: dict[str, Any], chosen: str, floats: str) -> None:
    spec = with_floats(BuildSpec(**options))
    assert (spec.float_precision, spec.floats) == (chosen, floats)
