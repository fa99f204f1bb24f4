"""Corrected biases take the mean error off each channel, for both targets, by hand and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from written_models import model_of, normal, outputs_of, stored

import qcompile
from qcompile.compiler.quantize.int8 import static as static_int8
from qcompile.compiler.quantize.int8.corrections import correct_biases
from qcompile.compiler.quantize.int8.placement import place_nodes
from qcompile.compiler.quantize.int8.static import quantize_static
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.data.batches import Data
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.spec.words import GraphTarget

Floats = NDArray[np.float32]
TARGETS: tuple[GraphTarget, ...] = ("onnxruntime", "tensorrt", "openvino")


class Case:
    """A float model, its samples, and what quantization makes of it."""

    def __init__(self, folder: Path, model: onnx.ModelProto, x: Floats, target: GraphTarget) -> None:
        self.model, self.x, self.path = model, x, folder / "model.onnx"
        onnx.save(model, self.path)
        np.savez(folder / "data.npz", x=x)
        self.spec = str(folder / "data.npz")
        ready = prepare_graph(model)
        names = [name for node in ready.graph.node for name in node.output]
        found = [x, *outputs_of(ready, x, *names)]
        ranges = {
            name: (1.2 * float(values.min()), 1.2 * float(values.max()))
            for name, values in zip(["x", *names], found, strict=True)
        }
        # Clipped, so that activations bring an error of their own.
        ranges["x"] = (0.5 * float(x.min()), 0.5 * float(x.max()))
        self.quantized = quantize_static(ready, place_nodes(ready, target), ranges)

    def corrected(self, limit: int | None = None) -> tuple[onnx.ModelProto, int]:
        data = Data(self.spec, model_io(self.model).inputs, batch_size=8, limit=limit)
        return correct_biases(read_graph(self.path), self.quantized, data)


def mean_error(model: onnx.ModelProto, other: onnx.ModelProto, x: Floats) -> NDArray[np.float64]:
    """Mean difference of the first outputs by channel, axis 1."""
    difference = outputs_of(model, x)[0].astype(np.float64) - outputs_of(other, x)[0]
    return difference.mean(axis=tuple(i for i in range(difference.ndim) if i != 1))


def skewed(seed: int, *shape: int) -> Floats:
    """Values of one sign for the most part, as activations are; rounded weights then shift the mean."""
    return np.random.default_rng(seed).normal(1.0, 0.8, shape).astype(np.float32)


PRODUCT = "(float[N,6] x) => (float[N,4] y)"
LAYERS = {
    "Gemm": (f"{PRODUCT} {{ y = Gemm(x, w, b) }}", (6, 4), (6,)),
    "transposed Gemm": (f"{PRODUCT} {{ y = Gemm<transB=1, alpha=0.5>(x, w, b) }}", (4, 6), (6,)),
    "MatMul": (f"{PRODUCT} {{ m = MatMul(x, w) y = Add(m, b) }}", (6, 4), (6,)),
    "MatMul, bias first": (f"{PRODUCT} {{ m = MatMul(x, w) y = Add(b, m) }}", (6, 4), (6,)),
    "Conv": ("(float[N,3,8,8] x) => (float[N,4,4,4] y) { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b) }",
             (4, 3, 3, 3), (3, 8, 8)),
    "depthwise": ("(float[N,4,8,8] x) => (float[N,4,8,8] y) { y = Conv<pads=[1,1,1,1], group=4>(x, w, b) }",
                  (4, 1, 3, 3), (4, 8, 8)),
    "dilated": ("""(float[N,3,11,8] x) => (float[N,4,4,3] y) {
                y = Conv<dilations=[2,3], strides=[3,1], pads=[2,0,1,1]>(x, w, b) }""",
                (4, 3, 3, 3), (3, 11, 8)),
    "padded alike": ("""(float[N,4,7,8] x) => (float[N,4,4,4] y) {
                     y = Conv<auto_pad="SAME_UPPER", strides=[2,2], group=2>(x, w, b) }""",
                     (4, 2, 3, 2), (4, 7, 8)),
    "padded in front": ("""(float[N,3,H,W] x) => (float[N,4,H,W] y) {
                        y = Conv<auto_pad="SAME_LOWER">(x, w, b) }""", (4, 3, 2, 4), (3, 7, 8)),
    "padded by free extents": ("""(float[N,3,H,W] x) => (float[N,4,P,Q] y) {
                               y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w, b) }""",
                               (4, 3, 2, 3), (3, 7, 8)),
    "long": ("(float[N,2,80] x) => (float[N,4,13] y) { y = Conv<strides=[5], pads=[3,2], group=2>(x, w, b) }",
             (4, 1, 21), (2, 80)),
    "points": ("(float[N,3,9] x) => (float[N,4,5] y) { y = Conv<strides=[2]>(x, w, b) }", (4, 3, 1), (3, 9)),
    "volume": ("(float[N,2,5,4,6] x) => (float[N,4,4,4,5] y) { y = Conv<pads=[0,1,0,0,0,0]>(x, w, b) }",
               (4, 2, 2, 2, 2), (2, 5, 4, 6)),
    "1D Conv": ("(float[N,3,8] x) => (float[N,4,6] y) { y = Conv(x, w, b) }", (4, 3, 3), (3, 8)),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_mean_of_a_layer_becomes_that_of_the_float_layer(
    name: str, target: GraphTarget, tmp_path: Path
) -> None:
    text, w, x = LAYERS[name]
    model = model_of(text, w=skewed(1, *w) - np.float32(0.7), b=skewed(2, 4))
    case = Case(tmp_path, model, skewed(3, 40, *x), target)
    corrected, count = case.corrected()
    onnx.checker.check_model(corrected)
    before, after = (np.abs(mean_error(model, q, case.x)) for q in (case.quantized, corrected))
    assert count == 1
    assert before.max() > 0.05
    step = 0.02 if len(x) > 1 and target != "tensorrt" else 0.003  # the output is quantized there
    np.testing.assert_array_less(after, step)


def test_the_correction_is_what_integers_by_hand_give(tmp_path: Path) -> None:
    x, w, b = skewed(3, 40, 6), skewed(1, 6, 4), skewed(2, 4)
    model = model_of("(float[N,6] x) => (float[N,4] y) { y = Gemm(x, w, b) }", w=w, b=b)
    case = Case(tmp_path, model, x, "tensorrt")
    scale = 0.5 * np.abs(x).max() / 127
    scales = np.abs(w).max(axis=0) / 127
    rounded_x = np.clip(np.round(x / scale), -128, 127) * scale
    rounded_w = np.round(w / scales) * scales
    expected = b + (x @ w - rounded_x @ rounded_w).mean(axis=0)
    np.testing.assert_allclose(stored(case.corrected()[0])["b"], expected, atol=1e-3)
    head = b + (x @ w - rounded_x @ rounded_w)[:5].mean(axis=0)
    np.testing.assert_allclose(stored(case.corrected(limit=5)[0])["b"], head, atol=1e-3)


def test_a_bias_is_rounded_once(tmp_path: Path) -> None:
    """With the correction, and not before it too."""
    x, w, b = skewed(3, 40, 6), skewed(1, 6, 64), skewed(2, 64)
    model = model_of("(float[N,6] x) => (float[N,64] y) { y = Gemm(x, w, b) }", w=w, b=b)
    case = Case(tmp_path, model, x, "onnxruntime")
    of = {name: values.astype(np.float64) for name, values in stored(case.quantized).items()}
    scale, zero = of["x_scale"], of["x_zero_point"]
    rounded_x = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
    lost = (x @ w - rounded_x @ (of["w_quantized"] * of["w_scale"])).mean(axis=0)
    expected = (b + lost) / (scale * of["w_scale"])
    assert np.abs(expected).max() > 1000  # steps
    found = stored(case.corrected()[0])["b_quantized"]
    np.testing.assert_allclose(found, expected, atol=0.51)


@pytest.mark.parametrize("target", TARGETS)
def test_each_layer_is_measured_on_the_activations_of_the_float_model(
    target: GraphTarget, tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = tiny("residual")
    case = Case(tmp_path, model, skewed(0, 48, 4, 8, 8), target)
    corrected, count = case.corrected()
    assert count == 3  # a Relu is folded into the first of them for ONNX Runtime
    before, after = (np.abs(mean_error(model, q, case.x)) for q in (case.quantized, corrected))
    assert after.mean() < before.mean()
    changed = {n for n, v in stored(corrected).items() if not np.array_equal(v, stored(case.quantized)[n])}
    biases = {"b1", "b2", "b3"}
    assert changed == ({f"{n}_quantized" for n in biases} if target == "onnxruntime" else biases)
    types = {tensor.name: tensor.data_type for tensor in case.quantized.graph.initializer}
    assert {tensor.name: tensor.data_type for tensor in corrected.graph.initializer} == types


SHARED = """(float[N,4] x) => (float[N,4] y) <float[4,4] v, float[4,4] w> {
    a = MatMul(x, w) r = Relu(a) c = MatMul(r, v) d = Add(c, b) e = Add(r, b) y = Mul(d, e) }"""
BY_POSITION = """(float[N,5,4] x) => (float[N,5,4] y) <float[4,4] w> { a = MatMul(x, w) y = Add(a, b) }"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("text", "b"), [(SHARED, (4,)), *((BY_POSITION, shape) for shape in ((1, 5, 4), (5, 1), (5, 4)))]
)
def test_what_is_no_bias_of_one_layer_is_left_alone(
    text: str, b: tuple[int, ...], target: GraphTarget, tmp_path: Path
) -> None:
    x = skewed(4, 16, 4) if text == SHARED else skewed(4, 16, 5, 4)
    case = Case(tmp_path, model_of(text, b=skewed(3, *b)), x, target)
    before = case.quantized.SerializeToString()
    corrected, count = case.corrected()
    assert count == 0
    assert corrected.SerializeToString() == before


def model(folder: Path) -> tuple[Path, Floats]:
    """A convolution and two products, on inputs whose channels go together."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return generator.standard_normal(shape).astype(np.float32)

    made = model_of(
        """(float[N,4,6,6] x) => (float[N,8] y) { c = Conv<pads=[1,1,1,1]>(x, w1) r = Relu(c)
        g = GlobalAveragePool(r) f = Flatten(g) m = Gemm<transB=1>(f, w2, b) t = Relu(m)
        y = MatMul(t, w3) }""",
        named=True, w1=normal(16, 4, 3, 3), w2=normal(12, 16), b=normal(12), w3=normal(12, 8),
    )  # fmt: skip
    onnx.save(made, folder / "m.onnx")
    x = normal(48, 1, 6, 6) + 0.1 * normal(48, 4, 6, 6)
    np.savez(folder / "d.npz", x=x)
    qcompile.calibrate(folder / "m.onnx", str(folder / "d.npz"), folder / "r", method="minmax")
    return folder / "m.onnx", x


def weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Name of a weight to its stored values, in steps."""
    graph = onnx.load(path).graph
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.name.startswith("w")}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_layer_errs_less_and_scales_stay(target: GraphTarget, tmp_path: Path) -> None:
    path, x = model(tmp_path)
    common = {"ranges": tmp_path / "r", "data": str(tmp_path / "d.npz"), "target": target}
    common |= {"search": False, "balance": False, "correct_bias": False, "exclude": ["Gemm", "MatMul"]}
    found: dict[str, dict[str, Floats]] = {}
    errors = {}
    float_model = onnx.load(path)
    (expected,) = outputs_of(float_model, x, "c")
    for rounding in ("rtn", "gptq"):
        made = qcompile.quantize(path, tmp_path / "q.onnx", block_size=0, rounding=rounding, **common)  # type: ignore[arg-type]
        assert made.manifest.proof["rounded_weights"] == (rounding == "gptq")
        found[rounding] = weights(made.path)
        # The convolution by itself: float inputs, the weights that were stored.
        name = next(n for n in found[rounding] if n.startswith("w1") and "scale" not in n and "zero" not in n)
        values = found[rounding][name] * found[rounding]["w1_scale"].reshape(-1, 1, 1, 1)
        alone = onnx.ModelProto()
        alone.CopyFrom(float_model)
        for tensor in alone.graph.initializer:
            if tensor.name == "w1":
                tensor.CopyFrom(numpy_helper.from_array(values, "w1"))
        errors[rounding] = float(np.square(outputs_of(alone, x, "c")[0] - expected).sum())
    np.testing.assert_array_equal(found["rtn"]["w1_scale"], found["gptq"]["w1_scale"])
    assert errors["gptq"] < 0.5 * errors["rtn"]


def test_a_stored_float_weight_is_already_on_the_steps(tmp_path: Path) -> None:
    path, _ = model(tmp_path)
    made = qcompile.quantize(
        path, tmp_path / "q.onnx", ranges=tmp_path / "r", data=str(tmp_path / "d.npz"), target="tensorrt",
        block_size=0, rounding="gptq", balance=False,
    )  # fmt: skip
    found = weights(made.path)
    steps = found["w1"] / found["w1_scale"].reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert np.abs(steps).max() <= 127.001


@pytest.mark.parametrize("name", ["residual", "mlp"])
@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_the_graph_is_the_one_that_onnx_runtimes_loops_give(
    name: str, target: str, tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The oracle chooses all scales, and stores integers channel by channel."""

    def loops(model: onnx.ModelProto, *, extra_options: dict[str, Any], **settings: Any) -> QDQQuantizer:
        extra_options |= {"TensorQuantOverrides": {}, "AddQDQPairToWeight": target == "tensorrt"}
        return QDQQuantizer(model, extra_options=extra_options, **settings)

    model, ranges = tiny_file(name), tmp_path / "m.ranges"
    qcompile.calibrate(model, str(samples(name)), ranges)
    options: dict[str, Any] = {"ranges": ranges, "target": target, "isa": "avx512-vnni"}
    ours = qcompile.quantize(model, tmp_path / "ours.onnx", **options)
    monkeypatch.setattr(onnxruntime.quantization, "QDQQuantizer", loops)
    monkeypatch.setattr(static_int8, "_index_consumers", lambda model_class: model_class)
    theirs = qcompile.quantize(model, tmp_path / "theirs.onnx", **options)
    assert onnx.load(ours.path) == onnx.load(theirs.path)


def test_a_product_of_a_transposed_activation_is_rounded_to_nearest(tmp_path: Path) -> None:
    # Its rows are no rows of the Hessian, which made it 1.3 dB worse.
    text = "(float[8,6] x) => (float[6,4] y, float[8,5] z) { y = Gemm <transA = 1> (x, w) z = MatMul(x, v) }"
    onnx.save(model_of(text, w=normal(8, 4), v=normal(6, 5)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(64, 6))
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "r")
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "r", data=str(tmp_path / "d.npz"),
        rounding="gptq", search=False,
    )  # fmt: skip
    assert made.manifest.proof["rounded_weights"] == 1
