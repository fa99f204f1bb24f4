"""Every mode through `quantize`: ONNX Runtime runs the file, and numpy says what it must compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import qcompile
from qcompile.artifact import Artifact
from qcompile.compiler import quantize
from qcompile.compiler.int8.executed import require_executed
from qcompile.compiler.request import WeightOptions
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.processor import processor
from qcompile.errors import InvalidOption, QuantizationError
from qcompile.model.onnx_file import save_onnx

Floats = NDArray[np.float32]
WIDTH = 64

LAYERS = """(float[n,64] x) => (float[n,10] y) {
    [layer_0] a = MatMul(x, w1) b = Relu(a)
    [layer0] c = MatMul(b, w2) [tanh] d = Tanh(c)
    [MatMul] e = MatMul(d, w3) f = Relu(e)
    [head] y = Gemm <transB = 1> (f, w4, b4) }"""
PRODUCTS = ("layer[0]", "layer0", "MatMul", "head")


def normal(*shape: int, seed: int = 0, scale: float = 0.2) -> Floats:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def written(path: Path, body: str, **weights: NDArray[Any]) -> Path:
    """Write a model of opset 17 in ONNX's text form."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> tiny {body}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    for node in model.graph.node:
        node.name = node.name.replace("layer_0", "layer[0]")  # as a glob this means layer0
    onnx.checker.check_model(model, full_check=True)
    save_onnx(model, path)
    return path


def run(path: Path, *, optimize: bool = True, **feeds: NDArray[Any]) -> Floats:
    """The first output; Q/DQ of weights alone is not fused to products of int8 activations."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    output: Floats = session.run(None, feeds)[0]
    return output


def snr_db(expected: Floats, found: Floats) -> float:
    error = np.square(expected.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / max(error, 1e-30)))


def stored(path: Path) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, dict[str, Floats], Path, Floats]:
    """The model with brackets in its names, its weights, a file of samples, and the samples."""
    weights = {
        "w1": normal(WIDTH, WIDTH),
        "w2": normal(WIDTH, 96),
        "w3": normal(96, 80),
        "w4": normal(10, 80),
    }
    mixing = normal(WIDTH, WIDTH, seed=5)  # the inputs are correlated, which GPTQ makes use of
    x = (normal(256, WIDTH, seed=6, scale=1) @ mixing).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    model = written(tmp_path / "m.onnx", LAYERS, **weights, b4=normal(10))
    return model, weights, tmp_path / "x.npz", x


def forward(weights: Mapping[str, Floats], x: Floats) -> Floats:
    """LAYERS in numpy; w4 is [N, K]."""
    hidden = np.tanh(np.maximum(x @ weights["w1"], 0) @ weights["w2"])
    result: Floats = np.maximum(hidden @ weights["w3"], 0) @ weights["w4"].T + normal(10)
    return result


def dequantized(path: Path, name: str, shape: tuple[int, int], *, bits: int, form: str, block: int) -> Floats:
    """The weight [K, N], or [N, K] for w4, that the file's integers stand for."""
    tensors = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    axis = 1 if name == "w4" else 0
    prefix = f"{name}/axis{axis}"
    rows, columns = shape[:: 1 if axis else -1]
    scales = numpy_helper.to_array(tensors[f"{prefix}/scale"])
    if form == "qdq":
        codes = numpy_helper.to_array(tensors[f"{prefix}/int{bits}"]).astype(np.float32)
        scales = np.expand_dims(scales, axis) if scales.ndim == 1 else scales
        scales = np.repeat(scales, codes.shape[axis] // scales.shape[axis], axis)
        return codes * scales

    def unpacked(kind: str) -> NDArray[Any]:
        content = np.frombuffer(tensors[f"{prefix}/{kind}"].raw_data, np.uint8)
        halves = np.stack([content & 15, content >> 4], -1) if bits == 4 else content
        found: NDArray[Any] = halves.reshape(rows, -1).astype(np.float32)
        return found

    at = np.arange(columns) // block
    array = (unpacked("blocks")[:, :columns] - unpacked("zero_point")[:, at]) * scales.reshape(rows, -1)[
        :, at
    ]
    return np.asarray(array if axis else array.T, np.float32)


@pytest.mark.parametrize(("target", "form"), [("onnxruntime", "nbits"), ("tensorrt", "qdq")])
@pytest.mark.parametrize("rounding", ["rtn", "gptq"])
@pytest.mark.parametrize(("precision", "block"), [("int4", 16), ("int4", 32), ("int8", 64)])
def test_weights_alone_are_what_onnx_runtime_multiplies_by(
    precision: str, block: int, rounding: str, target: str, form: str, layers: Any, tmp_path: Path
) -> None:
    model, weights, data, x = layers
    artifact = quantize(
        model, tmp_path / "q.onnx", mode="weights", precision=precision, target=target,  # type: ignore[arg-type]
        weights=WeightOptions(block, rounding), data=str(data),
    )  # fmt: skip
    proof = artifact.manifest.proof
    assert proof["quantized"] == proof["planned"] == {"MatMul": 3, "Gemm": 1}
    assert (proof["form"], proof["left_in_float"]) == (form, {})
    bits = int(precision.removeprefix("int"))
    read = {
        name: dequantized(artifact.path, name, w.shape, bits=bits, form=form, block=block)
        for name, w in weights.items()
    }
    for name, weight in weights.items():
        assert read[name].shape == weight.shape
        assert snr_db(weight, read[name]) > (12 if bits == 4 else 38)
    np.testing.assert_allclose(run(artifact.path, x=x), forward(read, x), rtol=1e-3, atol=1e-4)
    if form == "qdq":
        types = {t.name: t.data_type for t in onnx.load(artifact.path).graph.initializer}
        kind = onnx.TensorProto.INT4 if bits == 4 else onnx.TensorProto.INT8
        assert sum(found == kind for found in types.values()) == 4


def test_gptq_loses_less_of_the_first_product_on_its_samples_than_rounding(
    layers: Any, tmp_path: Path
) -> None:
    model, weights, data, x = layers
    found = {}
    for rounding in ("rtn", "gptq"):
        path = quantize(
            model, tmp_path / f"{rounding}.onnx", mode="weights", precision="int4", data=str(data),
            weights=WeightOptions(64, rounding),
        ).path  # fmt: skip
        read = dequantized(path, "w1", (WIDTH, WIDTH), bits=4, form="nbits", block=64)
        found[rounding] = snr_db(x @ weights["w1"], x @ read)
    assert found["gptq"] > found["rtn"] + 1


def test_gptq_without_samples_is_refused(layers: Any, tmp_path: Path) -> None:
    options = WeightOptions(64, "gptq")
    with pytest.raises(InvalidOption, match="needs samples"):
        quantize(layers[0], tmp_path / "q.onnx", mode="weights", precision="int4", weights=options)


def test_onnx_runtimes_own_form_is_refused_for_tensorrt(layers: Any, tmp_path: Path) -> None:
    options = WeightOptions(form="nbits")
    with pytest.raises(InvalidOption, match="operators of ONNX Runtime alone"):
        quantize(
            layers[0],
            tmp_path / "q.onnx",
            mode="weights",
            precision="int4",
            target="tensorrt",
            weights=options,
        )


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        ({"exclude": ["layer[0]"]}, {"MatMul", "head"}),  # a name, and a glob for layer0
        ({"exclude": ["layer[[]0]"]}, {"layer0", "MatMul", "head"}),
        ({"only": ["layer0"]}, {"layer0"}),
        ({"only": ["head", "layer0"], "exclude": ["head"]}, {"layer0"}),
        ({"only": ["Gemm"]}, {"head"}),
        ({"only": ["MatMul"]}, {"layer[0]", "layer0", "MatMul"}),
    ],
)
@pytest.mark.parametrize("mode", ["static", "dynamic", "weights", "fp16"])
def test_only_and_exclude_choose_the_same_nodes_in_every_mode(
    mode: str,
    choice: dict[str, list[str]],
    taken: set[str],
    layers: Any,
    tmp_path: Path,
) -> None:
    model, _, data, _ = layers
    options: dict[str, Any] = {"mode": mode} if mode != "fp16" else {"precision": "fp16"}
    if mode == "static":
        found = qcompile.calibrate(model, str(data), tmp_path / "r", targets=["tensorrt"], samples=16)
        options |= {"ranges": found.path, "target": "tensorrt"}
    artifact = quantize(model, tmp_path / "q.onnx", **options, **choice)
    if mode == "dynamic":
        assert sum(artifact.manifest.proof["quantized"].values()) == len(taken)  # type: ignore[attr-defined]
        kept = onnx.load(artifact.path).graph
        in_float = {n.name.removesuffix("_MatMul") for n in kept.node if n.op_type in ("MatMul", "Gemm")}
        assert in_float == set(PRODUCTS) - taken
        return
    left = artifact.manifest.proof["left_in_float"]
    assert isinstance(left, Mapping)
    assert set(PRODUCTS) - left.keys() == taken
    words = [*choice.get("only", ()), *choice.get("exclude", ())]
    assert all(any(word in left[name] for word in words) for name in left if name in PRODUCTS)


def static(model: Path, tmp_path: Path, name: str = "q", method: str = "minmax", **options: Any) -> Artifact:
    """Quantize with ranges of `x.npz`."""
    target, data = options.get("target", "onnxruntime"), str(tmp_path / "x.npz")
    ranges = qcompile.calibrate(model, data, tmp_path / f"{name}.ranges", targets=[target], method=method)
    return quantize(model, tmp_path / f"{name}.onnx", ranges=ranges.path, data=data, **options)


@pytest.fixture
def residual(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> Path:
    """The tiny residual model, with its samples in `x.npz`."""
    samples("residual", 64).rename(tmp_path / "x.npz")
    return tiny_file("residual")


def operand_types(path: Path) -> dict[str, str]:
    """Node to the type that its first output has, by ONNX's own inference; strict."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True, check_type=True)
    values = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.output)}
    names = onnx.TensorProto.DataType.Name
    return {node.name: names(values[node.output[0]]) for node in model.graph.node}


@pytest.mark.parametrize(
    ("options", "integers", "types"),
    [
        ({"rest": "fp16"}, 3, dict.fromkeys(["conv1", "relu1", "conv2", "add", "pool", "gemm"], "FLOAT16")),
        (
            {"rest": "fp16", "layers": {"gemm": "fp32", "pool": "fp16"}},
            2,
            {"conv2": "FLOAT16", "pool": "FLOAT16", "gemm": "FLOAT"},
        ),
        (
            {"rest": "fp32", "layers": {"gemm": "fp16"}},
            2,
            {"conv1": "FLOAT", "pool": "FLOAT", "gemm": "FLOAT16"},
        ),
        ({"rest": "bf16", "layers": {"conv[1]": "fp32"}}, 2, {"conv1": "FLOAT", "gemm": "BFLOAT16"}),
        ({"layers": {"Conv": "fp32", "conv2": "int8"}}, 2, {"conv1": "FLOAT", "conv2": "FLOAT"}),
        (
            {"layers": {"*": "fp32", "conv2": "int8", "gemm": "int8"}, "rest": "fp16"},
            2,
            {"conv1": "FLOAT", "conv2": "FLOAT16", "add": "FLOAT", "pool": "FLOAT"},
        ),
    ],
)
def test_layers_and_the_rest_have_the_types_that_were_asked_for(
    options: dict[str, Any], integers: int, types: dict[str, str], residual: Path, tmp_path: Path
) -> None:
    artifact = static(residual, tmp_path, target="tensorrt", **options)
    found = operand_types(artifact.path)
    assert {name: found[name] for name in types} == types
    counts = artifact.manifest.proof["nodes_by_precision"]
    assert sum(counts["int8"].values()) == integers  # type: ignore[index]
    if options.get("rest") != "bf16":  # which ONNX Runtime cannot run
        x = np.load(tmp_path / "x.npz")["x"]
        assert snr_db(run(residual, x=x), run(artifact.path, optimize=False, x=x)) > 25


def test_a_layer_that_cannot_have_its_type_is_said(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, layers={"gemm": "fp16"})
    assert artifact.manifest.proof["nodes_by_precision"]["fp32"] == {"Gemm": 1}  # type: ignore[index]
    assert any("'gemm' was to be fp16: 'f_DequantizeLinear'" in text for text in artifact.manifest.warnings)


@pytest.mark.parametrize("options", [{"rest": "fp16"}, {"rest": "bf16"}, {"layers": {"gemm": "bf16"}}])
def test_halves_that_onnx_runtime_cannot_run_beside_integers_are_refused(
    options: dict[str, Any], residual: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match="for onnxruntime"):
        static(residual, tmp_path, **options)


def test_a_mixed_graph_is_built_by_tensorrt_rtx(residual: Path, tmp_path: Path) -> None:
    path = static(residual, tmp_path, target="tensorrt", rest="fp16", layers={"gemm": "fp32"}).path
    request = BuildRequest(str(path), tmp_path / "m.engine", "int8", gpus=["sm86"])
    proof = build_engine("tensorrt-rtx", request).manifest.proof
    assert proof["layers_by_precision"] == {"int8": {"CONVOLUTION": 2}, "fp32": {"MATRIX_MULTIPLY": 1}}
    path = static(residual, tmp_path, "h", target="tensorrt", rest="fp16", exclude=["gemm"]).path
    request = BuildRequest(str(path), tmp_path / "h.engine", "int8", gpus=["sm86"])
    proof = build_engine("tensorrt-rtx", request).manifest.proof
    assert proof["layers_by_precision"] == {"int8": {"CONVOLUTION": 2}, "fp16": {"MATRIX_MULTIPLY": 1}}


def test_bfloat16_is_measured_by_emulation(residual: Path, tmp_path: Path) -> None:
    artifact = quantize(residual, tmp_path / "b.onnx", precision="bf16", data=str(tmp_path / "x.npz"))
    assert artifact.manifest.proof["nodes_by_precision"]["bf16"] == {"Conv": 2, "Gemm": 1}  # type: ignore[index]
    measured = float(artifact.manifest.checks[0].detail.split(" dB")[0])
    assert 30 < measured < 60  # 8 bits of significand: about 2**-9 of each result


def test_dynamic_uint8_runs_and_has_zero_points(layers: Any, tmp_path: Path) -> None:
    model, weights, _, x = layers
    artifact = quantize(model, tmp_path / "q.onnx", mode="dynamic", weight_type="uint8")
    assert artifact.manifest.options["weight_type"] == "uint8"
    integers = {name: a for name, a in stored(artifact.path).items() if a.ndim == 2 and a.dtype != np.float32}
    assert len(integers) == 4
    assert {array.dtype.name for array in integers.values()} == {"uint8"}
    assert snr_db(forward(weights, x), run(artifact.path, x=x)) > 30


@pytest.mark.parametrize("only", [[], ["MatMul"]])
def test_dynamic_stores_a_large_table_as_int8(only: list[str], tmp_path: Path) -> None:
    table, weight = normal(1024, WIDTH, scale=1), normal(WIDTH, 32)
    body = """(int64[n] ids) => (float[n,32] y, float[n,64] rows) {
        [look] rows = Gather(table, ids) y = MatMul(rows, w) }"""
    model = written(tmp_path / "m.onnx", body, table=table, w=weight)
    artifact = quantize(model, tmp_path / "q.onnx", mode="dynamic", only=only)
    assert artifact.manifest.proof["tables"] == ([] if only else ["look"])
    assert (artifact.path.stat().st_size < model.stat().st_size * 0.4) is not bool(only)
    ids = np.arange(1024)
    session = onnxruntime.InferenceSession(str(artifact.path), providers=["CPUExecutionProvider"])
    y, rows = session.run(None, {"ids": ids})
    steps = np.abs(table).max(1, keepdims=True) / 127
    assert np.all(np.abs(rows - table) <= (0 if only else steps / 2 * 1.001))
    assert snr_db(table @ weight, y) > 30


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "openvino"])
def test_corrected_biases_win_where_clipping_shifts_the_mean(target: str, tmp_path: Path) -> None:
    body = """(float[n,16] x) => (float[n,8] y) {
        a = Gemm <transB = 1> (x, w1, b1) r = Relu(a) y = Gemm <transB = 1> (r, w2, b2) }"""
    weights = {"w1": np.abs(normal(16, 16)), "b1": normal(16), "w2": np.abs(normal(8, 16)), "b2": normal(8)}
    x = np.random.default_rng(3).exponential(1, (64, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    model = written(tmp_path / "m.onnx", body, **weights)
    expected = np.maximum(x @ weights["w1"].T + weights["b1"], 0) @ weights["w2"].T + weights["b2"]
    found = {}
    for correct in (True, False):
        artifact = static(
            model, tmp_path, f"q{correct}", "percentile:97", target=target, correct_bias=correct
        )
        assert artifact.manifest.proof["corrected_biases"] == (2 if correct else 0)
        y = run(artifact.path, optimize=target == "onnxruntime", x=x)
        found[correct] = snr_db(expected, y), np.abs((y - expected).mean(0)).max()
    assert found[True][0] > found[False][0] + 0.5
    assert found[True][1] < found[False][1] / 2


def test_avx2_gets_weights_of_seven_bits_that_run(residual: Path, tmp_path: Path) -> None:
    largest = {}
    for name in ("vnni", "avx2"):
        artifact = static(residual, tmp_path, name, processor=name)
        weights = [a for a in stored(artifact.path).values() if a.dtype == np.int8 and a.ndim > 1]
        assert len(weights) == 3
        largest[name] = max(int(np.abs(a.astype(int)).max()) for a in weights)
        x = np.load(tmp_path / "x.npz")["x"]
        assert snr_db(run(residual, x=x), run(artifact.path, x=x)) > 30
    assert largest["avx2"] <= 64 < largest["vnni"] <= 127


def test_arm_gets_int8_activations_that_run(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, processor="arm")
    points = {n.input[2] for n in onnx.load(artifact.path).graph.node if n.op_type == "QuantizeLinear"}
    values = stored(artifact.path)
    assert {values[name].dtype.name for name in points} == {"int8"}
    x = np.load(tmp_path / "x.npz")["x"]
    assert snr_db(run(residual, x=x), run(artifact.path, x=x)) > 30
    assert artifact.manifest.proof["as_executed"]["int8"] == {"QLinearConv": 2, "QGemm": 1}  # type: ignore[index]


@pytest.mark.skipif("aarch64" in str(processor()).lower(), reason="ONNX Runtime fuses int8 activations there")
def test_what_onnx_runtime_does_not_fuse_is_named(residual: Path, tmp_path: Path) -> None:
    path = static(residual, tmp_path, processor="arm").path
    with pytest.raises(
        QuantizationError, match=r"executes 1 of 3 .* in float stay 'conv1', 'conv2'"
    ) as caught:
        require_executed(path, ["conv1", "conv2", "gemm"])
    assert caught.value.data["nodes"] == ["conv1", "conv2"]


def test_what_is_executed_is_what_a_session_says(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, exclude=["conv2"])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(artifact.path), options, providers=["CPUExecutionProvider"])
    computes = ("QLinearConv", "QGemm", "QLinearMatMul", "Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul")
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    computing = {name: count for name, count in kinds.items() if name in computes}
    found = artifact.manifest.proof["as_executed"]
    assert isinstance(found, Mapping)
    assert dict(sum((Counter(part) for part in found.values()), Counter())) == computing
    assert found["int8"] == {"QLinearConv": 1, "QGemm": 1}


def test_a_planned_node_that_is_not_fused_fails_the_verb(tmp_path: Path) -> None:
    body = """(float[n,4,8,8] x) => (float[n,4,6,6] y) {
        [conv1] c = Conv(x, w, b) r = Relu(c) late = ReduceMean <axes = [0,2,3], keepdims = 0> (r)
        [conv10] d = Conv <pads = [1,1,1,1]> (r, v, late) y = Relu(d) }"""
    weights = {"w": normal(4, 4, 3, 3), "b": normal(4), "v": normal(4, 4, 3, 3)}
    model = written(tmp_path / "m.onnx", body, **weights)
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 8, 8))
    with pytest.raises(QuantizationError, match=r"in float stay 'conv10'\n"):
        static(model, tmp_path)
    assert not (tmp_path / "q.onnx").exists()
