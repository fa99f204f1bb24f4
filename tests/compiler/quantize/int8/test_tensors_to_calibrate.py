"""What calibration observes is what quantization scales: no less, and little more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import qcompile
from qcompile.calibration import load_ranges
from qcompile.compiler.quantize.calibrate import tensors_to_calibrate
from qcompile.errors import CalibrationError
from qcompile.model.graph import weighted_nodes
from qcompile.model.weightless import read_weightless

MakePath = Callable[..., Path]
Array = NDArray[np.generic]
BOTH = ("onnxruntime", "tensorrt")
ALL = ("onnxruntime", "openvino", "tensorrt")


def save(
    path: Path, body: str, signature: str, *, opset: int = 17, ir_version: int = 8, **weights: Array
) -> Path:
    """A model file from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"{head} g {signature} {{ {body} }}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def normal(*shape: int) -> Array:
    return (np.random.default_rng(list(shape)).standard_normal(shape) * 0.3).astype(np.float32)


def activations(model: Path, targets: Iterable[str]) -> set[str]:
    """The wanted tensors that depend on the samples."""
    weightless = read_weightless(model)
    graph = weightless.model.graph
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return tensors_to_calibrate(weightless, targets) - constants  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("residual", "onnxruntime", "x c1 r1 c2 a r2 p f"),
        ("residual", "openvino", "x c1 r1 c2 a r2 p f"),
        ("residual", "tensorrt", "x c1 r1 c2 a f y"),
        ("mlp", "onnxruntime", "x r1"),
        ("mlp", "tensorrt", "x m1 r1 y"),
    ],
)
def test_a_target_wants_what_its_planned_operators_read_and_make(
    tiny_file: MakePath, name: str, target: str, expected: str
) -> None:
    assert activations(tiny_file(name), [target]) == set(expected.split())


@pytest.mark.parametrize("name", ["residual", "mlp"])
def test_two_targets_want_what_each_of_them_wants(tiny_file: MakePath, name: str) -> None:
    model = tiny_file(name)
    each = [activations(model, [target]) for target in BOTH]
    assert activations(model, BOTH) == each[0] | each[1]
    assert tensors_to_calibrate(read_weightless(model)) == tensors_to_calibrate(read_weightless(model), ALL)


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        ("a = Exp(x) y = Log(a)", BOTH),
        ("s = Sigmoid(x) y = Exp(s)", ("tensorrt",)),
        ("y = Exp(x)", ()),
        ("y = Sigmoid(x)", BOTH),
    ],
)
def test_a_model_with_nothing_to_quantize_cannot_be_calibrated(
    tmp_path: Path, body: str, targets: tuple[str, ...]
) -> None:
    model = save(tmp_path / "m.onnx", body, "(float[n] x) => (float[n] y)")
    with pytest.raises(CalibrationError, match=r"m\.onnx: no operator would be quantized") as caught:
        activations(model, targets)
    assert caught.value.data["file"] == model
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "r", targets=targets)
    assert not (tmp_path / "r").exists()


# With ranges of exactly the wanted tensors, quantization has all it needs.

ROADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemms with factors and other biases": (
        """
        a = Gemm <alpha = 0.5, beta = 2.0> (x, w1, b1)
        b = Relu(a)
        y = Gemm <transB = 1> (b, w2, b2)
        """,
        "(float[n, 4] x) => (float[n, 3] y)",
        {"w1": normal(4, 6), "b1": normal(1, 6), "w2": normal(3, 6), "b2": normal(1)},
    ),
    "a sum that closes a residual branch": (
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Sum (a, x)
        c = Clip (b, low, high)
        y = Conv (c, w)
        """,
        "(float[n, 4, 8, 8] x) => (float[n, 4, 6, 6] y)",
        {"w": normal(4, 4, 3, 3), "low": np.array(0, np.float32), "high": np.array(6, np.float32)},
    ),
    "weights in constant nodes": (
        """
        w = Constant <value = float[2, 2] {0.5, -0.25, 1.0, 2.0}> ()
        a = MatMul(x, w)
        y = Relu(a)
        """,
        "(float[n, 2] x) => (float[n, 2] y)",
        {},
    ),
    "weights too large for an weightless": (
        "a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2)",
        "(float[n, 40] x) => (float[n, 40] y)",
        {"w1": normal(40, 64), "w2": normal(64, 40)},
    ),
    "branches that meet in a concat": (
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Relu(a)
        c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
        d = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        e = Concat <axis = 1> (c, d)
        f = Reshape (e, s)
        y = MatMul (f, v)
        """,
        "(float[n, 4, 8, 8] x) => (float[n, 3] y)",
        {"w": normal(4, 4, 3, 3), "s": np.array([-1, 128]), "v": normal(128, 3)},
    ),
}


@pytest.fixture(params=["residual", "mlp", *ROADS])
def road(request: pytest.FixtureRequest, tiny_file: MakePath, samples: MakePath) -> tuple[Path, str]:
    """A model and its samples."""
    name: str = request.param
    if name not in ROADS:
        return tiny_file(name), str(samples(name, 8))
    body, signature, weights = ROADS[name]
    folder = tiny_file("mlp").parent
    model = save(folder / "model.onnx", body, signature, **weights)
    (tensor,) = read_weightless(model).io.inputs
    data = folder / "data.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, *tensor.shape[1:])).astype(np.float32))
    return model, str(data)


@pytest.mark.parametrize("targets", [("onnxruntime",), ("tensorrt",), BOTH])
def test_ranges_of_the_wanted_tensors_are_all_that_quantization_needs(
    road: tuple[Path, str], targets: tuple[str, ...], tmp_path: Path
) -> None:
    model, data = road
    path = qcompile.calibrate(model, data, tmp_path / "m.ranges", targets=targets, method="minmax").path
    ranges = load_ranges(path)
    wanted = activations(model, targets)
    assert set(ranges.names()) >= wanted
    # What is observed beside the wanted ones holds the values of one.
    stand_ins = {source for sources in ranges.shared.values() for source in sources}
    assert set(ranges.histograms) <= wanted | stand_ins
    for target in targets:
        quantized = qcompile.quantize(
            model, tmp_path / f"{target}.onnx", ranges=path, target=target, data=data
        )
        assert weighted_nodes(onnx.load(quantized.path))["int8"]


def test_ranges_for_another_target_lack_tensors_and_say_so(tmp_path: Path) -> None:
    body = "a = Conv(x, w) s = Sigmoid(a) y = MaxPool <kernel_shape = [1, 1]> (s)"
    image = "float[n, 2, 4, 4]"
    model = save(tmp_path / "m.onnx", body, f"({image} x) => ({image} y)", w=normal(2, 2, 1, 1))
    data = str(tmp_path / "x.npz")
    np.savez(data, x=normal(3, 2, 4, 4))
    ranges = qcompile.calibrate(model, data, tmp_path / "m.ranges", targets=["tensorrt"]).path
    with pytest.raises(CalibrationError, match=r"tensor 's' .*has no range"):
        qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime")


@pytest.mark.parametrize("opset", [9, 11])
def test_a_model_of_an_old_opset_is_calibrated_as_it_is_quantized(tmp_path: Path, opset: int) -> None:
    body = """
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Relu (a)
        c = Add (b, x)
        d = GlobalAveragePool (c)
        e = Squeeze <axes = [2, 3]> (d)
        f = Gemm (e, v, u)
        g = Unsqueeze <axes = [1]> (f)
        y = Softmax <axis = 2> (g)
    """
    model = save(
        tmp_path / "old.onnx",
        body,
        "(float[n, 4, 8, 8] x) => (float[n, 1, 3] y)",
        opset=opset,
        ir_version=4,
        w=normal(4, 4, 3, 3),
        v=normal(4, 3),
        u=normal(3),
    )
    np.savez(tmp_path / "x.npz", x=normal(4, 4, 8, 8))
    for target in BOTH:
        ranges = qcompile.calibrate(
            model, str(tmp_path / "x.npz"), tmp_path / "r", targets=[target], method="minmax"
        ).path
        quantized = qcompile.quantize(model, tmp_path / f"{target}.onnx", ranges=ranges, target=target)
        assert weighted_nodes(onnx.load(quantized.path))["int8"]
