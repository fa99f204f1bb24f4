"""What TensorRT answers to the ranges of a profile, by the real builder of TensorRT-RTX."""

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
from qcompile.engines.tensorrt.builder.profiles import InputRange
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.runner.io_tensors import IOTensor
from qcompile.engines.tensorrt.runner.profile_choice import Profile, with_declared_values
from qcompile.errors import BuildError

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
