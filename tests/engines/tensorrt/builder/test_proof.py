"""What an inspector answers is read in the words of every version, and weighed by multiply-adds."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspector_shapes import FP32, HALF8, INT8, SHAPES, UNKNOWN, convolution, graph, layer
from mode_models import written
from simulated_machine import Machine, MakeFile, OnMachine

from qcompile.core.artifact import Check, load_artifact
from qcompile.engines.tensorrt.builder.inspector import (
    UNREPORTED,
    Inspection,
    parse_members,
    parse_precision,
    read_layers,
)
from qcompile.engines.tensorrt.builder.network import ComputeLayer, judge
from qcompile.errors import BuildError, IntentNotReached

LAYERS = 54
"""As ResNet-50 with its classifier has."""


def chain(path: Path, layers: int = LAYERS, *, batch: int | str = 1) -> Path:
    """Equal convolutions, one behind the other."""
    weight = np.random.default_rng(0).normal(0, 0.2, (4, 4, 3, 3)).astype(np.float32)
    conv = "[conv{}] t{} = Conv <pads = [1,1,1,1], kernel_shape = [3,3]> (t{}, w)"
    nodes = "\n".join(conv.format(index, index + 1, index) for index in range(layers))
    shape = f"float[{batch},4,8,8]"
    return written(path, f"({shape} t0) => ({shape} t{layers}) {{ {nodes} }}", w=weight)


def missed(count: int) -> dict[str, Any]:
    """Layers that fall back to float32."""
    return {"fallback": {f"conv{index}" for index in range(count)}}


PROFILES = {"profiles": ("t0:1x4x8x8..2x4x8x8..4x4x8x8", "t0:5x4x8x8..6x4x8x8..8x4x8x8")}


def test_one_layer_of_54_is_named_with_its_share_and_passes(machine: OnMachine, tmp_path: Path) -> None:
    here, model = machine("8.5.3", **missed(1)), chain(tmp_path / "m.onnx")
    manifest = here.build(model, "fp16").manifest
    assert manifest.proof["typing"] == "weak"
    assert manifest.proof["missed_share"] == pytest.approx(1 / LAYERS, abs=1e-4)
    (warning,) = [text for text in manifest.warnings if "missed it" in text]
    assert "53 of 54 layers" in warning
    assert "conv0 (1.9%: fp32: it had no fp16 kernel or timed it slower" in warning
    assert "`layers` 'conv0=fp16' forces it" in warning
    with pytest.raises(IntentNotReached, match=r"conv0 \(1\.9%"):
        here.build(model, "fp16", strict=True, name="strict")
    assert here.build(model, "fp16", strict=True, allow_fallback=True, name="kept").path.exists()


def test_more_than_a_tenth_fails_and_is_kept_under_another_name(machine: OnMachine, tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx")
    stands = machine("8.5.3", **missed(5)).build(model, "fp16", name="stands")
    assert stands.manifest.proof["reached_in_precision"] == LAYERS - 5
    said = r"48 of 54 layers .*11\.1% of the planned multiply-adds"
    with pytest.raises(IntentNotReached, match=said) as caught:
        machine("8.5.3", **missed(6)).build(model, "fp16")
    assert not (tmp_path / "built" / "m.engine").exists()
    assert caught.value.hint.endswith("; the artifact is saved as m.rejected.engine")
    kept = load_artifact(tmp_path / "built" / "m.rejected.engine")
    assert kept.manifest.precision == "fp16"
    assert kept.manifest.proof["missed_share"] == pytest.approx(6 / LAYERS, abs=1e-4)
    assert any("48 of 54 layers" in text for text in kept.manifest.warnings)


def test_an_inspector_is_gone_before_its_engine(version: str, machine: OnMachine, tmp_path: Path) -> None:
    """TensorRT 8.5.3 on an H200 complained: there an inspector does not keep its engine alive."""
    here = machine(version)
    here.module.recorded_calls = deque(maxlen=0)  # a call holds what it was given
    here.build(chain(tmp_path / "m.onnx", batch="n"), options=PROFILES)
    assert here.module._gpu.complaints == []


def silenced(here: Machine, *, whole: object = "", single: object = None) -> Machine:
    """The machine with an inspector that answers this; `single` of each layer, where it is not None."""
    inspector = here.module.EngineInspector
    inspector.get_engine_information = lambda *_: whole
    if single is not None:
        inspector.get_layer_information = lambda *_: single
    return here


@pytest.mark.parametrize("whole", ["", None, "{", '{"Layers": []}'])
def test_an_inspector_that_is_silent_on_the_whole_engine_is_asked_layer_by_layer(
    version: str, whole: object, machine: OnMachine, tmp_path: Path
) -> None:
    # NVIDIA/TensorRT issues 4438 and 2583; Polygraphy asks layer by layer (backend/trt/util.py).
    here = silenced(machine(version, **missed(1)), whole=whole)
    model = chain(tmp_path / "m.onnx", batch="n")
    proof = here.build(model, "fp16", options=PROFILES).manifest.proof
    assert proof["reached_in_precision"] == LAYERS - 1
    assert "inspector" not in proof


def test_a_silent_inspector_leaves_layers_unreported(machine: OnMachine, tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx")
    strong = silenced(machine("10.16"), single="").build(model, "fp16").manifest
    assert json.loads(json.dumps(strong.as_json()))
    assert strong.proof["inspector"] == "not known: its answer is empty"
    assert strong.proof["engine_layers"] is None
    assert strong.proof["layers_by_precision"] == {"unreported": {"CONVOLUTION": LAYERS}}
    assert strong.proof["reached_in_precision"] == 0
    assert strong.proof["unreported_share"] == 1
    assert "binding" in str(strong.proof["evidence"])
    assert any("inspector does not report every layer" in text for text in strong.warnings)
    here = silenced(machine("8.5.3"), single="")
    with pytest.raises(IntentNotReached, match="fp16 was requested and cannot be proven: 54 of 54 layers"):
        here.build(model, "fp16", strict=True)
    weak = here.build(model, "fp16", name="weak").manifest
    assert (weak.proof["reached_in_precision"], weak.proof["unreported_share"]) == (0, 1)
    assert any("54 of 54 layers are unreported" in text for text in weak.warnings)
    plain = here.build(model, "fp32", name="plain", strict=True).manifest.proof
    assert "no builder flag permits" in str(plain["evidence"])


def test_a_profile_that_the_context_refuses_is_said_and_no_error(machine: OnMachine, tmp_path: Path) -> None:
    # The binding raises where C++ returns false (python/src/infer/pyCore.cpp, release/8.5 line 322).
    here = machine("10.16")

    def refuse(*_: Any) -> bool:
        raise RuntimeError("Error in set optimization profile async.")

    here.module.IExecutionContext.set_optimization_profile_async = refuse
    made = here.build(chain(tmp_path / "m.onnx", batch="n"), "fp16", options=PROFILES).manifest
    assert any("profile 1 does not take its OPT shapes" in text for text in made.warnings)
    assert made.proof["reached_in_precision"] == LAYERS


def test_layers_inside_a_block_are_unreported_not_reached(machine: OnMachine, tiny_file: MakeFile) -> None:
    blocks, model = {"conv1", "conv2", "gemm"}, tiny_file("residual")
    strong = machine("10.16", blocks=blocks).build(model, "fp16").manifest.proof
    assert strong["layers_by_precision"] == {"unreported": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert (strong["reached_in_precision"], strong["planned_in_precision"]) == (0, 3)
    unreported = strong["unreported"]
    assert isinstance(unreported, dict)
    assert unreported["conv1"]["reason"] == "inside a fused block: TensorRT reports no precision"
    assert "binding" in str(strong["evidence"])
    with pytest.raises(IntentNotReached, match="cannot be proven: 3 of 3 layers are unreported") as caught:
        machine("8.5.3", blocks=blocks).build(model, "fp16", name="weak", strict=True)
    assert "`allow_fallback`" in caught.value.hint


def test_an_engine_that_cannot_be_loaded_is_kept_without_manifest(machine: OnMachine, tmp_path: Path) -> None:
    here = machine("10.16")
    here.module.Runtime.deserialize_cuda_engine = lambda *_: None
    with pytest.raises(BuildError, match=r"the engine just built: .* cannot load it") as caught:
        here.build(chain(tmp_path / "m.onnx"), "fp16")
    assert caught.value.hint == "the artifact is saved as m.rejected.engine"
    assert [path.name for path in (tmp_path / "built").iterdir()] == ["m.rejected.engine"]


def test_an_engine_whose_outputs_are_wrong_fails_and_is_kept_with_what_was_seen(
    machine: OnMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, said = Check("same outputs as ONNX Runtime", False, "12.0 dB"), "output 'y' has 12.0 dB"
    wrong = "qcompile.engines.tensorrt.verify.verified"
    monkeypatch.setattr(wrong, lambda outcome, *_: replace(outcome, checks=(check,), failure=said))
    here, model = machine("10.16"), chain(tmp_path / "m.onnx")
    with pytest.raises(IntentNotReached, match=said) as caught:
        here.build(model, "fp32")
    assert "m.rejected.engine" in caught.value.hint
    assert not load_artifact(tmp_path / "built" / "m.rejected.engine").manifest.checks[0].passed
    assert said in here.build(model, "fp32", allow_fallback=True, name="kept").manifest.warnings


def read_as(answer: object, *names: str, profile: int = 0) -> dict[str, str]:
    """Layer of the network to its precision in the engine."""
    read = read_layers(answer, profile)
    planned = [ComputeLayer(name, "CONVOLUTION", "") for name in names]
    verdict = judge(planned, "none of these", [Inspection(read.layers, read.moving, problem=read.problem)])
    return {**verdict.fell_back, **dict.fromkeys(verdict.unreported, UNREPORTED)}


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_that_was_seen_is_read(name: str) -> None:
    shape = SHAPES[name]
    read = read_layers(shape.answer)
    assert read.problem == ""
    assert read_as(shape.answer, *shape.precisions) == shape.precisions
    assert read.moving == shape.moving
    assert shape.source


@pytest.mark.parametrize(
    ("problem", "answers"),
    [
        # NVIDIA/TensorRT issues 4438 and 2583; a null pointer arrives as None (pybind11, `char const*`).
        ("empty", [None, "", " \n\0"]),
        ("no JSON", ["None"]),
        ("cut off", [graph(convolution("conv1", HALF8, weights="Half"))[:-40], '{"Layers": ', "[" * 100_000]),
        ("no list of layers", ["{}", "7", '{"Layers": {"0": "conv1"}}']),
        ("3 of its layers cannot be read", ['{"Layers": [null, 3, [], "conv1"]}']),
        ("bytes", [b"{}"]),
    ],
)
def test_an_answer_that_cannot_be_read_says_why(problem: str, answers: list[object]) -> None:
    for answer in answers:
        assert problem in read_layers(answer).problem
        assert read_as(answer, "conv1") == {"conv1": UNREPORTED}


CASK = {"Name": "conv1", "LayerType": "CaskConvolution"}


@pytest.mark.parametrize(
    "entry",
    [
        *[{}, {"Name": "conv1"}, {"Name": None, "LayerType": 7, "Inputs": None, "TacticName": []}],
        *[CASK | {"Inputs": inputs} for inputs in ({}, ["x"], [{"Format/Datatype": 3}])],
        CASK | {"Inputs": [{"Name": "x"}], "Weights": []},
    ],
)
def test_a_layer_without_its_keys_is_unreported(entry: dict[str, Any]) -> None:
    assert read_as(graph(entry), "conv1") == {"conv1": UNREPORTED}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("Name", "LayerType", "Inputs", "Outputs", "Weights", "Metadata", "TacticName", "Format/Datatype")
TEXTS = ("conv1 + relu", "{ForeignNode[a...b]}", "PWN(PWN(a), b) [profile 1]", "gemm", "kgen", "Half",
         UNKNOWN, "[ONNX Layer: conv1 | x]", "a+b_myl0_1", "[profile 99999999999999999999]")  # fmt: skip
ENTRIES = st.recursive(
    st.sampled_from(TEXTS) | JSON,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner | st.lists(inner, max_size=3), max_size=6),
    max_leaves=10,
)


@given(JSON | ENTRIES | st.fixed_dictionaries({"Layers": st.lists(ENTRIES, max_size=4)}), st.integers(0, 3))
def test_no_json_is_an_error(value: Any, profile: int) -> None:
    read = read_layers(json.dumps(value), profile)
    found = Inspection(read.layers, read.moving, problem=read.problem)
    judge([ComputeLayer("conv1", "CONVOLUTION", "fp16")], "fp16", [found])
    json.dumps(found.as_json())
    assert read_layers([value], profile).problem in ("", "1 of its layers cannot be read")


@given(st.text() | st.binary() | st.none() | st.integers())
def test_no_text_is_an_error(answer: Any) -> None:
    read = read_layers(answer)
    if not read.problem:
        json.loads(answer.strip("\0"), strict=False)  # a text that happens to be JSON, such as '["",""]'


@given(st.data())
def test_an_answer_that_is_cut_off_is_never_half_read(data: st.DataObject) -> None:
    answer = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))].answer
    assert read_layers(answer[: data.draw(st.integers(0, len(answer) - 1))]).problem


@pytest.mark.parametrize(
    ("precision", "spelled"),
    [
        ("uint8", "Row major linear UInt8 format"),
        ("int8", "Channel major INT8 format where channel % 16 == 0"),
        ("bf16", "Channel major BFloat16 format where channel % 8 == 0"),
        *[("fp4", spelled) for spelled in ("Row major linear FP4 format (kLINEAR)", "FP4E2M1")],
        ("fp8", "Row major linear FP8 format"),
        ("fp64", "Double"),
        ("int64", "Row major linear Int64 format"),
        *[(UNREPORTED, spelled) for spelled in ("Unknown format", "None", UNKNOWN, None)],
    ],
)
def test_types_are_read_as_trex_lists_them(precision: str, spelled: object) -> None:
    # trex/activations.py, `_regionFormatDict`: a sentence, or a word in a block of the second compiler.
    assert parse_precision(spelled) == precision


def test_the_layers_of_a_profile_are_those_with_its_number() -> None:
    answer = SHAPES["profiles"].answer
    assert read_as(answer, "conv1", profile=1) == {"conv1": "fp32"}
    assert read_layers(answer, 1).moving == 1
    # From 10 on they are listed once for all profiles (Polygraphy, backend/trt/util.py `str_from_engine`).
    assert read_as(answer, "conv1", profile=2) == {"conv1": "fp16"}


def test_what_is_around_a_block_is_not_taken_for_what_is_inside() -> None:
    # The kernel that adds the bias has the product's name, too; the product itself is in the block.
    bias = layer("__myl_Add_myl0_2", "ElementWise", FP32, Metadata="[ONNX Layer: fc]")
    block = layer("__myl_Mix_myl0_1", "kgen", INT8, Metadata="[ONNX Layer: fc][ONNX Layer: norm]")
    assert read_as(graph(bias, block), "fc") == {"fc": UNREPORTED}
    product = layer("fc_myl0_3", "gemm", "Half", Metadata="[ONNX Layer: fc]")
    assert read_as(graph(bias, block, product), "fc") == {"fc": "fp16"}


def test_a_layer_that_the_parser_numbered_is_found_by_its_node() -> None:
    # generateUniqueName: the second layer of that name is "fc_0"; its metadata says "fc". So does RTX 1.7.
    answer = graph(layer("fc_myl0_3", "gemm", "Half", Metadata="[ONNX Layer: fc]"))
    found = Inspection(read_layers(answer).layers)
    verdict = judge([ComputeLayer("fc_0", "MATRIX_MULTIPLY", "fp16", "fc")], "fp16", [found])
    assert verdict.reached == ["fc_0"]


@pytest.mark.parametrize(
    ("name", "member", "stranger"),
    [
        ("conv:0 + relu", "conv:0", "conv"),
        ("model/conv + relu", "model/conv", "conv"),
        ("PWN(PWN(Sigmoid_1), Mul_2)", "Mul_2", "Mul"),
        ("Reformatting CopyNode for Input Tensor 0 to conv + relu", "relu", "conv"),
        ("{ForeignNode[a + b...c]} [profile 2]", "b", "profile"),
    ],
)
def test_names_are_compared_whole(name: str, member: str, stranger: str) -> None:
    assert not parse_members(name).has(stranger)
    assert parse_members(name).has(member)
