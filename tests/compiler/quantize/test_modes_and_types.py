"""Modes and types through `quantize`: ONNX Runtime runs the file, and numpy says what it must compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from mode_models import PRODUCTS, WIDTH, normal, run, snr_db, static, written
from numpy.typing import NDArray
from onnx import parser
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.compiler.io_types import INTEGERS, set_io_types
from qcompile.compiler.opset.fit import upgrade_opset
from qcompile.compiler.quantize.judge import reference
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.compiler.quantize.quantize import quantize
from qcompile.compiler.quantize.request import QuantizeRequest
from qcompile.compiler.quantize.weights import hessians
from qcompile.compiler.quantize.weights.hessians import hessian_key
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, InvalidOption, QuantizationError, UnsupportedOperator
from qcompile.model.graph.graph import model_io, opset
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.sessions.session import make_session, optimize_file, session_options
from qcompile.spec.artifacts import QuantizeSpec
from qcompile.spec.words import GraphTarget


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
    mode: str, choice: dict[str, list[str]], taken: set[str], layers: Any, tmp_path: Path
) -> None:
    model, _, data, _ = layers
    options: dict[str, Any] = {"mode": mode} if mode != "fp16" else {"precision": "fp16"}
    if mode == "static":
        found = qcompile.calibrate(model, str(data), tmp_path / "r", targets=["tensorrt"], samples=16)
        options |= {"ranges": found.path, "target": "tensorrt", "layers": {"*": "int8"}}
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


@pytest.mark.parametrize("only", [["MatMul"], ["add1"]])
def test_only_knows_the_names_of_the_file(only: list[str], tmp_path: Path) -> None:
    # For ONNX Runtime a product of two axes and its bias become a Gemm.
    text = "(float[N,8] x) => (float[N,8] y) { a = MatMul(x, w) y = Add(a, b) }"
    onnx.save(model_of(text, named=True, w=normal(8, 8), b=normal(8)), model := tmp_path / "m.onnx")
    np.savez(data := tmp_path / "d.npz", x=normal(16, 8))
    found = qcompile.calibrate(model, str(data), tmp_path / "r")
    if only == ["MatMul"]:
        quantize(model, tmp_path / "q.onnx", ranges=found.path, only=only)
        return
    with pytest.raises(QuantizationError, match="'matmul0': not among 'add1'"):
        quantize(model, tmp_path / "q.onnx", ranges=found.path, only=only)


def operand_types(path: Path) -> dict[str, str]:
    """Node to the type that its first output has, by ONNX's own inference; strict."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True, check_type=True)
    values = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.output)}
    names = onnx.TensorProto.DataType.Name
    return {node.name: names(values[node.output[0]]) for node in model.graph.node}


@pytest.mark.parametrize(
    ("options", "integers", "types"),
    [
        ({"float_precision": "fp16"}, 3,
         dict.fromkeys(["conv1", "relu1", "conv2", "add", "pool", "gemm"], "FLOAT16")),
        ({"float_precision": "fp16", "layers": {"gemm": "fp32", "pool": "fp16"}}, 2,
         {"conv2": "FLOAT16", "pool": "FLOAT16", "gemm": "FLOAT"}),
        ({"float_precision": "fp32", "layers": {"gemm": "fp16"}}, 2,
         {"conv1": "FLOAT", "pool": "FLOAT", "gemm": "FLOAT16"}),
        ({"float_precision": "bf16", "layers": {"conv[1]": "fp32"}}, 2,
         {"conv1": "FLOAT", "gemm": "BFLOAT16"}),
        ({"layers": {"Conv": "fp32", "conv2": "int8"}}, 1, {"conv1": "FLOAT", "conv2": "FLOAT"}),
        ({"layers": {"*": "fp32", "conv2": "int8", "gemm": "int8"}, "float_precision": "fp16"}, 2,
         {"conv1": "FLOAT", "conv2": "FLOAT16", "add": "FLOAT", "pool": "FLOAT"}),
    ],
)  # fmt: skip
def test_layers_and_the_rest_have_the_types_that_were_asked_for(
    options: dict[str, Any], integers: int, types: dict[str, str], residual: Path, tmp_path: Path
) -> None:
    artifact = static(residual, tmp_path, target="tensorrt", **options)
    found = operand_types(artifact.path)
    assert {name: found[name] for name in types} == types
    counts = artifact.manifest.proof["nodes_by_precision"]
    assert sum(counts["int8"].values()) == integers  # type: ignore[index]
    if options.get("float_precision") != "bf16":  # which ONNX Runtime cannot run
        x = np.load(tmp_path / "x.npz")["x"]
        assert snr_db(run(residual, x=x), run(artifact.path, optimize=False, x=x)) > 25


def test_a_layer_that_cannot_have_its_type_is_said_or_refused(residual: Path, tmp_path: Path) -> None:
    artifact = static(residual, tmp_path, layers={"gemm": "fp16"})
    assert artifact.manifest.proof["nodes_by_precision"]["fp32"] == {"Gemm": 1}  # type: ignore[index]
    assert any("'gemm' was to be fp16: 'f_DequantizeLinear'" in text for text in artifact.manifest.warnings)
    for options in ({"float_precision": "fp16"}, {"float_precision": "bf16"}, {"layers": {"gemm": "bf16"}}):
        with pytest.raises(InvalidOption, match="for onnxruntime"):  # which runs none beside integers
            static(residual, tmp_path, **options)


def test_bfloat16_is_measured_by_emulation(residual: Path, tmp_path: Path) -> None:
    artifact = quantize(residual, tmp_path / "b.onnx", precision="bf16", data=str(tmp_path / "x.npz"))
    assert artifact.manifest.proof["nodes_by_precision"]["bf16"] == {"Conv": 2, "Gemm": 1}  # type: ignore[index]
    measured = float(artifact.manifest.checks[0].detail.split(" dB")[0])
    assert 30 < measured < 60  # 8 bits of significand: about 2**-9 of each result


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


def test_a_model_of_lookups_alone_is_stored_in_8_bits_and_calibrate_says_how(tmp_path: Path) -> None:
    model = model_of(
        "(int64[n] a, int64[n] b) => (float[n] y) { u = Gather (w, a) v = Gather (w, b) d = Sub (u, v) "
        "e = Abs (d) y = ReduceSum <keepdims = 0> (e, last) }",
        w=normal(2000, 40), last=np.array([1]),
    )  # fmt: skip
    path, data = tmp_path / "m.onnx", tmp_path / "x.npz"
    onnx.save(model, path)
    ids = np.random.default_rng(0).integers(0, 2000, (2, 32))
    np.savez(data, a=ids[0], b=ids[1])
    with pytest.raises(CalibrationError, match="nothing to calibrate") as caught:
        qcompile.calibrate(path, str(data), tmp_path / "r")
    assert "`mode` dynamic" in caught.value.hint
    made = quantize(path, tmp_path / "q.onnx", mode="dynamic", data=str(data))
    assert len(made.manifest.proof["tables"]) == 2  # type: ignore[arg-type]
    assert made.path.stat().st_size < path.stat().st_size / 3
    expected, found = (run(file, a=ids[0], b=ids[1]) for file in (path, made.path))
    assert snr_db(expected, found) > 40


def test_an_old_opset_is_raised_to_13_and_computes_the_same(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = tiny("residual", opset=9)
    model.ir_version = 3
    model.graph.input.append(onnx.helper.make_tensor_value_info("w3", 1, [3, 4]))  # as files of old had it
    model.graph.node[0].name = model.graph.node[1].name = "same"
    model.graph.node[2].name = ""
    ready = prepare_graph(model)
    onnx.checker.check_model(ready)
    assert opset(ready) == 13
    assert ready.ir_version >= 8
    assert [value.name for value in ready.graph.input] == ["x"]
    names = [node.name for node in ready.graph.node]
    assert names[0] == "same"
    assert len({*names} - {""}) == len(model.graph.node)
    expected = outputs_of(tiny("residual", opset=9), x := normal(3, 4, 8, 8))[0]
    np.testing.assert_allclose(outputs_of(ready, x)[0], expected, rtol=1e-5, atol=1e-6)
    text = '<ir_version: 3, opset_import: ["" : 8]> g (float[2,3] x) => (float[2,3] y) { y = GoneByNow(x) }'
    with pytest.raises(UnsupportedOperator, match=r"opset 8 cannot be converted to 13: .*GoneByNow"):
        upgrade_opset(parser.parse_model(text), 13)


def test_a_sum_of_two_becomes_an_add_and_a_sum_of_three_stays() -> None:
    model = model_of("(float[2,3] x) => (float[2,3] y) { a = Relu(x) b = Sum(a, x) y = Sum(a, b, x) }")
    ready = prepare_graph(model)
    assert [node.op_type for node in ready.graph.node] == ["Relu", "Add", "Sum"]
    np.testing.assert_array_equal(outputs_of(ready, normal(2, 3))[0], outputs_of(model, normal(2, 3))[0])


def test_hessians_beyond_the_budget_take_several_passes_and_are_the_same(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, npz = tiny_file("mlp"), tmp_path / "x.npz"
    np.savez(npz, x=np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
    model = read_graph(path).load()
    names = {hessian_key(node) for node in model.graph.node} - {""}
    assert len(names) > 1

    def collected() -> dict[str, hessians.Hessian]:
        return hessians.collect_hessians(read_graph(path), names, Data(str(npz), model_io(model).inputs), 8)

    once = collected()
    monkeypatch.setattr(hessians, "BUDGET_BYTES", 1)
    several = collected()
    assert {type(hessian) for hessian in several.values()} == {np.memmap}
    assert once.keys() == several.keys() == names
    for name, hessian in once.items():
        np.testing.assert_array_equal(several[name], hessian)


EMBEDDED = """(int64[n] ids, float[n,2] x, bool choose) => (float[n,2] y, int64[n] next, float[n,2] twice) {
    twice = Add(x, x)
    y = If(choose) <then_branch = t () => (float[n,2] a) { a = Mul(twice, x) },
                    else_branch = e () => (float[n,2] b) { b = Sub(x, twice) }>
    one = Constant <value_int = 1> ()  next = Add(ids, one)
}
"""


def types_of(model: onnx.ModelProto) -> dict[str, str]:
    """Name to type of every input and output."""
    io = model_io(model)
    return {tensor.name: tensor.dtype for tensor in (*io.inputs, *io.outputs)}


@pytest.fixture
def embedded() -> onnx.ModelProto:
    """Integers, floats, and tensors that graphs inside nodes read."""
    return model_of(EMBEDDED)


def feeds(**types: str) -> dict[str, NDArray[np.generic]]:
    """Feeds of the embedded model, cast to types."""
    x = np.random.default_rng(0).standard_normal((3, 2))
    return {
        "ids": np.array([1, 2, 100], types.get("ids", "int64")),
        "x": x.astype(types.get("x", "float32")),
        "choose": np.array(True),
    }


@pytest.mark.parametrize("floats", ["float16", "float64"])
@pytest.mark.parametrize("integers", [name for name in INTEGERS if name != "int64"])
def test_floats_and_integers_are_cast_at_the_edge(
    embedded: onnx.ModelProto, floats: str, integers: str
) -> None:
    outside = {"x": floats, "y": floats, "ids": integers, "next": integers}
    model = set_io_types(embedded, outside)
    assert types_of(model) == types_of(embedded) | outside
    fed = feeds(x=floats, ids=integers)
    y, following, twice = outputs_of(model, fed)
    expected = outputs_of(embedded, feeds() | {"x": fed["x"].astype(np.float32)})
    assert (y.dtype, following.dtype) == (floats, integers)
    np.testing.assert_array_equal(y, expected[0].astype(floats))
    np.testing.assert_array_equal(following, [2, 3, 101])
    np.testing.assert_array_equal(twice, expected[2])


def test_an_output_that_is_read_inside_keeps_its_precision_there(embedded: onnx.ModelProto) -> None:
    model = set_io_types(embedded, {"twice": "float16"})
    y, _, twice = outputs_of(model, feeds())
    expected = outputs_of(embedded, feeds())
    assert twice.dtype == np.float16
    np.testing.assert_array_equal(y, expected[0])


def test_bfloat16_is_possible_where_the_opset_has_it(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = set_io_types(tiny("mlp"), {"x": "bfloat16", "y": "bfloat16"})
    assert types_of(model) == {"x": "bfloat16", "y": "bfloat16"}
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 16)).astype(ml_dtypes.bfloat16)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16), onnx.TensorProto.BFLOAT16
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_type() == "tensor(bfloat16)"
    with pytest.raises(InvalidOption, match="Cast of bfloat16 needs opset 13; the model is of 11"):
        set_io_types(tiny("mlp", opset=11), {"x": "bfloat16"})


def test_there_and_back_is_the_same_up_to_rounding_and_the_model_given_is_untouched(
    tiny: Callable[..., onnx.ModelProto],
) -> None:
    model = tiny("residual")
    before = model.SerializeToString(deterministic=True)
    changed = set_io_types(set_io_types(model, {"x": "float16"}), {"x": "float32"})
    assert model.SerializeToString(deterministic=True) == before
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    rounded = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(outputs_of(changed, {"x": x})[0], outputs_of(model, {"x": rounded})[0])


def test_a_stored_tensor_may_be_an_output_and_an_input_that_is_one_keeps_its_type() -> None:
    text = "(float[2] x) => (float[2] y, float[2] w) <float[2] w = {1.5, 2.5}> { y = Mul(x, w) }"
    y, w = outputs_of(set_io_types(model_of(text), {"w": "float64"}), {"x": np.ones(2, np.float32)})
    assert w.dtype == np.float64
    np.testing.assert_array_equal(w, [1.5, 2.5])
    np.testing.assert_array_equal(y, [1.5, 2.5])
    model = model_of("(float[2] x) => (float[2] x, float[2] y) { y = Relu(x) }")
    with pytest.raises(InvalidOption, match="is both an input and an output of the model"):
        set_io_types(model, {"x": "float16"})


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"z": "float16"}, "named 'z': inputs are ids, x, choose; outputs are y, next, twice"),
        ({"x": "half"}, "'half' was requested; float16, bfloat16, float32, float64 are possible"),
        ({"x": "int8"}, "'x' of float32: 'int8' was requested; float16"),
        ({"ids": "float32"}, "'ids' of int64: 'float32' was requested; int8, uint8"),
        ({"choose": "int8"}, "'choose' of bool: 'int8' was requested; no other type is possible"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    embedded: onnx.ModelProto, types: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        set_io_types(embedded, types)


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_pairs_stay_pairs_and_compute_what_they_say(target: str, tmp_path: Path) -> None:
    model = written(
        tmp_path / "m.onnx",
        "(float[n,16] x) => (float[n,16] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        w=normal(16, 16),
        v=normal(16, 16, seed=1),
    )
    x = normal(64, 16)
    np.savez(tmp_path / "x.npz", x=x)
    made = static(model, tmp_path, target=target).path
    plain = make_session(made, session_options(optimize=False)).run(None, {"x": x})[0]
    np.testing.assert_allclose(OnnxReference(made, integers=False)({"x": x})[0], plain, rtol=1e-5, atol=1e-6)

    optimized = tmp_path / "optimized.onnx"
    optimize_file(made, optimized, session_options(integers=False), without=["WeightBiasQuantization"])
    kinds = [node.op_type for node in onnx.load(optimized).graph.node]
    assert kinds.count("QuantizeLinear") == 2  # of the activations; the weights' are computed once
    assert not any(kind.startswith("QLinear") or "Integer" in kind for kind in kinds)
    assert onnxruntime.InferenceSession(optimized, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("bias", "is_kept"), [(0.0, True), (60.0, False)])
def test_static_int8_has_lstms_with_scales_of_run_time_where_they_cost_next_to_nothing(
    bias: float, is_kept: bool, tmp_path: Path
) -> None:
    """One input channel that is far larger than the others takes all steps of an activation's scale."""
    shift = np.zeros(16, np.float32)
    shift[0] = bias
    model = written(
        tmp_path / "m.onnx",
        """(float[n,9,8] x) => (float[n,9,4] y) {
            [first] a = MatMul(x, v) [shift] b = Add(a, shift) c = Transpose <perm = [1,0,2]> (b)
            [lstm] d, e, f = LSTM <hidden_size = 16> (c, w, r) g = Squeeze(d, axis)
            h = Transpose <perm = [1,0,2]> (g) [last] y = MatMul(h, u) }""",
        v=normal(8, 16), shift=shift, w=normal(1, 64, 16) * (shift == 0), r=normal(1, 64, 16),
        u=normal(16, 4), axis=np.array([1]),
    )  # fmt: skip
    np.savez(tmp_path / "x.npz", x=normal(64, 9, 8, scale=1.0))
    made = static(model, tmp_path)
    proof: Any = made.manifest.proof
    kinds = [node.op_type for node in onnx.load(made.path).graph.node]
    tried = {one["tried"]: one.get("snr_db") for one in proof["search"]}
    lost_db = max(tried.values()) - tried["LSTMs with scales found at run time"]
    assert ("DynamicQuantizeLSTM" in kinds) == is_kept == (lost_db <= 3)
    assert proof["lstms"]["dynamic"] == (["lstm"] if is_kept else [])
    assert proof["nodes_by_precision"]["int8"].get("DynamicQuantizeLSTM", 0) == int(is_kept)
    x = normal(4, 9, 8, seed=1, scale=1.0)
    assert snr_db(run(model, x=x), run(made.path, x=x)) > 20
    few: Any = static(model, tmp_path, "few", only=["last"]).manifest.proof
    assert few["lstms"]["dynamic"] == []
    assert few["nodes_by_precision"]["int8"] == {"MatMul": 1}


@pytest.mark.parametrize(
    ("target", "layer", "features", "integers"),
    [
        ("openvino", "Conv(x, w)", ["avx512_vnni"], True),
        ("openvino", "Conv(x, w)", [], False),  # each runtime adds other pairs of products in 16 bits
        ("openvino", "MatMul(x, w)", ["avx512_vnni"], False),
        ("tensorrt", "Conv(x, w)", ["avx512_vnni"], False),
        ("onnxruntime", "MatMul(x, w)", ["avx512_vnni"], True),
    ],
)
def test_integers_are_judged_as_integers_where_that_is_exact(
    target: GraphTarget, layer: str, features: list[str], integers: bool, tmp_path: Path,
    on_processor: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[dict[str, bool]] = []
    monkeypatch.setattr("qcompile.compiler.quantize.judge.OnnxReference", lambda _, **how: asked.append(how))
    path = tmp_path / "m.onnx"
    onnx.save(
        model_of(
            f"(float[1,4,4,4] x) => (float[1,4,4,4] y) {{ y = {layer} }}", w=np.ones((4, 4, 1, 1), np.float32)
        ),
        path,
    )
    on_processor(*features)
    request = QuantizeRequest(read_graph(path), "sha256:00", QuantizeSpec(target=target, isa="avx512-vnni"))
    reference(request, request.model, None)
    assert asked == [{"optimize": True, "integers": integers, "layouts": integers}]
