"""What the inspector answers is read in the words of every version, and whatever it is, without an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspector_shapes import FP32, HALF8, INT8, SHAPES, UNKNOWN, convolution, graph, layer

from qcompile.engines.tensorrt.builder.inspector import (
    UNREPORTED,
    Inspection,
    in_metadata,
    members,
    read_layers,
    spelled_precision,
)
from qcompile.engines.tensorrt.builder.proof import ComputeLayer, judge


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
    ("answer", "problem"),
    [
        (None, "empty"),
        ("", "empty"),
        (" \n\0", "empty"),
        ("None", "no JSON"),
        (graph(convolution("conv1", HALF8, weights="Half"))[:-40], "cut off"),
        ('{"Layers": ', "cut off"),
        ("[" * 100_000, "cut off"),
        ("{}", "no list of layers"),
        ("7", "no list of layers"),
        ('{"Layers": {"0": "conv1"}}', "no list of layers"),
        ('{"Layers": [null, 3, [], "conv1"]}', "3 of its layers cannot be read"),
        (b"{}", "bytes"),
    ],
)
def test_an_answer_that_cannot_be_read_says_why(answer: object, problem: str) -> None:
    # Empty: NVIDIA/TensorRT issues 4438 and 2583; a null pointer arrives as None (pybind11, `char const*`).
    assert problem in read_layers(answer).problem
    assert read_as(answer, "conv1") == {"conv1": UNREPORTED}


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"Name": None, "LayerType": 7, "Inputs": None, "TacticName": []},
        {"Name": "conv1"},
        {"Name": "conv1", "LayerType": "CaskConvolution", "Inputs": {}},
        {"Name": "conv1", "LayerType": "CaskConvolution", "Inputs": ["x"]},
        {"Name": "conv1", "LayerType": "CaskConvolution", "Inputs": [{"Name": "x"}], "Weights": []},
        {"Name": "conv1", "LayerType": "CaskConvolution", "Inputs": [{"Format/Datatype": 3}]},
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
    ("spelled", "precision"),
    [
        ("Row major linear UInt8 format", "uint8"),
        ("Channel major INT8 format where channel % 16 == 0", "int8"),
        ("Channel major BFloat16 format where channel % 8 == 0", "bf16"),
        ("Row major linear FP4 format (kLINEAR)", "fp4"),
        ("FP4E2M1", "fp4"),
        ("Row major linear FP8 format", "fp8"),
        ("Double", "fp64"),
        ("Row major linear Int64 format", "int64"),
        ("Unknown format", UNREPORTED),
        ("None", UNREPORTED),
        (UNKNOWN, UNREPORTED),
        (None, UNREPORTED),
    ],
)
def test_types_are_read_as_trex_lists_them(spelled: object, precision: str) -> None:
    # trex/activations.py, `_regionFormatDict`: a sentence, or a word in a block of the second compiler.
    assert spelled_precision(spelled) == precision


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
    assert not members(name).has(stranger)
    assert members(name).has(member)


def test_a_real_parser_writes_the_metadata_that_is_read() -> None:
    import onnx
    import tensorrt_rtx as trt

    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,8] x, float[8,8] w) => (float[2,8] y) {
        [fc] a = MatMul(x, w) y = MatMul(a, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = model.graph.node[1].name = "blocks.1[0]/fc"
    log = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(log).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse(model.SerializeToString())
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    assert [item.name for item in layers] == ["blocks.1[0]/fc", "blocks.1[0]/fc_0"]
    assert {in_metadata(item.metadata) for item in layers} == {"blocks.1[0]/fc"}
