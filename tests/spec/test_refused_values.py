"""Values that nothing can use are refused for every option, however they are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.cli.measure import bench
from qcompile.errors import InvalidOption, RecipeError
from qcompile.pipeline.recipe.recipe import parse_recipe
from qcompile.spec.artifacts import BuildCommand, BuildSpec, QuantizeCommand
from qcompile.spec.decode import Refused, decode
from qcompile.spec.looking import ReportCommand
from qcompile.spec.measure import (
    BenchCommand,
    BenchOptions,
    BenchSection,
    BenchSpec,
    Budget,
    DiffCommand,
    GateOptions,
)
from qcompile.spec.models import CalibrateCommand, ExportCommand
from qcompile.spec.option import Option, options_of
from qcompile.spec.recipes import AutoCommand, RecipeFile, TuneCommand, TuneSpec
from qcompile.spec.tensorrt import TensorRTOptions

SPECS = (
    AutoCommand, BenchCommand, BuildCommand, CalibrateCommand, DiffCommand, ExportCommand,
    QuantizeCommand, RecipeFile, ReportCommand, TuneCommand,
)  # fmt: skip
RECIPE = """version = 1
name = "net"
[model]
source = "{source}"
[[artifact]]
name = "a"
target = "onnxruntime"
precision = "fp32"
[bench]
{bench}
"""


def options_of_type(kind: type) -> Iterator[Any]:
    """Every option of a type, of every command and of a recipe."""
    for spec in SPECS:
        for one in options_of(spec):
            if isinstance(one.kind, kind) and "." not in one.key and one.table is None:
                yield pytest.param(spec, one, id=f"{spec.__name__}.{one.name}")


FLOATS = list(options_of_type(msgspec.inspect.FloatType))


@pytest.mark.parametrize(("spec", "one"), FLOATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", math.nan, math.inf, "1e999", 10**400])
def test_a_number_is_finite(spec: type, one: Option, value: object) -> None:
    known: dict[str, Any] = {}
    for other in options_of(spec):
        if other.required and other.name != one.name and other.table is None:
            known[other.name] = ["x"] if other.repeated else 1 if _is_number(other) else "x"
    with pytest.raises(Refused) as caught:
        decode(spec, {**known, one.name: value}, strict=False)
    assert caught.value.key == one.name


def _is_number(one: Option) -> bool:
    return isinstance(one.kind, msgspec.inspect.FloatType | msgspec.inspect.IntType)


@pytest.mark.parametrize("value", [0, -3, "0"])
@pytest.mark.parametrize("spec", [BenchSpec, BenchSection, GateOptions, TuneSpec])
def test_a_batch_has_a_sample(spec: type, value: object) -> None:
    known = {one.name: 1 if _is_number(one) else "x" for one in options_of(spec) if one.required}
    with pytest.raises(Refused, match=r"`batch_size` '?(0|-3)'?: at least 1 is required"):
        decode(spec, {**known, "batch_size": value}, strict=False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("name", ["timeout_s", "max_time_s", "precision_target"])
def test_python_takes_no_infinite_time(name: str, value: float) -> None:
    with pytest.raises(InvalidOption, match=name):
        BenchOptions(**{name: value})
    with pytest.raises(InvalidOption, match="max_drop"):
        Budget(max_drop=value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "+inf", "1e999", "9" * 400])
@pytest.mark.parametrize("name", ["timeout_s", "max_time_s", "max_latency_ms"])
def test_a_recipe_takes_no_infinite_time(name: str, value: str) -> None:
    text = RECIPE.format(source="net.py:build", bench=f"{name} = {value}")
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text.encode(), Path("r.toml"))
    assert caught.value.data["key"] == f"bench.{name}"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("flag", ["--timeout", "--max-time"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "-1", "0"])
def test_the_command_line_takes_no_infinite_time(flag: str, value: str) -> None:
    said = CliRunner().invoke(bench, ["a.onnx", "--baseline", "b.onnx", flag, value])
    assert isinstance(said.exception, InvalidOption)
    assert said.exception.message.startswith(flag)


def test_whole_numbers_fit_the_runtimes() -> None:
    with pytest.raises(InvalidOption, match="at most 2147483647 is required"):
        BenchOptions(threads=2**31)
    with pytest.raises(InvalidOption, match="at most 2147483647 is required"):
        BenchOptions(batch_sizes=(1, 2**63))
    assert BenchOptions(threads=2**31 - 1).threads == 2**31 - 1


@pytest.mark.parametrize(
    ("bench", "source", "key"),
    [("", "a\\u0000.py:f", "model.source"), ('baseline = "\\u0000"', "a", "bench.baseline")],
)
def test_no_text_holds_nul(bench: str, source: str, key: str) -> None:
    with pytest.raises(RecipeError, match="without the character NUL") as caught:
        parse_recipe(RECIPE.format(source=source, bench=bench).encode(), Path("r.toml"))
    assert caught.value.data["key"] == key
    with pytest.raises(InvalidOption, match="without the character NUL"):
        ReportCommand(results=Path("a\0b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": ("cluster", "sm86")}, "`gpus`: 'cluster' stands for all of them"),
        ({"gpus": ("cluster",)}, "'cluster' is for recipes that `run` carries out"),
        ({"gpus": ("sm86",), "tensorrt": TensorRTOptions(device=1)}, "`tensorrt.device`: excludes `gpus`"),
        ({"precision": "fp16", "calibrator": "native"}, "is for `precision` int8; the precision is fp16"),
        ({"calibrator": "native"}, "give `data` and no `ranges`"),
        ({"calibrator": "native", "data": "x.npz", "ranges": "m.ranges"}, "give `data` and no `ranges`"),
        ({"calibrator": "ranges"}, "give `ranges` and no `data`"),
        ({"calibrator": "ranges", "data": "x.npz", "ranges": "m.ranges"}, "give `ranges` and no `data`"),
        ({"calibration_cache": "m.cache"}, "is for `calibrator` native, entropy or minmax"),
    ],
)
def test_options_of_a_build_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    int8: dict[str, Any] = {"target": "tensorrt", "precision": "int8"}
    with pytest.raises(Refused, match=message):
        BuildSpec(**int8 | options)
    assert BuildSpec(
        **int8, calibrator="entropy", data="x.npz", calibration_cache="m.cache"
    ).calibrates_itself


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 100_000, b"a = " + b"{b = " * 50_000, b"[" + b"a." * 20_000 + b"b]", b"\xff = 1",
        b"\0", b"a = " + b"9" * 5000, b"\xef\xbb\xbfversion = 1", b"a = 1979-13-45", b"version = 1979-05-27",
        b"a = 1\na = 2", b"version = 1\nname = 07:32:00\n", b"version = 1\nname = [[]]\n", b'"' * 10_001,
        b"a = '''", b"version = nan", b"#" * (1 << 20) + b"\n",
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_recipe_is_refused(content: bytes) -> None:
    with pytest.raises(RecipeError, match=r"^r\.toml: "):
        parse_recipe(content, Path("r.toml"))


@settings(max_examples=50)
@given(st.floats() | st.integers() | st.text() | st.none() | st.lists(st.floats()))
def test_any_value_of_a_time_is_taken_or_refused(value: Any) -> None:
    try:
        taken = BenchOptions(timeout_s=value).timeout_s
    except InvalidOption:
        return
    assert 0 < taken < math.inf
