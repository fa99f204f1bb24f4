"""Graphs that OpenVINO computes wrongly: each in its smallest form, wrong as it is, and right when cured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import qcompile
from qcompile.compiler.opset.cures import FAULTY_GRAPHS
from qcompile.engines.openvino.known_faults import KNOWN_FAULTS
from qcompile.model.onnx_file import copy_model
from qcompile.model.output_error import output_error

openvino = pytest.importorskip("openvino")

SEEN = "2026.4.1"
RIGHT_DB = 60
Values = NDArray[Any]


@dataclass
class Graph:
    """A quantized graph, node by node."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, operator: str, operands: list[str], **attributes: Any) -> str:
        made = f"t{len(self.nodes)}"
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [made], name, **attributes))
        return made

    def store(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"s{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def pair(self, tensor: str, scale: float = 0.05, zero: int = 0) -> str:
        """Q/DQ of uint8 on a tensor."""
        pair = [self.store(scale), self.store(zero, np.uint8)]
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [tensor, *pair]), *pair])

    def weight(self, *shape: int, axis: int) -> str:
        """An int8 weight with a scale for each channel."""
        values = self.store(self.rng.integers(-63, 64, shape), np.int8)
        scales = self.store(0.002 + 0.004 * self.rng.random(shape[axis]))
        zeros = self.store(np.zeros(shape[axis]), np.int8)
        return self.add("DequantizeLinear", [values, scales, zeros], axis=axis)

    def normal(self, *shape: int) -> str:
        return self.store(2 * self.rng.standard_normal(shape))

    def ints(self, *values: int) -> str:
        return self.store(values, np.int64)

    def conv(self, *, bias: bool = True, spatial: int = 2, groups: int = 1) -> str:
        weight = self.weight(16, 16 // groups, *[3] * spatial, axis=0)
        operands = [self.pair("x", 0.02, 128), weight, *([self.normal(16)] if bias else [])]
        return self.add("Conv", operands, pads=[1] * (2 * spatial), group=groups)

    def model(self, shape: list[str | int], *outputs: str, opset: int = 17) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [value("x", 1, shape)],
            [helper.make_tensor_value_info(name, 1, None) for name in outputs],
            self.stored,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)

    def zero_state(self) -> str:
        """What an LSTM's first state is made of: zeros, one for each sample."""
        batch = self.add("Slice", [self.add("Shape", ["x"]), self.ints(0), self.ints(1)])
        target = self.add("Concat", [batch, self.ints(5)], axis=0)
        return self.add("Expand", [self.store([[1.0]]), target])


IMAGE: list[str | int] = ["n", 16, "h", "w"]
SEQUENCE: list[str | int] = ["n", "l", 16]
ROWS: list[str | int] = ["n", 24]
EXTENTS = {"n": 16, "h": 6, "w": 6, "l": 9, "d": 3}


def arrays(model: onnx.ModelProto) -> dict[str, Values]:
    rng, feeds = np.random.default_rng(1), {}
    for value in model.graph.input:
        dims = [dim.dim_value or EXTENTS[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.standard_normal(dims).astype(np.float32)
    return feeds


def as_written(model: onnx.ModelProto, feeds: dict[str, Values]) -> list[Values]:
    """What ONNX Runtime computes without any optimizer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def by_openvino(model: onnx.ModelProto | str, feeds: dict[str, Values], *, fixed: bool) -> list[Values]:
    """What a program gets that loads a file with nothing but OpenVINO."""
    core = openvino.Core()
    loaded = core.read_model(model if isinstance(model, str) else model.SerializeToString())
    if fixed:
        loaded.reshape({name: array.shape for name, array in feeds.items()})
    compiled = core.compile_model(loaded, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(feeds)
    return [results[output] for output in compiled.outputs]


def snr_db(model: onnx.ModelProto, computed: onnx.ModelProto, *, fixed: bool) -> float:
    """How near OpenVINO comes with one graph to what another says."""
    feeds = arrays(model)
    pairs = zip(as_written(model, feeds), by_openvino(computed, feeds, fixed=fixed), strict=True)
    return min(
        output_error(expected, found).snr_db if expected.shape == found.shape else -99.0
        for expected, found in pairs
    )


def amax(operator: str = "ReduceMax", between: str = "") -> onnx.ModelProto:
    graph = Graph()
    reduced = graph.add(operator, ["x"], axes=[1], keepdims=0)
    if between == "Concat":
        reduced = graph.add("Concat", [reduced, graph.add("ReduceMin", ["x"], axes=[1], keepdims=0)], axis=1)
    elif between == "Max, Min":
        reduced = graph.add("Min", [graph.add("Max", [reduced, graph.store(-6)]), graph.store(6)])
    elif between == "Flatten":
        reduced = graph.add("Flatten", [graph.add("Unsqueeze", [reduced, graph.ints(1)])])
    elif between == "Clip":
        reduced = graph.add("Clip", [reduced, graph.store(-6), graph.store(6)])
    elif between:
        reduced = graph.add(between, [reduced])
    weight = graph.weight(10, 32 if between == "Concat" else 16, axis=0)
    operands = [graph.pair(reduced, 0.02, 100), weight, graph.normal(10)]
    return graph.model(SEQUENCE, graph.add("Gemm", operands, transB=1))


def biased(spatial: int = 2, groups: int = 1, between: str = "Relu") -> onnx.ModelProto:
    """A convolution in front of a quantization, beside a zero state."""
    graph = Graph()
    made = graph.conv(spatial=spatial, groups=groups)
    made = graph.add(between, [made]) if between else made
    shape: list[str | int] = ["n", 16, *["h", "w", "d"][:spatial]]
    return graph.model(shape, graph.pair(made), graph.zero_state())


def before_lstm() -> onnx.ModelProto:
    """A recurrent layer without a first state, for which OpenVINO asks for the batch."""
    graph = Graph()
    features = graph.pair(graph.add("Relu", [graph.conv()]))
    rows = graph.add("ReduceMean", [features], axes=[2], keepdims=0)
    steps = graph.add("Transpose", [rows], perm=[2, 0, 1])
    state = graph.add("LSTM", [steps, graph.normal(1, 16, 16), graph.normal(1, 16, 4)], hidden_size=4)
    return graph.model(IMAGE, features, state)


def read_twice(kind: str) -> onnx.ModelProto:
    """A product that is read in front of its bias, or of the scale of its weights, and by a quantization."""
    graph = Graph()
    shape: list[str | int] = ["n", 16]
    if kind == "MatMul":
        product = graph.add("MatMul", [graph.pair("x", 0.02, 128), graph.weight(16, 16, axis=1)])
        last = graph.add("Add", [product, graph.normal(16)])
    elif kind == "ConvTranspose":
        weight = graph.weight(16, 16, 2, 2, axis=1)
        product = graph.add("ConvTranspose", [graph.pair("x", 0.02, 128), weight], strides=[2, 2])
        last, shape = graph.add("Add", [product, graph.normal(1, 16, 1, 1)]), IMAGE
    else:
        product = graph.conv(bias=False, spatial=1 if kind == "Conv1" else 2)
        last, shape = product, ["n", 16, "l"] if kind == "Conv1" else IMAGE
        if kind == "scaled":
            last = graph.add("Mul", [product, graph.store(0.5 + graph.rng.random((1, 16, 1, 1)))])
    return graph.model(shape, graph.pair(last), graph.add("Sigmoid", [product]))


def reshaped(kind: str = "Gemm", target: tuple[int, ...] = (-1, 8, 8)) -> onnx.ModelProto:
    graph = Graph()
    operand, shape = graph.pair("x", 0.02, 128), ROWS
    if kind == "Conv":
        product = graph.add("Conv", [operand, graph.weight(8, 24, 1, 1, axis=0)])
        shape = ["n", 24, 4, 4]
    elif kind == "Gemm":
        product = graph.add("Gemm", [operand, graph.weight(8, 24, axis=0)], transB=1)
    else:
        product = graph.add("MatMul", [operand, graph.weight(24, 8, axis=1)])
    return graph.model(shape, graph.add("Reshape", [product, graph.ints(*target)]))


def summed(operator: str) -> onnx.ModelProto:
    graph = Graph()
    return graph.model(
        SEQUENCE, graph.add(operator, [graph.add("Abs", ["x"])], axes=[1], keepdims=0), opset=17
    )


CASES: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "amax": ("quantized-extremum", amax),
    "amin": ("quantized-extremum", lambda: amax("ReduceMin")),
    "amax, relu": ("quantized-extremum", lambda: amax(between="Relu")),
    "amax, clip": ("quantized-extremum", lambda: amax(between="Clip")),
    "amax, bounds": ("quantized-extremum", lambda: amax(between="Max, Min")),
    "amax, concat": ("quantized-extremum", lambda: amax(between="Concat")),
    "amax, flatten": ("quantized-extremum", lambda: amax(between="Flatten")),
    "amax, sigmoid": ("quantized-extremum", lambda: amax(between="Sigmoid")),
    "conv": ("merged-bias", biased),
    "conv without activation": ("merged-bias", lambda: biased(between="")),
    "conv of three dimensions": ("merged-bias", lambda: biased(3)),
    "grouped conv": ("merged-bias", lambda: biased(groups=2)),
    "depthwise conv": ("merged-bias", lambda: biased(groups=16)),
    "conv before lstm": ("merged-bias", before_lstm),
    "matmul read twice": ("merged-bias", lambda: read_twice("MatMul")),
    "transposed conv read twice": ("merged-bias", lambda: read_twice("ConvTranspose")),
    "conv without bias read twice": ("merged-bias", lambda: read_twice("Conv")),
    "conv of one dimension read twice": ("merged-bias", lambda: read_twice("Conv1")),
    "scaled conv read twice": ("merged-bias", lambda: read_twice("scaled")),
    "gemm, reshape": ("moved-scale", reshaped),
    "matmul, reshape": ("moved-scale", lambda: reshaped("MatMul")),
    "gemm, reshape to heads": ("moved-scale", lambda: reshaped(target=(-1, 8, 2, 4))),
    "gemm, reshape to a multiple": ("moved-scale", lambda: reshaped(target=(-1, 16, 8))),
    "conv, reshape": ("moved-scale", lambda: reshaped("Conv", (-1, 64))),
    "l1": ("reduced-axes", lambda: summed("ReduceL1")),
    "log of sum": ("reduced-axes", lambda: summed("ReduceLogSum")),
    "log of sum of exponentials": ("reduced-axes", lambda: summed("ReduceLogSumExp")),
}
ALSO_FIXED = ("quantized-extremum", "reduced-axes")


def cured(name: str, before: onnx.ModelProto) -> onnx.ModelProto:
    faulty = FAULTY_GRAPHS[name]
    after = copy_model(before)
    assert faulty.cure is not None
    faulty.cure(after)
    assert faulty.find(after) == []
    return after


@pytest.mark.parametrize("fixed", [False, True], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("case", CASES)
def test_a_cured_graph_computes_what_the_graph_says(case: str, fixed: bool) -> None:
    name, make = CASES[case]
    before = make()
    assert FAULTY_GRAPHS[name].find(before)
    after = cured(name, before)
    if FAULTY_GRAPHS[name].quantized:
        feeds = arrays(before)
        for expected, found in zip(as_written(before, feeds), as_written(after, feeds), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert snr_db(before, after, fixed=fixed) > RIGHT_DB


@pytest.mark.parametrize("case", CASES)
def test_the_graph_as_it_is_is_computed_wrongly(case: str) -> None:
    if not openvino.__version__.startswith(SEEN):
        pytest.skip(f"seen with OpenVINO {SEEN}, and {openvino.__version__} is installed")
    name, make = CASES[case]
    assert snr_db(make(), make(), fixed=False) < RIGHT_DB
    assert (snr_db(make(), make(), fixed=True) < RIGHT_DB) == (name in ALSO_FIXED)


def plain(kind: str) -> onnx.ModelProto:
    """Graphs like those above, which OpenVINO computes rightly."""
    graph = Graph()
    if kind == "no shapes":
        features = graph.pair(graph.add("Relu", [graph.conv()]))
        return graph.model(IMAGE, graph.add("Flatten", [graph.add("GlobalAveragePool", [features])]))
    if kind == "fixed":
        features = graph.pair(graph.conv())
        return graph.model([2, 16, 6, 6], features, graph.zero_state())
    if kind == "biased, reshaped":
        weight = graph.weight(8, 24, axis=0)
        product = graph.add("Gemm", [graph.pair("x"), weight, graph.normal(8)], transB=1)
        return graph.model(ROWS, graph.add("Reshape", [product, graph.ints(-1, 8, 8)]))
    if kind == "sequence, reshaped":
        product = graph.add("MatMul", [graph.pair("x"), graph.weight(16, 8, axis=1)])
        return graph.model(SEQUENCE, graph.add("Reshape", [product, graph.ints(-1, 9, 2, 4)]))
    if kind == "mean":
        return graph.model(SEQUENCE, graph.pair(graph.add("ReduceMean", ["x"], axes=[1])))
    return reshaped(target=(0, 2, 4) if kind == "batch first" else (-1, 4, 8))


@pytest.mark.parametrize(
    "kind",
    ["no shapes", "fixed", "biased, reshaped", "sequence, reshaped", "mean", "batch first", "no multiple"],
)
def test_a_graph_that_is_computed_rightly_stays(kind: str) -> None:
    model = plain(kind)
    assert [fault.name for fault in KNOWN_FAULTS if FAULTY_GRAPHS[fault.name].find(model)] == []
    assert snr_db(model, model, fixed=False) > RIGHT_DB


def pooled(graph: Graph) -> onnx.ModelProto:
    features = graph.add("Relu", [graph.add("Conv", ["x", graph.normal(16, 16, 3, 3), graph.normal(16)])])
    largest = graph.add("ReduceMax", [features], axes=[2, 3], keepdims=0)
    return graph.model(IMAGE, graph.add("Gemm", [largest, graph.normal(16, 10), graph.normal(10)]))


def recognizer(graph: Graph) -> onnx.ModelProto:
    """Two convolutions, and two steps of a recurrence that begins with zeros."""
    features = "x"
    for _ in range(2):
        operands = [features, graph.normal(16, 16, 3, 3), graph.normal(16)]
        features = graph.add("Relu", [graph.add("Conv", operands, pads=[1] * 4)])
    rows = graph.add("ReduceMean", [features], axes=[2], keepdims=0)
    batch = graph.add("Slice", [graph.add("Shape", ["x"]), graph.ints(0), graph.ints(1)])
    target = graph.add("Concat", [batch, graph.ints(16)], axis=0)
    state = graph.add("Expand", [graph.store([[0.0]]), target])
    weights = [graph.normal(16, 16), graph.normal(16)], [graph.normal(16, 16), graph.normal(16)]
    for step in range(2):
        column = graph.add("Gather", [rows, graph.store(step, np.int64)], axis=2)
        kept = graph.add("Gemm", [state, *weights[0]])
        state = graph.add("Tanh", [graph.add("Add", [graph.add("Gemm", [column, *weights[1]]), kept])])
    return graph.model(IMAGE, state)


def heads(graph: Graph) -> onnx.ModelProto:
    rows = graph.add("Reshape", ["x", graph.ints(-1, 16)])
    queries = graph.add("Gemm", [rows, graph.normal(16, 32)])
    groups = graph.add("Reshape", [queries, graph.ints(-1, 32, 32)])
    last = graph.add("MatMul", [groups, graph.normal(32, 10)])
    return graph.model(["n", 32, 16], last)


@pytest.mark.parametrize(
    ("make", "fault"), [(pooled, "quantized-extremum"), (recognizer, "merged-bias"), (heads, "moved-scale")]
)
def test_a_built_file_computes_its_graph_wherever_it_is_loaded(
    make: Callable[[Graph], onnx.ModelProto], fault: str, tmp_path: Path
) -> None:
    model = onnx.shape_inference.infer_shapes(make(Graph()))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [
        {"x": np.random.default_rng(seed).standard_normal((1, 16, 6, 6), np.float32)} for seed in range(8)
    ]
    if make is heads:
        feeds = [{"x": array["x"].reshape(-1)[:512].reshape(1, 32, 16)} for array in feeds]
    (tmp_path / "data").mkdir()
    for index, arrays_of_one in enumerate(feeds):
        np.savez(tmp_path / "data" / f"{index}.npz", **{name: a[0] for name, a in arrays_of_one.items()})
    data = str(tmp_path / "data")
    ranges = qcompile.calibrate(tmp_path / "m.onnx", data, tmp_path / "r", targets=["openvino"])
    built = qcompile.build(
        tmp_path / "m.onnx",
        tmp_path / "b.onnx",
        target="openvino",
        precision="int8",
        ranges=ranges.path,
        data=data,
    )
    assert fault in dict(built.manifest.proof["worked_around"])  # type: ignore[call-overload]
    layers = built.manifest.proof["layers_by_precision"]
    assert isinstance(layers, dict)
    assert not layers["fp32"]
    assert layers["int8"].get("Conv", 0) == sum(node.op_type == "Conv" for node in model.graph.node)
    written = onnx.load(built.path)
    for fixed in (False, True):
        for given in feeds[:2]:
            (expected,), (found,) = (
                as_written(written, given),
                by_openvino(str(built.path), given, fixed=fixed),
            )
            assert output_error(expected, found).snr_db > 45  # a value between two integers goes either way
            assert output_error(as_written(model, given)[0], found).snr_db > 25
