"""A model's names change nothing: not those that a quantizer makes, nor those of nodes, nor none at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import normal, text_model

import qcompile
from qcompile.compiler.opset.fit import upgrade_opset
from qcompile.model.graph.graph import every_graph
from qcompile.model.graph.graph_names import rename_inputs

NETWORK = """(float[b,16] x) => (float[b,16] y, float[b,16] z) {
    m = MatMul(x, w) a = Add(m, bias) r = Relu(a) g = Gemm<transB=1>(r, w2, c) s = Mul(g, c) z = Tanh(s)
    n = ReduceSum<keepdims=0>(z) zero = Constant<value_float=0.0>() less = Less(zero, n)
    i = If (less) <
        then_branch = yes () => (float[b,16] t) { t = Add(s, c) },
        else_branch = no () => (float[b,16] e) { e1 = MatMul(s, w) e = Add(e1, bias) } >
    p = MatMul(i, w3) ln = LayerNormalization(p, gain, shift) u = MatMul(ln, w3) y = Add(u, x) }"""
MATRICES, VECTORS = ("w", "w2", "w3"), ("bias", "c", "gain", "shift")
ENDS = """
_scale _zero_point _quantized _bias_quantized _QuantizeLinear _QuantizeLinear_Input _QuantizeLinear_Output
_DequantizeLinear_Output _DequantizeLinear _output_quantized _quant _scales_mul _quant_scales_mul _ReduceMin
_Min _MatMul _Q4 _scales _intermediate /rounded /int8 /scale /scales /shifted /float /exact /smoothed /factors
/columns /rows /transposed /product /bias /axis0/scale /axis1/blocks /axis1/zero_point /float16 /inner
""".split()
"""What ONNX Runtime's quantizers, ONNX's converter and the passes add to a name."""
MODES: dict[str, dict[str, Any]] = {
    "static": {},
    "search": {"data": True, "allow_loss": True},
    "for TensorRT, the rest in FP16": {"target": "tensorrt", "float_precision": "fp16"},
    "GPTQ without VNNI": {
        "data": True, "rounding": "gptq", "search": False, "allow_loss": True, "isa": "avx2",
    },
    "dynamic": {"mode": "dynamic"},
    "weights": {"mode": "weights", "precision": "int4"},
    "weights as Q/DQ": {"mode": "weights", "precision": "int4", "quant_format": "qdq"},
    "fp16": {"precision": "fp16"},
}  # fmt: skip


def network() -> onnx.ModelProto:
    weights = {name: normal(16, 16, seed=number) for number, name in enumerate(MATRICES)}
    return text_model(
        NETWORK, **weights, **{name: normal(16, seed=number) for number, name in enumerate(VECTORS)}
    )


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model with other names of tensors."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    rename_inputs(copy.graph, names)
    for graph in every_graph(copy.graph):
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            node.output[:] = [names.get(name, name) for name in node.output]
    return copy


def outputs(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[Any] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    return found


def quantized(folder: Path, names: dict[str, str], mode: str) -> list[Any]:
    """The outputs of the network under other names, quantized."""
    options, float_file = dict(MODES[mode]), folder / "m.onnx"
    onnx.save(renamed(network(), names), float_file)
    feeds = {names.get("x", "x"): normal(8, 16)}
    np.savez(folder / "data.npz", **feeds)
    if options.pop("data", False):
        options["data"] = str(folder / "data.npz")
    if options.get("mode", "static") == "static" and options.get("precision") != "fp16":
        ranges = qcompile.calibrate(float_file, str(folder / "data.npz"), folder / "m.ranges")
        options["ranges"] = ranges.path
    qcompile.quantize(float_file, folder / "q.onnx", **options)
    return outputs(onnx.load(folder / "q.onnx"), feeds)


def invented(generator: random.Random) -> dict[str, str]:
    """Names of the network's tensors, most of which a quantizer would make of another one's."""
    tensors = {tensor.name for tensor in network().graph.initializer} | {"x"}
    graphs = every_graph(network().graph)
    tensors |= {name for graph in graphs for node in graph.node for name in node.output}
    names: dict[str, str] = {}
    for tensor in generator.sample(sorted(tensors), len(tensors)):
        name = tensor
        while names and (name == tensor or name in names.values()):
            base = generator.choice([*names.values()])
            name = f"{base}{generator.choice(ENDS)}" if generator.random() < 0.9 else f"quantized/{base}"
        names[tensor] = name
    return names


@pytest.mark.parametrize("mode", MODES)
def test_names_that_a_quantizer_makes_change_no_number(
    mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected = quantized(tmp_path_factory.mktemp("plain"), {}, mode)

    @settings(deadline=None, max_examples=4, database=None)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        found = quantized(tmp_path_factory.mktemp("invented"), invented(random.Random(seed)), mode)
        for array, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array, other)

    check()


def calibrated(folder: Path, model: onnx.ModelProto, x: Any) -> dict[str, Any]:
    """Write the model as m.onnx, and samples; return the options `ranges` and `data`."""
    onnx.save(model, folder / "m.onnx")
    np.save(folder / "data.npy", x)
    data = str(folder / "data.npy")
    return {"ranges": qcompile.calibrate(folder / "m.onnx", data, folder / "m.ranges").path, "data": data}


def snr_db(folder: Path, x: Any) -> float:
    """Signal-to-noise ratio of the first output of q.onnx, as it is written, against m.onnx."""
    exact, found = (outputs(onnx.load(folder / name), {"x": x})[0] for name in ("m.onnx", "q.onnx"))
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


def test_a_raised_opset_meets_no_name_of_the_model() -> None:
    body = "s = Softmax<axis=0>(x) s_intermediate = Neg(x) y = Mul(s, s_intermediate)"
    model = text_model(f"(float[2,6] x) => (float[2,6] y) {{ {body} }}", opset=11)
    before, x = model.SerializeToString(deterministic=True), normal(2, 6)
    raised = upgrade_opset(model, 17)
    assert model.SerializeToString(deterministic=True) == before
    assert {"s", "s_intermediate"} <= {name for node in raised.graph.node for name in node.output}
    np.testing.assert_allclose(outputs(raised, {"x": x})[0], outputs(model, {"x": x})[0], rtol=1e-6)


LAYERS = """(float[b,8,8,8] x) => (float[b,8,8,8] y) {
    q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx) wd = DequantizeLinear<axis=0>(wq, sw, zw)
    bd = DequantizeLinear<axis=0>(bq, sb, zb) a = Conv<pads=[1,1,1,1]>(d, wd, bd)
    aq = QuantizeLinear(a, sx, zx) ad = DequantizeLinear(aq, sx, zx) t = Tanh(ad)
    u = Conv<pads=[1,1,1,1]>(t, w2) v = Tanh(u) y = Conv<pads=[1,1,1,1]>(v, w2) }"""
RESULTS = ["q", "d", "wd", "bd", "a", "aq", "ad", "t", "u", "v", "y"]
NAMINGS: dict[str, Callable[[int], str]] = {
    "none": lambda _: "",
    "one for all": lambda _: "a",
    "results of other nodes": lambda number: RESULTS[number - 3],
    "names as ONNX Runtime's optimizer makes them": lambda number: f"x{'_token_3' * number}",
}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_layers_of_a_foreign_graph_are_counted_whatever_their_names(
    naming: str, target: str, tmp_path: Path
) -> None:
    scale, zeros = np.full(8, 0.004, np.float32), np.zeros(8, np.int8)
    integers = np.random.default_rng(0).integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
    model = text_model(
        LAYERS, opset=13, sx=np.float32(0.03), zx=np.uint8(128), wq=integers, sw=scale, zw=zeros,
        bq=np.zeros(8, np.int32), sb=scale * np.float32(0.03), zb=np.zeros(8, np.int32),
        w2=normal(8, 8, 3, 3) / 9,
    )  # fmt: skip
    for number, node in enumerate(model.graph.node):
        node.name = NAMINGS[naming](number)
    onnx.save(model, tmp_path / "m.onnx")
    built = qcompile.build(tmp_path / "m.onnx", tmp_path / "built.onnx", target=target, precision="int8")
    assert any("2 of 3 layers that compute are in float" in warning for warning in built.manifest.warnings)


READERS = {
    "a Mul": "h = Gemm(x, w, c) z = Mul(h, c)",
    "a Mul, behind an Identity": "k = Identity(c) h = Gemm(x, w, k) z = Mul(h, k)",
    "a Mul, and an Add that is a bias": "h = MatMul(x, w) g = Add(h, c) z = Mul(g, c)",
    "branches": """h = Gemm(x, w, c) n = ReduceSum<keepdims=0>(h) zero = Constant<value_float=0.0>()
        less = Less(n, zero) z = If (less) <
            then_branch = yes () => (float[b,32] t) { t = Mul(h, c) },
            else_branch = no () => (float[b,32] e) { e = Add(h, c) } >""",
    "another layer": "h = Gemm(x, w, c) r = Relu(h) g = Gemm(r, w, c) z = Mul(g, c)",
}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
@pytest.mark.parametrize("reader", READERS)
def test_a_corrected_bias_changes_none_of_its_other_readers(reader: str, target: str, tmp_path: Path) -> None:
    text = f"(float[b,32] x) => (float[b,32] z) {{ {READERS[reader]} }}"
    model = text_model(text, w=normal(32, 32), c=normal(32) * np.float32(0.05))
    x = np.abs(normal(64, 32)) + np.float32(3)
    options = calibrated(tmp_path, model, x) | {"search": False, "allow_loss": True}
    found = []
    for correct_bias in (False, True):
        qcompile.quantize(
            tmp_path / "m.onnx", tmp_path / "q.onnx", target=target, correct_bias=correct_bias, **options
        )
        found.append(snr_db(tmp_path, x))
    assert found[0] > 35
    assert found[1] > found[0] - 0.5


def test_a_bias_that_is_an_output_is_returned_as_it_was(tmp_path: Path) -> None:
    text = "(float[b,32] x) => (float[b,32] h, float[32] c) { h = Gemm(x, w, c) }"
    bias, x = normal(32), np.abs(normal(64, 32)) + np.float32(3)
    options = calibrated(tmp_path, text_model(text, w=normal(32, 32), c=bias), x)
    qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", search=False, **options)
    np.testing.assert_array_equal(outputs(onnx.load(tmp_path / "q.onnx"), {"x": x})[1], bias)
