"""Known faults are those of the versions that reports name; what a real parser decides, it decides here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import tensorrt_rtx as trt
from onnx import helper, parser

from qcompile.engines.faults import faults_of
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.known_faults import KNOWN_FAULTS
from qcompile.engines.tensorrt.log import make_log


def names(target: str, version: str, gpu: str = "sm86") -> set[str]:
    return {fault.name for fault in faults_of(KNOWN_FAULTS, target, version, gpu)}


EVER = {"mod-by-float", "recurrent-layout"}
OF_8_5 = EVER | {"shape-slice", "scatter-reduction", "several-profiles"}
OF_10_0 = EVER | {"group-norm-of-one", "grid-sample-mode"}
OF_11_1 = OF_10_0 | {"cumsum-axes", "deformable-attention", "batched-reduced-keys", "resize-behind-if"}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("8.5.3.1", OF_8_5),
        ("8.6.1", OF_8_5 | {"group-norm-of-one"}),
        ("10.0.1", OF_10_0 | {"several-profiles"}),
        ("10.4.0", OF_10_0 | {"several-profiles", "partly-rotated-attention"}),
        ("10.7.0", OF_10_0 | {"several-profiles"}),
        ("10.8.0", OF_10_0 | {"cumsum-axes"}),
        ("10.13.3", OF_10_0 | {"cumsum-axes", "deformable-attention", "batched-reduced-keys"}),
        ("11.1.0", OF_11_1),
        ("11.2.1", OF_11_1 | {"transposed-input-attention", "normalized-and-back"}),
    ],
)
def test_a_version_has_the_faults_that_are_reported_of_it(version: str, expected: set[str]) -> None:
    assert names("tensorrt", version) == expected


def test_a_fault_of_one_gpu_is_one_on_that_gpu_alone() -> None:
    assert "fused-attention-sm120" in names("tensorrt", "10.16.1", "sm120")
    assert "fused-attention-sm120" not in names("tensorrt", "10.16.1", "")


def test_rtx_has_those_that_its_reports_and_its_networks_show() -> None:
    shared = EVER | {"group-norm-of-one", "cumsum-axes"}
    assert names("tensorrt-rtx", "1.7.1") == shared
    assert names("tensorrt-rtx", "1.5.0") == shared | {"grid-sample-mode"}


def test_each_fault_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len({fault.name for fault in KNOWN_FAULTS}) == len(KNOWN_FAULTS)
    for fault in KNOWN_FAULTS:
        assert str(fault).startswith(f"{fault.name}: {fault.operator} ")
        assert fault.issues[-1] in str(fault)


def test_the_documentation_lists_them_all() -> None:
    text = (Path(__file__).parents[3] / "docs/tensorrt.md").read_text()
    listed = set(re.findall(r"^\| `([a-z0-9-]+)` \| ", text, re.MULTILINE))
    assert {fault.name for fault in KNOWN_FAULTS} <= listed


# What TensorRT-RTX's real parser makes of a node.


def network_of(version: int, signature: str, body: str) -> tuple[Any, ...]:
    """The network, with what must live as long as it."""
    text = f'<ir_version: 10, opset_import: ["" : {version}]> g {signature} {{ {body} }}'
    return parsed(parser.parse_model(text))


def parsed(model: onnx.ModelProto) -> tuple[Any, ...]:
    adapter, log = load_adapter("tensorrt-rtx"), make_log(trt)
    builder = trt.Builder(log.logger)
    network = builder.create_network(adapter.network_flags())
    reader = trt.OnnxParser(network, log.logger)
    assert reader.parse(model.SerializeToString()), log.errors
    return network, reader, builder, log


def layers(network: Any, kind: Any) -> list[Any]:
    found = [network.get_layer(index) for index in range(network.num_layers)]
    return [layer for layer in found if layer.type == kind]


def as_kind(layer: Any, kind: type) -> Any:
    layer.__class__ = kind
    return layer


@pytest.mark.parametrize(("mode", "read"), [("linear", "LINEAR"), ("cubic", "CUBIC"), ("nearest", "NEAREST")])
def test_rtx_1_7_reads_the_newer_modes_of_grid_sample(mode: str, read: str) -> None:
    signature = "(float[1, 1, 4, 4] x, float[1, 2, 2, 2] g) => (float[1, 1, 2, 2] y)"
    network, *kept = network_of(20, signature, f'y = GridSample <mode="{mode}"> (x, g)')
    (layer,) = layers(network, trt.LayerType.GRID_SAMPLE)
    assert as_kind(layer, trt.IGridSampleLayer).interpolation_mode == getattr(trt.InterpolationMode, read)
    assert kept


def test_rtx_normalizes_one_group_over_the_axes_of_the_image_alone() -> None:
    signature = "(float[1, 4, 3, 3] x, float[4] s, float[4] b) => (float[1, 4, 3, 3] y)"
    for groups in (1, 2):
        network, *kept = network_of(21, signature, f"y = GroupNormalization <num_groups={groups}> (x, s, b)")
        (layer,) = layers(network, trt.LayerType.NORMALIZATION)
        layer = as_kind(layer, trt.INormalizationLayer)
        # With one group nothing tells the layer from an instance normalization, which has the same axes.
        assert (layer.axes, layer.num_groups) == (0b1100, groups)
        assert kept


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_rtx_reads_layout_1_as_layout_0(operator: str, gates: int) -> None:
    node = helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=4, layout=1)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", 1, [2, 5, 3])], [value("y", 1, [2, 5, 1, 4])],
        [helper.make_tensor("w", 1, [1, 4 * gates, 3], [0.0] * (12 * gates)),
         helper.make_tensor("r", 1, [1, 4 * gates, 4], [0.0] * (16 * gates))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network, *kept = parsed(model)
    assert tuple(network.get_output(0).shape) == (2, 1, 5, 4)  # ONNX says [2, 5, 1, 4]
    assert kept


def test_rtx_divides_by_a_floor_for_an_integer_mod() -> None:
    network, *kept = network_of(17, "(int32[4] x, int32[4] d) => (int32[4] y)", "y = Mod (x, d)")
    made = [as_kind(layer, trt.IElementWiseLayer).op for layer in layers(network, trt.LayerType.ELEMENTWISE)]
    assert made[0] == trt.ElementWiseOperation.FLOOR_DIV
    assert kept
