"""One intent on TensorRT 8.5, 10 and 11: reached by what each has, and proven; and the shapes of inputs."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnx.parser
import pytest
import tensorrt_rtx
from mode_models import written
from simulated_machine import Machine, MakeFile, OnMachine

import qcompile
from qcompile.calibration import load_ranges
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.engines.tensorrt.builder.configure import (
    Shapes,
    add_profiles,
    make_profiles,
    set_calibration_profile,
)
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.runner.io_tensors import InputRange, IOTensor, read_profiles
from qcompile.errors import BuildError, IntentNotReached, InvalidOption, QCompileError, UnsupportedOperator
from qcompile.model.graph.input_notes import AxisRange, InputNote
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensors import TensorInfo

NETWORK = {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}


@pytest.fixture
def ranges(model: Path, samples: MakeFile, tmp_path: Path) -> Path:
    """Its ranges."""
    return calibrate(model, str(samples("residual")), tmp_path / "m.ranges", method="minmax").path


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "int8"])
def test_every_version_reaches_every_precision_it_has_and_float32_means_float32(
    version: str, precision: str, here: Machine, model: Path, ranges: Path
) -> None:
    manifest = here.build(model, precision, ranges=ranges if precision == "int8" else None).manifest
    assert manifest.proof["layers_by_precision"] == {precision: NETWORK}
    assert manifest.proof["planned_in_precision"] == manifest.proof["reached_in_precision"] == 3
    assert manifest.proof["typing"] == ("weak" if version == "8.5.3" else "strong")
    assert manifest.proof["fell_back"] == {}
    if (version, precision) == ("11.4", "fp16"):
        # rf-detr issue 1453: a tool went on asking for FP16 by a flag, TensorRT 11 had none, and built FP32.
        assert manifest.proof["engine_layers_by_precision"].keys() == {"fp16"}
    assert ("TF32" in here.flags()) == (precision == "tf32")
    weak = {"fp16": {"FP16"}, "int8": {"INT8", "FP16"}} if version == "8.5.3" else {}
    assert here.flags() - {"TF32"} == weak.get(precision, set())
    assert manifest.tools["tensorrt"].startswith(version)
    assert (manifest.device["gpu"], manifest.device["gpus"]) == ("Simulated A10", ["sm86"])


@pytest.mark.parametrize(
    ("version", "fallback", "said"),
    [
        *[(one, {"conv2"}, r"2 of 3 layers .*: conv2 \(\d.*%: fp32: ") for one in ("8.5.3", "10.16")],
        ("11.4", {"conv1", "conv2", "gemm"}, "0 of 3 layers that compute reached it"),
    ],
)
def test_layers_that_fell_back_are_named_with_reason(
    version: str, fallback: set[str], said: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version, fallback=fallback)
    with pytest.raises(IntentNotReached, match=said) as caught:
        here.build(model, "fp16")
    assert "`allow_fallback`" in caught.value.hint
    assert here.nothing_built
    kept = here.build(model, "fp16", allow_fallback=True).manifest
    assert any("conv2" in text for text in kept.warnings)
    both = {"fp16": {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 1}, "fp32": {"CONVOLUTION": 1}}
    assert kept.proof["layers_by_precision"] == (both if len(fallback) == 1 else {"fp32": NETWORK})


def test_what_the_engine_is_made_of_is_recorded(machine: OnMachine, model: Path) -> None:
    proof = machine("10.16").build(model, "fp16").manifest.proof
    assert proof["device_memory_bytes"] == 1 << 20
    assert int(str(proof["weights_bytes"])) > 0
    assert int(str(proof["tactics"])) >= 1
    assert int(str(proof["fused_layers"])) >= 1
    assert machine("8.5.3").build(model, name="old").manifest.proof["weights_bytes"] is None


@pytest.mark.parametrize(
    ("version", "precision", "options", "said"),
    [
        ("8.5.3", "bf16", {}, r"tensorrt 8\.5\.3"),
        ("8.5.3", "fp8", {}, r"tensorrt 8\.5\.3"),
        ("11.4", "int8", {"calibrator": "ranges"}, "has no INT8 calibrators.*leave `calibrator` out"),
    ],
)
def test_what_a_version_has_in_neither_way_is_refused(
    precision: str, options: dict[str, Any], said: str, here: Machine, model: Path,
    ranges: Path,
) -> None:  # fmt: skip
    with pytest.raises((InvalidOption, UnsupportedOperator), match=f"(?s){said}"):
        here.build(model, precision, ranges=None if precision == "bf16" else ranges, **options)
    assert here.nothing_built


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
def test_our_ranges_are_set_on_tensors(here: Machine, model: Path, ranges: Path) -> None:
    manifest = here.build(model, "int8", ranges=ranges, calibrator="ranges").manifest
    assert manifest.proof["layers_by_precision"] == {"int8": NETWORK}
    assert (manifest.proof["calibrator"], manifest.proof["calibration_batches"]) == ("ranges", 0)
    assert manifest.proof["typing"] == "weak"
    assert "INT8" in here.flags()
    assert here.told("int8_calibrator") == []
    found = load_ranges(ranges)
    expected = {(-found.amax(name), found.amax(name)) for name in found.names()}
    assert set(here.told("set_dynamic_range")) == expected


@pytest.mark.parametrize("said", ["", "ITensor::setDynamicRange: Error Code 3: API Usage Error (no)"])
def test_a_range_that_tensorrt_does_not_take_is_an_error(
    said: str, machine: OnMachine, model: Path, ranges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("10.16")

    def refuse(tensor: Any, low: float, high: float) -> bool:
        if said:
            tensor._log.log(here.module.ILogger.Severity.ERROR, said)
        return not low < high

    monkeypatch.setattr(here.module.ITensor, "set_dynamic_range", refuse)
    message = "`calibrator` ranges: tensor 'x'" if said else "takes no range for .* tensors: x"
    with pytest.raises(QCompileError, match=message):
        here.build(model, "int8", ranges=ranges, calibrator="ranges")
    assert here.nothing_built


def test_layers_are_kept_above_the_precision(version: str, here: Machine, model: Path) -> None:
    proof = here.build(model, "fp16", layers={"Gemm": "fp32", "conv1": "fp32", "*1": "fp16"}).manifest.proof
    # The last pattern that names a node decides: conv1 is fp16 again.
    assert proof["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2}, "fp32": {"MATRIX_MULTIPLY": 1}}
    assert ("OBEY_PRECISION_CONSTRAINTS" in here.flags()) == (version == "8.5.3")


def test_best_is_int8_with_fp16_with_ranges_else_fp16(machine: OnMachine, model: Path, ranges: Path) -> None:
    here = machine("8.5.3")
    assert here.build(model, "best").manifest.precision == "fp16"
    manifest = here.build(model, "best", ranges=ranges).manifest
    assert (manifest.precision, manifest.options["float_precision"]) == ("int8", "fp16")
    assert here.flags() == {"INT8", "FP16", "TF32"}


@pytest.mark.parametrize(("version", "opset"), [("8.5.3", 16), ("10.16", 18)])
def test_an_opset_unknown_to_the_parser_is_written_down_to_it(
    opset: int, here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ReduceMean takes its axes as an input from 18 on: a parser of 17 may ignore it and reduce everything.
    body = """(float[1,3,8,8] x) => (float[1,4] y) {
        [conv] c = Conv (x, w) [mean] y = ReduceMean <keepdims = 0> (c, axes) }"""
    weights = {"w": np.ones((4, 3, 1, 1), np.float32), "axes": np.array([2, 3])}
    written(tmp_path / "m.onnx", body, opset=18, **weights)
    parsed: list[onnx.ModelProto] = []
    parse_file = here.module.OnnxParser.parse_from_file

    def keep(parser: Any, path: str) -> bool:
        parsed.append(onnx.load(path))
        return bool(parse_file(parser, path))

    monkeypatch.setattr(here.module.OnnxParser, "parse_from_file", keep)
    here.build(tmp_path / "m.onnx")
    (given,) = parsed
    assert given.opset_import[0].version == opset  # LayerNormalization came with 17, and 8.5 lacks it
    mean = next(node for node in given.graph.node if node.op_type == "ReduceMean")
    assert [list(a.ints) for a in mean.attribute if a.name == "axes"] == [[2, 3]] * (opset == 16)
    assert len(mean.input) == (1 if opset == 16 else 2)


@pytest.mark.parametrize(("version", "opset"), [("8.5.3", 16), ("10.16", 17)])
def test_a_refused_node_is_named_with_opset_and_module(opset: int, here: Machine, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        tiny (float[2,3] x) => (float[2,3] y) { h = Relu(x) [odd] y = com.example.Unknown(h) }"""
    made = onnx.parser.parse_model(text)
    scopes = ": net.Net/layer4: torch.nn.modules.container.Sequential/layer4.1: net.Odd/odd: my.odd"
    made.graph.node[1].metadata_props.add(key="namespace", value=scopes)
    onnx.save(made, tmp_path / "m.onnx")
    said = rf"refuses Unknown 'odd' of opset {opset} \(PyTorch module layer4\.1\)"
    with pytest.raises(UnsupportedOperator, match=said):
        here.build(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("about", "said", "hint"),
    [
        ({"out_of_memory": True}, "the GPU has too little memory", "`max_shapes` or `workspace`"),
        ({"needed_workspace": 1 << 40}, "no kernel fits the workspace", "raise `workspace`"),
        ({"no_kernel_for": "conv2"}, "no kernel for a layer: .*conv2", "`layers`"),
    ],
)
def test_a_failed_build_says_what_the_log_means_and_the_way_out(
    version: str, about: dict[str, Any], said: str, hint: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version, **about)
    with pytest.raises(BuildError, match=said) as caught:
        here.build(model)
    assert hint in caught.value.hint
    assert here.nothing_built


@pytest.fixture
def named_layers(tmp_path: Path) -> Path:
    """h + float(int(h) + 1) of a product h, times w; with a Constant that the parser folds away."""
    body = """(float[2,8] x) => (float[2,8] y) {
        ["head/constant"] shape = Constant <value = int64[2] {-1, 8}> ()
        ["head/product"] h = MatMul (x, w) ["head/to_int"] i = Cast <to = 6> (h)
        ["head/integers"] j = Add (i, one) ["head/to_float"] f = Cast <to = 1> (j)
        ["head/sum"] s = Add (h, f) ["head/reshape"] r = Reshape (s, shape) [tail] y = MatMul (r, w) }"""
    weights = {"w": np.eye(8, dtype=np.float32), "one": np.ones(1, np.int32)}
    return written(tmp_path / "m.onnx", body, opset=16, **weights)


def forced(here: Machine) -> int:
    """How many layers were given a precision."""
    return sum(call.member == "precision" and call.written for call in here.module.recorded_calls)


@pytest.mark.parametrize(("version", "options"), [("8.5.3", None), ("10.16", {"typing": "weak"})])
def test_a_glob_forces_what_computes_floats_and_says_what_is_not_there(
    options: dict[str, Any] | None, here: Machine, named_layers: Path
) -> None:
    manifest = here.build(named_layers, "fp16", layers={"head/*": "fp32"}, options=options).manifest
    assert forced(here) == 4  # the product, the cast to float, the sum and the reshape
    assert {dtype.name for _, dtype in here.told("set_output_type")} == {"FLOAT"}
    assert "1 of 7 named layers are not in the network: head/constant" in manifest.warnings


@pytest.mark.parametrize("names", [["head/constant"], ["*constant"], ["head/product", "head/constant"]])
def test_names_of_no_layer_are_refused(names: list[str], machine: OnMachine, named_layers: Path) -> None:
    here = machine("8.5.3")
    with pytest.raises(InvalidOption, match=r"`layers`: the network has no layer head/constant$"):
        here.build(named_layers, "fp16", layers=dict.fromkeys(names, "fp32"))
    here.build(named_layers, "fp16", layers={"head/integers": "fp32", "head/product": "fp32"})
    assert forced(here) == 1


IMAGE = TensorInfo("image", "float32", ("batch", 3, 32, 32))
TOKENS = TensorInfo("tokens", "int64", ("batch", "length"))
FIXED = TensorInfo("table", "float32", (10, 4))


def ranges_of(*inputs: TensorInfo, **shapes: Shapes) -> list[InputRange]:
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
    assert ranges_of(FIXED, IMAGE, **given) == [InputRange("image", low, opt, high)]


def test_each_input_has_its_own_range_and_a_static_one_none() -> None:
    low, opt, high = (1, 64), (8, 64), (16, 512)
    found = ranges_of(IMAGE, TOKENS, min={"tokens": low}, opt={"tokens": opt}, max={"tokens": high})
    assert [item.name for item in found] == ["image", "tokens"]
    assert found[1] == InputRange("tokens", low, opt, high)
    assert ranges_of(FIXED, opt={"table": (10, 4)}) == []


def test_an_axis_has_the_range_that_another_input_was_given_for_its_name() -> None:
    steps = TensorInfo("steps", "float32", ("length", "batch", 8))
    found = ranges_of(IMAGE, TOKENS, steps, **tokens((1, 16), (2, 64), (4, 128)))
    assert found[0] == InputRange("image", (1, 3, 32, 32), (2, 3, 32, 32), (4, 3, 32, 32))
    assert found[2] == InputRange("steps", (16, 1, 8), (64, 2, 8), (128, 4, 8))


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
        ([IMAGE, TOKENS], {"opt": {"tokens": (2, 64), **image(4)}},
         r"axis 'batch': 4/4/4 \(min/opt/max\) in input 'image', 2/2/2 in input 'tokens'; one axis"),
        ([FIXED], {"opt": {"table": (11, 4)}}, "opt shape 11x4 does not fit 10x4"),
        *[([IMAGE, FIXED], {kind: {"img": (1, 3, 32, 32)}},
           f"`{kind}_shapes`: no input 'img'; the inputs are image, table")
          for kind in ("min", "opt", "max")],
        ([TOKENS], {}, r"input 'tokens': axes \[0, 1\] of \[batch,length\].*give `min_shapes`, `opt_shapes`"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(inputs: list[TensorInfo], given: dict[str, Shapes], said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        ranges_of(*inputs, **given)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")


def noted(tensor: TensorInfo, example: tuple[int, ...], **axes: AxisRange) -> InputRange:
    """The default range of an input whose file says what suits the model."""
    note = InputNote(example, {tensor.shape.index(name): limits for name, limits in axes.items()})
    ((found,),) = make_profiles((tensor,), BuildSpec(target="tensorrt"), notes={tensor.name: note})
    return found


def test_an_axis_that_is_the_batch_of_one_input_is_so_in_every_other() -> None:
    """A cache holds its layers in front of the batch."""
    inputs = [TensorInfo("token", "int64", ("batch", 1)), TensorInfo("past", "float32", (2, "batch", "n", 4))]
    notes = {"token": InputNote((2, 1)), "past": InputNote((2, 2, 5, 4))}
    ((token, past),) = make_profiles(inputs, BuildSpec(target="tensorrt"), notes=notes)
    assert (token.min, token.opt, token.max) == ((1, 1), (8, 1), (16, 1))
    assert (past.min, past.opt, past.max) == ((2, 1, 1, 4), (2, 8, 5, 4), (2, 16, 10, 4))


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
    written(tmp_path / "m.onnx", "(float[1,1] x, int64[2] size) => (float[a,b] y) { y = Expand (x, size) }")
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        min_shapes={"size": (1, 1)}, opt_shapes={"size": (8, 6)}, max_shapes={"size": (96, 96)},
    )  # fmt: skip
    profiles: Any = built.manifest.proof["profiles"]
    assert profiles[0]["size"] == {"min": [1, 1], "opt": [8, 6], "max": [96, 96]}
    size = IOTensor("size", np.dtype("int64"), (2,), is_input=True, on_host=True)
    of_8_x: Any = types.SimpleNamespace(num_optimization_profiles=1, profile_values=lambda *_: [])
    (told,) = read_profiles(of_8_x, of_8_x, [size], profiles)
    assert told.ranges == (InputRange("size", (1, 1), (8, 6), (96, 96), of_values=True),)
