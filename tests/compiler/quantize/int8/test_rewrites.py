"""What a graph with Q/DQ needs after the quantizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mode_models import normal, run, snr_db, static, written
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.quantize.int8.rewrites import gather_by_vectors, quantize_tables, read_floats
from qcompile.core.artifact import Artifact


def test_a_model_output_is_the_float_value_again_where_a_float_node_makes_it() -> None:
    model = model_of(
        """(float[2,2] x) => (float[2,2] d, float[2,2] y) <float s = {0.1}, uint8 z = {3}> {
        n = Tanh(x)  q = QuantizeLinear(n, s, z)  d = DequantizeLinear(q, s, z)
        [product] p = MatMul(d, w)  [residual] y = Add(p, d) }""",
        w=np.array([[1, 2], [3, 4]], np.float32),
    )
    x = np.array([[0.33, -0.2], [0.111, 0.9]], np.float32)
    before = outputs_of(model, x)
    read_floats(model.graph, {"product", "residual"})
    onnx.checker.check_model(model, full_check=True)
    after = outputs_of(model, x)
    np.testing.assert_allclose(after[0], np.tanh(x), rtol=1e-6)
    assert np.abs(before[0] - after[0]).max() > 0.01
    np.testing.assert_array_equal(after[1], before[1])


@pytest.mark.parametrize("product", ["MatMul(x, u)", "Gemm(x, u)"])
def test_a_product_stays_in_integers_in_front_of_a_relu_that_floats_read(
    product: str, tmp_path: Path
) -> None:
    """ONNX Runtime 1.31.1 computes both in float; 'nothing to quantize' was said of a network."""
    model = model_of(
        "(float[4, 8] x) => (float[4, 6] y) <float[8, 16] u, float[16, 6] v>"
        f"{{ p = {product}  q = Relu(p)  y = MatMul(q, v) }}",
        named=True,
    )
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=x)
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges", exclude=["matmul2"]
    )
    executed: Any = made.manifest.proof["as_executed"]
    assert sum(executed["int8"].values()) == 1
    (found,), (expected,) = outputs_of(tmp_path / "q.onnx", x), outputs_of(model, x)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_a_table_that_two_nodes_read_is_stored_once() -> None:
    table = normal(500, 4)
    text = """(int64[2] a, int64[3] b) => (float[2,4] y, float[3,4] z) {
        [one] y = Gather(table, a) [two] z = Gather(table, b) }"""
    model = model_of(text, table=table)
    quantize_tables(model, {"one", "two"})
    names = [tensor.name for tensor in model.graph.initializer]
    assert sorted(names) == ["one/shape", "table/int8", "table/scale", "two/shape"]
    y, z = outputs_of(model, {"a": np.array([1, 2]), "b": np.array([2, 3, 499])})
    np.testing.assert_array_equal(y[1], z[0])
    np.testing.assert_allclose(z[2], table[499], atol=np.abs(table[499]).max() / 200)


def test_a_transformer_reads_its_residual_in_float_and_its_vocabulary_in_int8(tmp_path: Path) -> None:
    """The whole of it: static INT8 for a CPU, of a network of an embedding, a norm and two products."""
    model = model_of(
        """(int64[n,4] ids) => (float[n,4,32] y) {
        e = Gather(table, ids) h = LayerNormalization(e, g, g) a = MatMul(h, w) r = Relu(a)
        b = MatMul(r, w) s = Add(b, h) y = LayerNormalization(s, g, g) }""",
        table=normal(4000, 32, scale=1), g=normal(32, scale=1), w=normal(32, 32, scale=1),
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", ids=np.random.default_rng(0).integers(0, 4000, (8, 4)))
    for target in ("onnxruntime", "openvino"):
        made = static(tmp_path / "m.onnx", tmp_path, method="auto", target=target)
        graph = onnx.load(made.path).graph
        closing = next(node for node in graph.node if node.op_type in ("Add", "Sum"))
        assert closing.input[1] == "h", target
        assert closing.op_type == ("Sum" if target == "onnxruntime" else "Add")
        assert {t.name for t in graph.initializer} >= {"table/int8", "table/scale"}
        assert made.manifest.proof["tables"] == ["Gather_e"]
        assert float(made.manifest.checks[0].detail.split()[0]) > 25


@given(axis=st.integers(-4, 3), rows=st.integers(1, 3), columns=st.integers(1, 4), free=st.booleans())
def test_the_result_is_that_of_numpy(axis: int, rows: int, columns: int, free: bool) -> None:
    indices = np.random.default_rng(rows).integers(-2, 2, (rows, columns))
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    shape = "n,2,4,5" if free else "3,2,4,5"
    model = model_of(
        f"(float[{shape}] x) => (float y) {{ y = Gather<axis={axis}>(x, i) }}", named=True, i=indices
    )
    gather_by_vectors(model)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Gather", "Reshape"]
    np.testing.assert_array_equal(outputs_of(model, x)[0], np.take(x, indices, axis))


@pytest.mark.parametrize(
    ("shape", "gather", "indices"),
    [
        ("3,2,4", "Gather<axis=1>(x, i)", [0, 1]),  # a vector already
        ("n,h,w", "Gather<axis=0>(x, i)", [[0, 1]]),  # two extents behind the axis are unknown
    ],
)
def test_others_stay_as_they_are(shape: str, gather: str, indices: list[object]) -> None:
    text = f"(float[{shape}] x) => (float y) {{ none = SequenceEmpty() y = {gather} }}"  # which reads nothing
    model = model_of(text, named=True, i=np.array(indices))
    before = model.SerializeToString()
    gather_by_vectors(model)
    assert model.SerializeToString() == before


def test_openvino_compiles_windows_of_a_convolution(tmp_path: Path) -> None:
    import openvino

    model = written(
        tmp_path / "m.onnx",
        """(float[n,4,8,8] x) => (float[n,6,2,5,8] y) {
            a = Conv(x, w) b = Gather<axis=2>(a, i) y = Relu(b) }""",
        w=normal(6, 4, 1, 1),
        i=np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]),
    )
    np.savez(tmp_path / "x.npz", x=normal(8, 4, 8, 8))
    artifact = static(model, tmp_path, target="openvino")
    openvino.Core().compile_model(artifact.path, "CPU")


LINEAR = "a = MatMul(x, w) b = Add(a, p) c = Relu(b) d = MatMul(c, v)"
LAYERS = {
    "two Linear layers": (f"{LINEAR} y = Add(q, d)", {"p": (8,), "q": (8,)}, {"QGemm": 2}),
    "one bias for two": (f"{LINEAR} y = Add(d, p)", {"p": (8,)}, {"QGemm": 2}),
    "a bias of two axes": ("a = MatMul(x, w) y = Add(a, p)", {"p": (1, 8)}, {"QGemm": 1}),
    "one number for all": ("a = MatMul(x, w) y = Add(a, p)", {"p": (1,)}, {"QGemm": 1}),
    "a residual": ("a = MatMul(x, w) b = Add(a, x) y = MatMul(b, v)", {}, {"MatMulIntegerToFloat": 2}),
    "a bias of known extents": ("a = MatMul(z, w) y = Add(a, p)", {"p": (8,)}, {"MatMulIntegerToFloat": 1}),
    "a value read twice": ("y = MatMul(x, w) z = Add(y, p)", {"p": (8,)}, {"MatMulIntegerToFloat": 1}),
}


def in_int8(name: str, folder: Path, **options: Any) -> tuple[Path, Artifact]:
    """A model of LAYERS, and what static INT8 makes of it."""
    nodes, biases, _ = LAYERS[name]
    outputs = "float[n,8] y" + (", float[n,8] z" if "z =" in nodes else "")
    shape = "n,8"
    if "(z" in nodes:  # as of a Transformer that was exported with its extents
        nodes, outputs, shape = nodes.replace("(z", "(x"), "float[2,4,8] y", "2,4,8"
    weights = {key: normal(*shape) for key, shape in {"w": (8, 8), "v": (8, 8), **biases}.items()}
    weights = {key: array for key, array in weights.items() if key in nodes}
    model = written(folder / "m.onnx", f"(float[{shape}] x) => ({outputs}) {{ {nodes} }}", **weights)
    np.savez(folder / "x.npz", x=normal(32, *map(int, shape.split(",")[1:])))
    return model, static(model, folder, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_every_product_is_executed_as_an_integer(name: str, tmp_path: Path) -> None:
    model, artifact = in_int8(name, tmp_path)
    proof = artifact.manifest.proof
    assert proof["as_executed"] == {"int8": LAYERS[name][2], "fp16": {}, "bf16": {}, "fp32": {}}
    assert proof["left_in_float"] == {}
    x = normal(2, 4, 8) if "extents" in name else normal(32, 8)
    assert snr_db(run(model, x=x), run(artifact.path, x=x)) > 30
    if name == "two Linear layers":
        tried = {entry["tried"]: entry for entry in proof["search"]}  # type: ignore[attr-defined]
        assert "refused" not in tried["corrected biases"]
        excluded = in_int8(name, tmp_path, exclude=["MatMul_a"])[1]  # which keeps its Add
        operators = {node.name: node.op_type for node in onnx.load(excluded.path).graph.node}
        assert operators["MatMul_a"] == "MatMul"
        assert excluded.manifest.proof["left_in_float"] == {"MatMul_a": "excluded by 'MatMul_a'"}


def test_a_model_with_a_branch_becomes_int8(tmp_path: Path) -> None:
    model = model_of(
        """(float[n,8] x) => (float[n,8] y) {
        h = MatMul(x, w)  mean = ReduceMean <keepdims = 0> (h)  c = Greater(mean, zero)
        z = If (c) <then_branch = one () => (float[n,8] a) { a = Mul(h, mean) },
                    else_branch = two () => (float[n,8] b) { b = Neg(h) }>
        y = MatMul(z, v) }""",
        opset=18, w=normal(8, 8, scale=1), v=normal(8, 8, scale=1, seed=1), zero=np.zeros((), np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=normal(8, 8, scale=1, seed=2))
    onnx.checker.check_model(onnx.load(static(tmp_path / "m.onnx", tmp_path).path))
