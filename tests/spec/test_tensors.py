"""Shapes, inputs, axes, tolerances and sizes: what is spelled is read, and what is none is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.bench.diff.diff import parse_tolerances
from qcompile.calibration.tensorrt_cache import version_code
from qcompile.errors import DataError, InvalidOption
from qcompile.model.sources.source import SourceOptions, parse_query
from qcompile.pipeline.recipe.batches import _read_profile
from qcompile.spec.tensorrt import parse_bytes
from qcompile.spec.tensors import (
    AxisExtents,
    ModelIO,
    TensorInfo,
    check_feeds,
    concrete,
    fill_dynamic,
    format_shape,
    mismatch,
    parse_dynamic_axis,
    parse_input,
    parse_named_shape,
    parse_shape,
    parse_shapes,
)

DIGITS = "9" * 5000
EXTENTS = st.integers(0, 10**18 - 1)
AXIS_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True) | st.just("?")
SHAPES = st.lists(EXTENTS | AXIS_NAMES, max_size=6).map(tuple)
TENSOR_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_/.]{0,8}(:[0-9])?", fullmatch=True)


@pytest.mark.parametrize("spelling", ["1x3x224x224", "[1,3,224,224]", "1,3,224,224", " [1, 3, 224, 224] "])
def test_the_spellings_are_one_shape(spelling: str) -> None:
    assert parse_shape(spelling) == (1, 3, 224, 224)


def test_the_first_spelling_is_printed() -> None:
    assert format_shape((1, 3, 224, 224)) == "1x3x224x224"
    assert format_shape(("batch", 3, 8)) == "[batch,3,8]"
    assert format_shape(()) == "scalar"


@given(SHAPES)
def test_a_printed_shape_reads_back(shape: tuple[int | str, ...]) -> None:
    assert parse_shape(format_shape(shape)) == shape


@given(TENSOR_NAMES, SHAPES, st.sampled_from(["float32", "int64", "bool", "float16"]))
def test_a_printed_tensor_reads_back(name: str, shape: tuple[int | str, ...], dtype: str) -> None:
    tensor = TensorInfo(name, dtype, shape)
    assert parse_input(str(tensor)) == tensor


@given(st.builds(TensorInfo, TENSOR_NAMES, st.sampled_from(["float32", "int8"]), SHAPES))
def test_the_json_form_reads_back(tensor: TensorInfo) -> None:
    io = ModelIO((tensor,), (tensor, tensor))
    assert ModelIO.from_json(io.as_json()) == io


@pytest.mark.parametrize(
    ("read", "texts", "words"),
    [
        (parse_shape, ["1x3x", "1,,3", "-1x3", "[1,-3]", "1.5x2", "1x3]", "1 x 3", ",", "1x3,4"],
         "neither an extent nor a name of an axis"),
        (parse_named_shape, ["1x3x224", ":1x3", "x"], "has no input name"),
        (parse_dynamic_axis, ["x", "x:batch", "x:0=", "x:-1=batch", "x:0=1", ":0=batch", f"x:{DIGITS}=b"],
         "is not INPUT:AXIS=NAME"),
        (lambda text: parse_shapes(text.split(), option="--opt-shapes"), ["x:1x3 x:2x3"],
         "input 'x' is given twice"),
        (lambda text: parse_shapes([text], option="--opt-shapes"), ["x:[batch,3]"],
         r"--opt-shapes x:\[batch,3\]: axis 0 is dynamic \(batch\)"),
        (lambda text: parse_shapes([text], option="--min-shapes"), ["x:[n=4,3]"], "--min-shapes"),
    ],
)  # fmt: skip
def test_what_is_no_shape_or_axis_is_refused(
    read: Callable[[str], object], texts: list[str], words: str
) -> None:
    for text in texts:
        with pytest.raises(InvalidOption, match=words):
            read(text)


def test_a_shape_without_a_name_is_refused_with_the_form() -> None:
    with pytest.raises(InvalidOption, match=r"^--min-shapes: ") as caught:
        parse_named_shape("1x3x224", option="--min-shapes")
    assert "x:1x3x224x224" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:1x3", ("x", (1, 3))),
        ("serving_default:0:1x3", ("serving_default:0", (1, 3))),
        ("a/b.c:[batch,3]", ("a/b.c", ("batch", 3))),
        ("step:scalar", ("step", ())),
        ("step:", ("step", ())),
    ],
)
def test_the_last_colon_divides_name_and_shape(
    text: str, expected: tuple[str, tuple[int | str, ...]]
) -> None:
    assert parse_named_shape(text) == expected


def test_an_input_is_float32_unless_said() -> None:
    assert parse_input("x:1x3") == TensorInfo("x", "float32", (1, 3))
    assert parse_input("ids:0:[batch,77]:int64") == TensorInfo("ids:0", "int64", ("batch", 77))


def test_concrete_shapes_are_read_by_name() -> None:
    shapes = parse_shapes(["x:1x3", "mask:0:[1,77]"], option="--opt-shapes")
    assert shapes == {"x": (1, 3), "mask:0": (1, 77)}
    assert concrete((1, 3), "x") == (1, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:0=batch", ("x", 0, "batch")),
        ("x:2", ("x", 2, "x_2")),
        ("ids:0:1=length", ("ids:0", 1, "length")),
        ("ids:0:1", ("ids:0", 1, "ids_0_1")),
    ],
)
def test_dynamic_axes_are_read(text: str, expected: tuple[str, int, str]) -> None:
    assert parse_dynamic_axis(text) == expected


def test_a_tensor_knows_its_dynamic_axes_and_what_fits() -> None:
    tensor = TensorInfo("x", "float32", ("batch", 3, "width"))
    assert tensor.dynamic_axes == {0: "batch", 2: "width"}
    assert tensor.accepts((7, 3, 9))
    assert not tensor.accepts((7, 4, 9))
    assert not tensor.accepts((7, 2, 9))
    assert not tensor.accepts((7, 3))
    assert fill_dynamic(tensor, 5) == (5, 3, 5)


INPUTS = (TensorInfo("x", "float32", ("batch", 3)), TensorInfo("mask", "bool", ("batch",)))


def feeds(**changed: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.zeros((2, 3), np.float32), "mask": np.zeros(2, bool), **changed}


def test_feeds_that_fit_pass() -> None:
    check_feeds(INPUTS, feeds(), "batch 3")
    check_feeds((TensorInfo("s", "string", (1,)),), {"s": np.array(["a"])}, "batch 3")


@pytest.mark.parametrize(
    ("changed", "message", "tensor"),
    [
        ({"y": np.zeros(1)}, "batch 3: no input 'y' in the model; it takes x, mask", "y"),
        ({"x": np.zeros((2, 3))}, "batch 3: input 'x' is float64; float32 is required", "x"),
        ({"x": np.zeros((2, 4), np.float32)}, "batch 3: input 'x' has shape 2x4; [batch,3] is required", "x"),
        ({"mask": np.zeros((), bool)}, "batch 3: input 'mask' has shape scalar; [batch] is required", "mask"),
        ({"x": np.zeros((2, 3), ">f4")}, "batch 3: input 'x' is >f4; float32 is required", "x"),
        ({"mask": None}, "batch 3: input 'mask' is missing", "mask"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(changed: dict[str, np.ndarray], message: str, tensor: str) -> None:
    found = {name: array for name, array in feeds(**changed).items() if array is not None}
    with pytest.raises(DataError) as caught:
        check_feeds(INPUTS, found, "batch 3")
    assert caught.value.message == message
    assert caught.value.data["tensor"] == tensor
    assert ("'labels'" in caught.value.hint) == (tensor == "y")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x:[batch,height=64]", AxisExtents(1, traced=64)),
        ("x:[batch,height=32..512]", AxisExtents(1, 32, 512)),
        ("x:[batch, height = 32..64..512]:int64", AxisExtents(1, 32, 512, 64)),
        ("x:batch,height=32..", AxisExtents(1, 32)),
        ("ids:0:[batch,height=..512]", AxisExtents(1, 1, 512)),
    ],
)
def test_axes_of_inputs_may_have_extents(text: str, said: AxisExtents) -> None:
    tensor = parse_input(text)
    assert tensor.shape == ("batch", "height")
    assert tensor.extents == (said,)


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("axis 'n'", ["[n=1]", "[n=5..2]", "[n=0..4]", "[n=8..4..16]", "[n=4..32..16]", "[n=..1]"]),
        ("neither an extent nor a name", ["[n=]", "[n=a]", "[=4]", "[n=-3]", "[3=4]", "[1,²]", "1,٣",
                                          "[[1,2]]", "[n=٣..9,3]", f"[n={DIGITS},3]", f"[n=1..{DIGITS},3]"]),
        ("nor between brackets", ["batchx3x224x224", "Nx3x32x32", "x3x224", "1x3:flaot32"]),
        ("an extent of 5000 digits", [f"1x{DIGITS}"]),
    ],
)  # fmt: skip
def test_what_is_no_input_is_refused(said: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InvalidOption, match=said):
            parse_input(f"x:{text}")
    assert parse_input("x:[h=..]").shape == ("h",)


ODD: dict[Callable[[str], object], tuple[str, ...]] = {
    lambda text: parse_tolerances([text], option="`atol`"): (
        "inf", "-inf", "y:1e999", "-1", "y:-0.1", "", "y:", "1e-3x", "0x1",
    ),
    version_code: (f"1.{DIGITS}",),
    partial(parse_bytes, option="workspace"): ("nan", "inf", "-1", "1e999", "infM", DIGITS),
    partial(parse_query, spec="m"): (f"seed={DIGITS}",),
}  # fmt: skip
"""What other readers of spellings refuse: numbers that none holds."""


@pytest.mark.parametrize(("read", "texts"), ODD.items(), ids=range(len(ODD)))
def test_what_is_no_number_is_refused(read: Callable[[str], object], texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(InvalidOption):
            read(text)


def test_tolerances_and_profiles_are_read() -> None:
    assert parse_tolerances(["1", "y:1e-3"], option="`atol`") == {"": 1.0, "y": 1e-3}
    with pytest.raises(InvalidOption, match="a finite number from 0"):
        parse_tolerances(["nan"], option="`atol`")
    with pytest.raises(InvalidOption, match=r"output 'y' is given twice"):
        parse_tolerances(["1", "y:1", "y:2"], option="`atol`")
    assert _read_profile("1" * 100_000) == {}  # in no time: its pattern took minutes
    assert _read_profile("a:1x3..2x3..4x3,b:c:[1]..[2]..[4]") == {"a": (1, 4), "b:c": (1, 4)}


def test_names_of_files_that_are_no_utf_8_are_written_as_they_were_read() -> None:
    options = parse_query("weights=a%FF\udcc7", "m")
    assert options == SourceOptions(weights="a\udcff\udcc7")
    assert parse_query(options.query[1:], "m") == options


@pytest.mark.parametrize(
    ("expected", "actual", "precision", "differs"),
    [
        (np.zeros((2, 3), "f4"), np.zeros((2, 3), "f4"), "fp32", None),
        (np.zeros((2, 3), "f4"), np.zeros((2, 4), "f4"), "int8", ("2x3", "2x4")),
        (np.zeros((1,), "f4"), np.zeros((), "f4"), "fp32", ("1", "scalar")),
        (np.zeros((0, 4), "f4"), np.zeros((0, 4), "f4"), "fp32", None),
        (np.zeros(2, "f4"), np.zeros(2, "i8"), "int8", ("float32", "int64")),
        (np.zeros(2, "f4"), np.zeros(2, "f2"), "fp32", ("float32", "float16")),
        (np.zeros(2, "f4"), np.zeros(2, "f2"), "fp16", None),
        (np.zeros(2, "i8"), np.zeros(2, "i4"), "fp32", None),
        (np.zeros(2, "i4"), np.zeros(2, "i8"), "fp32", ("int32", "int64")),
        (np.zeros(2, "?"), np.zeros(2, "u1"), "fp32", ("bool", "uint8")),
        (np.array(["a"]), np.array(["a"], object), "fp32", None),
        (np.zeros(2, "f4"), None, "fp32", ("2 float32", "no output")),
        (None, np.zeros(2, "f4"), "fp32", ("no output", "2 float32")),
    ],
)  # fmt: skip
def test_outputs_of_another_shape_or_type_cannot_be_compared(
    expected: np.ndarray | None, actual: np.ndarray | None, precision: str, differs: tuple[str, str] | None
) -> None:
    assert mismatch(expected, actual, precision) == differs
