"""Networks by the real builder and parser of TensorRT-RTX, and what its engines hold."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx as trt
import torch
from mode_models import written
from onnx import helper, numpy_helper, parser
from road_models import COMPACT, FULL, Recipe, started
from torch import nn

import qcompile
from qcompile.core.artifact import Artifact, load_artifact
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.inspector import node_in_metadata
from qcompile.engines.tensorrt.builder.network import _layers_by_node
from qcompile.engines.tensorrt.known_faults import KNOWN_FAULTS
from qcompile.engines.tensorrt.log import make_log
from qcompile.model.graph.onnx_file import read_graph
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import Precision

GPUS = ("sm86", "sm120")
EXTENTS = {"batch": (1, 8, 32), "length": (16, 32, 64)}
PRECISIONS = ("fp32", "fp16", "int8")
LEAST_DB = 20.0
PRODUCTS = ("MatMul", "Gemm")
WEIGHTS_DOMINATE = 500_000  # bytes of float32 per layer, beside which the code of its kernels is little


class Road:
    """One model's files, made when they are first asked for."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.graphs: dict[str, Path] = {}
        self.built: dict[str, Artifact] = {}
        self.left: set[str] = set()

    @cached_property
    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return started(self.recipe.make())

    @cached_property
    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """Input name to its least, usual and largest shape."""
        found = {}
        for spelling in self.recipe.inputs:
            name, shape = spelling.split(":")[:2]
            axes = [EXTENTS.get(axis, (axis,) * 3) for axis in shape.strip("[]").split(",")]
            found[name] = [tuple(int(axis[kind]) for axis in axes) for kind in range(3)]
        return found

    @cached_property
    def data(self) -> Path:
        """Eight samples of the usual extents."""
        generator = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for name, (_, (_, *usual), _) in self.shapes.items():
            if name == "mask":
                arrays[name] = np.ones((8, *usual), np.int64)
            elif self.recipe.words:
                arrays[name] = generator.integers(0, self.recipe.words, (8, *usual))
            else:
                arrays[name] = generator.standard_normal((8, *usual)).astype(np.float32)
        np.savez(self.folder / "data.npz", **arrays)
        return self.folder / "data.npz"

    def graph(self, precision: str) -> Path:
        """The ONNX file of a precision."""
        if precision not in self.graphs:
            path = self.folder / f"{precision}.onnx"
            if precision == "fp32":
                qcompile.export(self.module, self.folder / "raw.onnx", inputs=self.recipe.inputs)
                simple = qcompile.simplify(self.folder / "raw.onnx", path)
                assert simple.manifest.warnings == ()
                qcompile.calibrate(path, str(self.data), self.folder / "m.ranges", targets=["tensorrt"])
            else:
                done = qcompile.quantize(
                    self.graph("fp32"), path, target="tensorrt", precision=precision,  # type: ignore[arg-type]
                    ranges=self.folder / "m.ranges",
                    float_precision="fp16" if precision == "int8" else "fp32",
                    data=str(self.data), correct_bias=False,
                )  # fmt: skip
                assert float(done.manifest.checks[0].detail.split(" dB")[0]) > LEAST_DB
                self.left |= {*done.manifest.proof["left_in_float"]} if precision == "int8" else set()  # type: ignore[misc]
            self.graphs[precision] = path
        return self.graphs[precision]

    def build(self, precision: str) -> Artifact:
        """An engine for the dynamic axes' whole range."""
        if precision not in self.built:
            kinds = ("min_shapes", "opt_shapes", "max_shapes")
            shapes = {
                kind: {name: of[index] for name, of in self.shapes.items()}
                for index, kind in enumerate(kinds)
            }
            self.built[precision] = qcompile.build(
                self.graph(precision), self.folder / f"{precision}.engine", target="tensorrt-rtx",
                precision=precision, gpus=GPUS, **shapes,  # type: ignore[arg-type]
            )  # fmt: skip
        return self.built[precision]

    def expected_layers(self, precision: str) -> dict[str, dict[str, int]]:
        """What the graph holds, as TensorRT counts it; an LSTM, and what INT8 leaves out, is in float."""
        graphs = [onnx.load(self.graph(precision)).graph]
        graphs += [
            a.g for node in graphs[0].node if node.op_type == "Scan" for a in node.attribute if a.g.node
        ]
        counts = Counter(node.op_type for graph in graphs for node in graph.node)
        layers = {
            "CONVOLUTION": counts["Conv"],
            "DECONVOLUTION": counts["ConvTranspose"],
            "MATRIX_MULTIPLY": counts["MatMul"] + counts["Gemm"],
        }
        found = {precision: Counter(layers)}
        of_float = found.setdefault("fp16" if precision == "int8" else precision, Counter())
        if precision == "int8":
            small = sum(node.name in self.left and node.op_type in PRODUCTS for node in graphs[0].node)
            found["int8"]["MATRIX_MULTIPLY"] -= small
            of_float["MATRIX_MULTIPLY"] += small
        of_float["MATRIX_MULTIPLY"] += 2 * counts["LSTM"]  # of the inputs and of the state, both directions
        held = {kind: {name: n for name, n in layers.items() if n} for kind, layers in found.items()}
        return {kind: layers for kind, layers in held.items() if layers}


def recipes() -> list[Any]:
    """Small models whose layers differ, and every one of the published size, which is slow."""
    small = [pytest.param(recipe, id=name) for name, recipe in COMPACT.items() if name != "mobilenet"]
    return small + [
        pytest.param(recipe, id=f"{name}-full", marks=pytest.mark.slow) for name, recipe in FULL.items()
    ]


@pytest.fixture(scope="module", params=recipes())
def road(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Road:
    return Road(request.param, tmp_path_factory.mktemp("road"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_model_builds_in_its_precision(precision: str, road: Road) -> None:
    artifact = road.build(precision)
    loaded = load_artifact(artifact.path).manifest  # digests agree
    assert loaded.as_json() == artifact.manifest.as_json()
    assert loaded.device["gpus"] == list(GPUS)
    assert loaded.sources["graph"] == read_graph(road.graph(precision)).digest()
    assert loaded.proof["layers_by_precision"] == road.expected_layers(precision)
    assert (loaded.proof["typing"], loaded.proof["has_run"]) == ("strong", False)
    assert loaded.proof["planned_in_precision"] == loaded.proof["reached_in_precision"]
    assert (loaded.kind, loaded.target, loaded.precision) == ("engine", "tensorrt-rtx", precision)
    assert loaded.tools["tensorrt-rtx"] == trt.__version__
    assert loaded.proof["profiles"] == [
        {
            name: {kind: list(of[index]) for index, kind in enumerate(("min", "opt", "max"))}
            for name, of in road.shapes.items()
        }
    ]


def test_int8_engines_are_smaller_than_fp16_and_those_than_fp32(road: Road) -> None:
    fp32, fp16, int8 = (road.build(precision).path.stat().st_size for precision in PRECISIONS)
    weights_bytes = road.graph("fp32").stat().st_size
    layers = sum(road.expected_layers("fp32")["fp32"].values())
    assert fp16 < fp32
    if weights_bytes / layers > WEIGHTS_DOMINATE:
        assert int8 < fp16


CHANNELS = 32
SCALE = np.float32(0.01)
WEIGHT = np.random.default_rng(0).uniform(-1, 1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)


def convolution(path: Path, *, quantized: bool) -> Path:
    """A convolution whose float weight stands behind Q/DQ, as TensorRT 8.5 wants it, or alone."""
    pair = "{0}_q = QuantizeLinear ({0}, scale, zero) {0}_dq = DequantizeLinear ({0}_q, scale, zero)"
    pairs, end = (pair.format("x") + "\n" + pair.format("w"), "_dq") if quantized else ("", "")
    body = f"{{ {pairs} c = Conv <pads = [1,1,1,1]> (x{end}, w{end}) y = Relu (c) }}"
    shape, scale = f"float[1,{CHANNELS},16,16]", {"scale": np.asarray(SCALE), "zero": np.asarray(np.int8(0))}
    return written(path, f"({shape} x) => ({shape} y) {body}", w=WEIGHT, **(scale if quantized else {}))


def built(model: Path, precision: Precision) -> bytes:
    spec = BuildSpec(target="tensorrt-rtx", precision=precision, gpus=("sm86",))
    return build_engine(
        engine("tensorrt-rtx"), BuildRequest(str(model), model.with_suffix(".engine"), spec)
    ).path.read_bytes()


def times_stored(weight: np.ndarray, engine: bytes) -> int:
    """How often the bytes of a weight are there, channels last as TensorRT-RTX stores them, or as in ONNX."""
    layouts = (weight, weight.transpose(0, 2, 3, 1))
    return sum(engine.count(np.ascontiguousarray(one).tobytes()[:256]) for one in layouts)


@pytest.mark.parametrize(("precision", "stored"), [("int8", (1, 0)), ("fp32", (0, 1))])
def test_engines_hold_one_weight_once(precision: Precision, stored: tuple[int, int], tmp_path: Path) -> None:
    integers = np.clip(np.rint(WEIGHT / SCALE), -128, 127).astype(np.int8)
    engine = built(convolution(tmp_path / "m.onnx", quantized=precision == "int8"), precision)
    assert (times_stored(integers, engine), times_stored(WEIGHT, engine)) == stored


def chain(path: Path) -> Path:
    """Three convolutions with a ReLU behind each."""
    generator = np.random.default_rng(1)
    names = ("w0", "w1", "w2")
    values = {n: generator.normal(0, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32) for n in names}
    layer = "[conv{0}] c{0} = Conv <pads = [1,1,1,1]> (t{0}, w{0}) [relu{0}] t{1} = Relu (c{0})"
    body = "\n".join(layer.format(index, index + 1) for index in range(3))
    shape = f"float[1,{CHANNELS},16,16]"
    return written(path, f"({shape} t0) => ({shape} t3) {{ {body} }}", **values)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("kept", "stored"), [(("conv1",), "half"), (("conv1", "relu1"), "fp32")])
def test_a_layer_kept_in_float32_stays_so_only_with_the_layer_behind_it(
    precision: Precision, kept: tuple[str, ...], stored: str, tmp_path: Path
) -> None:
    # A strongly typed network, and TensorRT-RTX makes half of `half -> Cast -> layer -> Cast -> half`.
    model = chain(tmp_path / "m.onnx")
    made = qcompile.build(
        model, tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=("sm86",),
        layers=dict.fromkeys(kept, "fp32"), allow_fallback=True,
    )  # fmt: skip
    weight = numpy_helper.to_array(next(t for t in onnx.load(model).graph.initializer if t.name == "w1"))
    assert times_stored(weight, made.path.read_bytes()) == (stored == "fp32")
    assert made.manifest.proof["layers_by_precision"] == {
        precision: {"CONVOLUTION": 2}, "fp32": {"CONVOLUTION": 1}  # the types of the network
    }  # fmt: skip


def names(target: str, version: str, gpu: str = "sm86") -> set[str]:
    return {fault.name for fault in KNOWN_FAULTS if fault.affects(target, version, gpu)}


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


def test_the_layers_of_a_node_are_found_by_name_number_and_metadata() -> None:
    signature = (
        "(float[2,8] x, float[8,8] w, int32[4] i, int32[4] d) => (float[2,8] y, int32[4] m, int64[1] s)"
    )
    network, *kept = network_of(17, signature, """
        ["blocks.1[0]/fc"] a = MatMul(x, w) ["blocks.1[0]/fc"] y = MatMul(a, w)
        [rest] m = Mod (i, d) [extent] s = Shape <start = 0, end = 1> (x)""")  # fmt: skip
    made = [network.get_layer(index) for index in range(network.num_layers)]
    products = [layer for layer in made if layer.name.startswith("blocks.1[0]/fc")]
    assert [layer.name for layer in products] == ["blocks.1[0]/fc", "blocks.1[0]/fc_0"]
    assert {node_in_metadata(layer) for layer in products} == {"blocks.1[0]/fc"}
    found = _layers_by_node(network, {"rest", "extent", "none"})
    names = {node: [layer.name for layer in layers] for node, layers in found.items()}
    assert names["rest"] == ["rest"]
    assert names["extent"][0] == "extent"
    assert re.fullmatch(r"extent_\d+", names["extent"][1])
    assert set(names) == {"rest", "extent"}
    assert kept
