"""Shapes of dynamic inputs: what follows from what is given, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tensorrt_rtx

import qcompile
from qcompile.engines.tensorrt.builder.configure import add_profiles, set_calibration_profile
from qcompile.engines.tensorrt.builder.profiles import InputRange, Shapes, make_profiles
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.runner.io_tensors import IOTensor
from qcompile.engines.tensorrt.runner.profile_choice import Profile, with_declared_values
from qcompile.errors import BuildError, InvalidOption
from qcompile.model.input_notes import AxisRange, InputNote
from qcompile.spec.artifacts import BuildSpec
from qcompile.tensors import TensorInfo

IMAGE = TensorInfo("image", "float32", ("batch", 3, 32, 32))
TOKENS = TensorInfo("tokens", "int64", ("batch", "length"))
FIXED = TensorInfo("table", "float32", (10, 4))


def ranges(
    *inputs: TensorInfo, low: Shapes | None = None, opt: Shapes | None = None, high: Shapes | None = None
) -> list[InputRange]:
    """The ranges of inputs for given shapes."""
    shapes: dict[str, Any] = {"min_shapes": low or {}, "opt_shapes": opt or {}, "max_shapes": high or {}}
    return [
        one for profile in make_profiles(inputs, BuildSpec(target="tensorrt", **shapes)) for one in profile
    ]


def image(batch: int) -> dict[str, tuple[int, ...]]:
    """A shape of the image input."""
    return {"image": (batch, 3, 32, 32)}


def batches(found: list[InputRange]) -> tuple[int, int, int]:
    """The batches of the only range."""
    (only,) = found
    assert only.min[1:] == only.opt[1:] == only.max[1:] == (3, 32, 32)
    return only.min[0], only.opt[0], only.max[0]


def test_a_dynamic_batch_alone_gets_1_8_and_16() -> None:
    assert batches(ranges(IMAGE)) == (1, 8, 16)


def test_a_static_input_gets_no_range() -> None:
    assert ranges(FIXED) == []
    assert [found.name for found in ranges(FIXED, IMAGE)] == ["image"]


def test_all_three_shapes_are_taken_as_given() -> None:
    assert batches(ranges(IMAGE, low=image(2), opt=image(4), high=image(32))) == (2, 4, 32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"opt": image(4)}, (4, 4, 4)),
        ({"high": image(32)}, (32, 32, 32)),
        ({"low": image(2)}, (2, 2, 2)),
        ({"low": image(2), "high": image(6)}, (2, 6, 6)),
        ({"opt": image(4), "high": image(6)}, (4, 4, 6)),
        ({"low": image(1), "opt": image(4)}, (1, 4, 4)),
    ],
)
def test_a_shape_that_is_not_given_follows_from_those_that_are(
    given: dict[str, Shapes], expected: tuple[int, int, int]
) -> None:
    assert batches(ranges(IMAGE, **given)) == expected


def test_each_input_has_its_own_range() -> None:
    found = ranges(
        IMAGE, TOKENS, low={"tokens": (1, 64)}, opt={"tokens": (8, 64)}, high={"tokens": (16, 512)}
    )
    assert [item.name for item in found] == ["image", "tokens"]
    assert found[1] == InputRange("tokens", (1, 64), (8, 64), (16, 512))


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            {"opt": image(8), "high": image(4)},
            "input 'image': opt shape 8x3x32x32 is above max 4x3x32x32",
            "raise `max_shapes` or lower `opt_shapes`",
        ),
        (
            {"low": image(8), "opt": image(4)},
            "input 'image': min shape 8x3x32x32 is above opt 4x3x32x32",
            "raise `opt_shapes` or lower `min_shapes`",
        ),
    ],
)
def test_shapes_out_of_order_name_both_and_the_way_out(
    given: dict[str, Shapes], message: str, hint: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        ranges(IMAGE, **given)
    assert caught.value.message == message
    assert caught.value.hint == hint


def test_a_minimum_above_the_maximum_is_refused_where_nothing_lies_between() -> None:
    with pytest.raises(InvalidOption, match=r"input 'image': .* is above"):
        ranges(IMAGE, low=image(8), high=image(4))


@pytest.mark.parametrize(
    ("low", "opt", "high"),
    [((1, 65), (2, 64), (4, 128)), ((1, 16), (2, 129), (4, 128)), ((3, 16), (2, 64), (4, 128))],
)
def test_one_axis_out_of_order_is_enough(
    low: tuple[int, int], opt: tuple[int, int], high: tuple[int, int]
) -> None:
    with pytest.raises(InvalidOption, match="input 'tokens'"):
        ranges(TOKENS, low={"tokens": low}, opt={"tokens": opt}, high={"tokens": high})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 32), r"max shape 1x3x32 does not fit \[batch,3,32,32\]"),
        ((1, 3, 32, 33), r"max shape 1x3x32x33 does not fit \[batch,3,32,32\]"),
    ],
)
def test_a_shape_that_does_not_fit_the_input_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        ranges(IMAGE, high={"image": shape})


@pytest.mark.parametrize(("kind", "option"), [("low", "min"), ("opt", "opt"), ("high", "max")])
def test_an_unknown_input_is_refused_with_the_known_ones(kind: str, option: str) -> None:
    with pytest.raises(
        InvalidOption, match=f"`{option}_shapes`: no input 'img'; the inputs are image, table"
    ):
        ranges(IMAGE, FIXED, **{kind: {"img": (1, 3, 32, 32)}})


def test_a_static_input_takes_its_own_shape_and_no_other() -> None:
    assert ranges(FIXED, opt={"table": (10, 4)}) == []
    with pytest.raises(InvalidOption, match="opt shape 11x4 does not fit 10x4"):
        ranges(FIXED, opt={"table": (11, 4)})


def test_other_dynamic_axes_than_the_first_need_shapes() -> None:
    with pytest.raises(InvalidOption, match=r"input 'tokens': axes \[0, 1\] of \[batch,length\]") as caught:
        ranges(TOKENS)
    assert caught.value.hint == "give `min_shapes`, `opt_shapes` and `max_shapes`"


def noted(tensor: TensorInfo, example: tuple[int, ...], **axes: AxisRange) -> InputRange:
    """The default range of an input whose file says what suits the model."""
    note = InputNote(example, {tensor.shape.index(name): limits for name, limits in axes.items()})
    ((found,),) = make_profiles((tensor,), BuildSpec(target="tensorrt"), notes={tensor.name: note})
    return found


def test_axes_get_the_ranges_that_the_file_knows_of() -> None:
    found = noted(TOKENS, (2, 16), length=AxisRange(1, 512))
    assert (found.min, found.opt, found.max) == ((1, 1), (8, 16), (16, 512))
    pixels = TensorInfo("pixels", "float32", ("batch", 3, "height", "width"))
    found = noted(pixels, (2, 3, 96, 64), height=AxisRange(40, None, 32), width=AxisRange(32, 100, 32))
    assert (found.min, found.opt, found.max) == ((1, 3, 64, 32), (8, 3, 96, 64), (16, 3, 192, 96))


def test_a_first_axis_that_is_no_batch_gets_what_suits_it() -> None:
    sound = TensorInfo("sound", "float32", ("time",))
    found = noted(sound, (16000,), time=AxisRange(400))
    assert (found.min, found.opt, found.max) == ((400,), (16000,), (32000,))


def test_a_note_of_another_rank_decides_nothing() -> None:
    with pytest.raises(InvalidOption, match="no shapes are given"):
        noted(TOKENS, (2,))


NINE = (1,) * 9


class Refusing:
    """A configuration that takes no profile, as one that is out of memory, and has what the builder has."""

    def create_optimization_profile(self) -> Any:
        return self

    def set_shape(self, *_: Any) -> None:
        """Source: NVIDIA/TensorRT, python/src/infer/pyCore.cpp, opt_profile_set_shape, all versions."""
        raise RuntimeError("Shape provided for opt is inconsistent with other shapes.")

    def set_shape_input(self, *_: Any) -> None:
        """Takes all."""

    def add_optimization_profile(self, profile: Any) -> int:
        """Source: IBuilderConfig::addOptimizationProfile, NvInfer.h: -1 if the profile is not valid."""
        return -1


@pytest.fixture
def builder() -> Any:
    """A real builder, whose logger the process keeps."""
    log = make_log(tensorrt_rtx)
    return tensorrt_rtx.Builder(getattr(log, "logger", log))


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            InputRange("size", (4, 4), (2, 4), (8, 4), of_values=True),
            r"values of input 'size': 4x4, 2x4, 8x4 \(min, opt, max\): opt input provided for shape",
        ),
        (
            InputRange("x", NINE, NINE, NINE),
            r"the range of input 'x': 1x1x.* \(min, opt, max\): set_shape\(\)",
        ),
    ],
)
def test_what_the_real_bindings_raise_names_input_and_range(
    builder: Any, item: InputRange, said: str
) -> None:
    with pytest.raises(BuildError, match=said):
        add_profiles(builder, builder.create_builder_config(), [[item]])


def test_real_profiles_hold_values_of_64_bits(builder: Any) -> None:
    config = builder.create_builder_config()
    wide = InputRange("size", (1,), (2**40,), (2**41,), of_values=True)
    add_profiles(builder, config, [[InputRange("x", (1, 4), (2, 4), (8, 4)), wide]])
    assert config.num_optimization_profiles == 1


def test_a_refused_shape_and_a_refused_profile_are_our_errors() -> None:
    refusing: Any = Refusing()
    x, values = InputRange("x", (1,), (2,), (3,)), InputRange("s", (1,), (2,), (3,), of_values=True)
    with pytest.raises(
        BuildError, match=r"range of input 'x': 1, 2, 3 \(min, opt, max\): Shape provided for"
    ):
        add_profiles(refusing, refusing, [[x]])
    with pytest.raises(BuildError, match=r"refuses optimization profile 1 \(values of input 's': 1, 2, 3"):
        add_profiles(refusing, refusing, [[values]])
    with pytest.raises(BuildError, match=r"range of input 'x': 5, 5, 5 "):
        set_calibration_profile(refusing, refusing, [InputRange("x", (5,), (5,), (5,))])


def test_an_engine_with_a_shape_tensor_of_two_int64_values_is_built(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        expanded (float[1,1] x, int64[2] size) => (float[a,b] y) { y = Expand (x, size) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        min_shapes={"size": (1, 1)}, opt_shapes={"size": (8, 6)}, max_shapes={"size": (96, 96)},
    )  # fmt: skip
    profiles: Any = built.manifest.proof["profiles"]
    assert profiles[0]["size"] == {"min": [1, 1], "opt": [8, 6], "max": [96, 96]}
    size = IOTensor("size", np.dtype("int64"), (2,), is_input=True, on_host=True)
    (told,) = with_declared_values([Profile(0, {}, {})], profiles, [size])  # as the runner reads it on 8.x
    assert told.values["size"].holds((8, 6))
    assert not told.values["size"].holds((8, 97))
