"""Shapes of dynamic inputs: what follows from what is given, and what contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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


def ranges(*inputs: TensorInfo, **shapes: Shapes) -> list[InputRange]:
    """The ranges of inputs for given shapes: `min`, `opt` and `max`."""
    options: dict[str, Any] = {f"{kind}_shapes": given for kind, given in shapes.items()}
    profiles = make_profiles(inputs, BuildSpec(target="tensorrt", **options))
    return [found for profile in profiles for found in profile]


def image(batch: int) -> dict[str, tuple[int, ...]]:
    """A shape of the image input."""
    return {"image": (batch, 3, 32, 32)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, 8, 16)),
        ({"min": image(2), "opt": image(4), "max": image(32)}, (2, 4, 32)),
        ({"opt": image(4)}, (4, 4, 4)),
        ({"max": image(32)}, (32, 32, 32)),
        ({"min": image(2)}, (2, 2, 2)),
        ({"min": image(2), "max": image(6)}, (2, 6, 6)),
        ({"opt": image(4), "max": image(6)}, (4, 4, 6)),
        ({"min": image(1), "opt": image(4)}, (1, 4, 4)),
    ],
)
def test_a_shape_follows_from_the_others(given: dict[str, Shapes], expected: tuple[int, int, int]) -> None:
    low, opt, high = (image(batch)["image"] for batch in expected)
    assert ranges(FIXED, IMAGE, **given) == [InputRange("image", low, opt, high)]


def test_each_input_has_its_own_range_and_a_static_one_none() -> None:
    low, opt, high = (1, 64), (8, 64), (16, 512)
    found = ranges(IMAGE, TOKENS, min={"tokens": low}, opt={"tokens": opt}, max={"tokens": high})
    assert [item.name for item in found] == ["image", "tokens"]
    assert found[1] == InputRange("tokens", low, opt, high)
    assert ranges(FIXED, opt={"table": (10, 4)}) == []


def tokens(low: tuple[int, int], opt: tuple[int, int], high: tuple[int, int]) -> dict[str, Shapes]:
    return {"min": {"tokens": low}, "opt": {"tokens": opt}, "max": {"tokens": high}}


@pytest.mark.parametrize(
    ("inputs", "given", "said"),
    [
        ([IMAGE], {"opt": image(8), "max": image(4)},
         "input 'image': opt shape 8x3x32x32 is above max 4x3x32x32.*raise `max_shapes` or lower `opt_sh"),
        ([IMAGE], {"min": image(8), "opt": image(4)},
         "input 'image': min shape 8x3x32x32 is above opt 4x3x32x32.*raise `opt_shapes` or lower `min_sh"),
        ([IMAGE], {"min": image(8), "max": image(4)}, r"input 'image': .* is above"),
        # One axis out of order is enough.
        ([TOKENS], tokens((1, 65), (2, 64), (4, 128)), "input 'tokens': min"),
        ([TOKENS], tokens((1, 16), (2, 129), (4, 128)), "input 'tokens': opt"),
        ([TOKENS], tokens((3, 16), (2, 64), (4, 128)), "input 'tokens': min"),
        ([IMAGE], {"max": {"image": (1, 3, 32)}}, r"max shape 1x3x32 does not fit \[batch,3,32,32\]"),
        ([IMAGE], {"max": {"image": (1, 3, 32, 33)}}, r"max shape 1x3x32x33 does not fit \[batch,3,32,32\]"),
        ([IMAGE, TOKENS], {"opt": {"tokens": (2, 64)}},
         r"axis 'batch': 1/8/16 \(min/opt/max\) in input 'image', 2/2/2 in input 'tokens'; one axis"),
        ([FIXED], {"opt": {"table": (11, 4)}}, "opt shape 11x4 does not fit 10x4"),
        *[([IMAGE, FIXED], {kind: {"img": (1, 3, 32, 32)}},
           f"`{kind}_shapes`: no input 'img'; the inputs are image, table")
          for kind in ("min", "opt", "max")],
        ([TOKENS], {}, r"input 'tokens': axes \[0, 1\] of \[batch,length\].*give `min_shapes`, `opt_shapes`"),
    ],
)  # fmt: skip
def test_shapes_that_contradict_themselves_or_the_inputs_are_refused(
    inputs: list[TensorInfo], given: dict[str, Shapes], said: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        ranges(*inputs, **given)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")


def noted(tensor: TensorInfo, example: tuple[int, ...], **axes: AxisRange) -> InputRange:
    """The default range of an input whose file says what suits the model."""
    note = InputNote(example, {tensor.shape.index(name): limits for name, limits in axes.items()})
    ((found,),) = make_profiles((tensor,), BuildSpec(target="tensorrt"), notes={tensor.name: note})
    return found


PIXELS = TensorInfo("pixels", "float32", ("batch", 3, "height", "width"))
SOUND = TensorInfo("sound", "float32", ("time",))  # a first axis that is no batch


@pytest.mark.parametrize(
    ("tensor", "example", "axes", "expected"),
    [
        (TOKENS, (2, 16), {"length": AxisRange(1, 512)}, [(1, 1), (8, 16), (16, 512)]),
        (PIXELS, (2, 3, 96, 64), {"height": AxisRange(40, None, 32), "width": AxisRange(32, 100, 32)},
         [(1, 3, 64, 32), (8, 3, 96, 64), (16, 3, 192, 96)]),
        (SOUND, (16000,), {"time": AxisRange(400)}, [(400,), (16000,), (32000,)]),
    ],
)  # fmt: skip
def test_axes_get_the_ranges_that_the_file_knows_of(
    tensor: TensorInfo, example: tuple[int, ...], axes: dict[str, AxisRange], expected: list[tuple[int, ...]]
) -> None:
    assert noted(tensor, example, **axes) == InputRange(tensor.name, *expected)


def test_a_note_of_another_rank_decides_nothing() -> None:
    with pytest.raises(InvalidOption, match="no shapes are given"):
        noted(TOKENS, (2,))


NINE = (1,) * 9


def test_what_real_bindings_raise_names_input_and_range() -> None:
    builder = tensorrt_rtx.Builder(make_log(tensorrt_rtx).logger)
    config = builder.create_builder_config()
    sizes = InputRange("size", (4, 4), (2, 4), (8, 4), of_values=True)
    for item, said in (
        (sizes, r"values of input 'size': 4x4, 2x4, 8x4 \(min, opt, max\): opt input provided for shape"),
        (InputRange("x", NINE, NINE, NINE), r"range of input 'x': 1x1x.* \(min, opt, max\): set_shape\(\)"),
    ):
        with pytest.raises(BuildError, match=said):
            add_profiles(builder, config, [[item]])
    wide = InputRange("size", (1,), (2**40,), (2**41,), of_values=True)
    add_profiles(builder, config, [[InputRange("x", (1, 4), (2, 4), (8, 4)), wide]])
    assert config.num_optimization_profiles == 1


def test_a_refused_shape_and_a_refused_profile_are_our_errors() -> None:
    refusing = Mock()  # a configuration that takes no profile, as one that is out of memory, and its builder
    # Source: NVIDIA/TensorRT, python/src/infer/pyCore.cpp, opt_profile_set_shape, all versions.
    inconsistent = RuntimeError("Shape provided for opt is inconsistent with other shapes.")
    refusing.create_optimization_profile().set_shape.side_effect = inconsistent
    # Source: IBuilderConfig::addOptimizationProfile, NvInfer.h: -1 if the profile is not valid.
    refusing.add_optimization_profile.return_value = -1
    x, values = InputRange("x", (1,), (2,), (3,)), InputRange("s", (1,), (2,), (3,), of_values=True)
    with pytest.raises(BuildError, match=r"input 'x': 1, 2, 3 \(min, opt, max\): Shape provided for"):
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
