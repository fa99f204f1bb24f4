"""Fewer nodes and the same model; whatever onnxsim breaks, the model is left as it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.simplify.simplify import pool_globally, simplify, simplify_attention
from qcompile.errors import DataError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.input_notes import KEY, InputNote, read_notes, write_notes
from qcompile.model.graph.onnx_file import Graph, copy_model, read_graph

STAGE = import_module("qcompile.compiler.simplify.simplify")

FOLDABLE = """
<ir_version: 8, opset_import: ["" : 17]>
foldable (float[batch,4,length] x, int64[1] shift) => (float[batch,4,length] y, float[batch,4,length] z)
<float[4] scale = {1,2,3,4}, float[4] bias = {0,0.5,1,-1}, float[4] mean = {0,0,1,0},
 float[4] var = {1,1,2,1}, float two = {2}, float three = {3}>
{
    copy = Identity(x)  five = Add(two, three)  scaled = Mul(copy, five)
    normal = BatchNormalization(scaled, scale, bias, mean, var)  y = Relu(normal)
    float_shift = Cast<to = 1>(shift)  z = Add(normal, float_shift)
}
"""


@pytest.fixture
def foldable(tmp_path: Path) -> Path:
    """A model with an Identity and an Add of constants to fold, two inputs, two dynamic axes."""
    model = parser.parse_model(FOLDABLE)
    onnx.checker.check_model(model)
    path = tmp_path / "foldable.onnx"
    onnx.save(model, path)
    return path


def changed_weight(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with one weight of another value: a simplifier that breaks the model."""
    copy = copy_model(model)
    values = numpy_helper.to_array(copy.graph.initializer[0]).copy()
    values.flat[0] += 1
    copy.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, copy.graph.initializer[0].name))
    return copy


def without_last_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which an input became a constant."""
    copy = copy_model(model)
    name = copy.graph.input[-1].name
    del copy.graph.input[-1]
    copy.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), name))
    return copy


def fixed_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that computes for one sample only, although it still declares a dynamic batch."""
    copy = copy_model(model)
    first = copy.graph.node[0]
    cut = onnx.helper.make_node("Slice", [first.input[0], "from", "to", "axis"], ["cut"], "cut")
    for name, value in (("from", 0), ("to", 1), ("axis", 0)):
        copy.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    first.input[0] = "cut"
    copy.graph.node.insert(0, cut)
    return copy


def failing(_: onnx.ModelProto) -> onnx.ModelProto:
    raise RuntimeError("no such shape\nand a long trace")


def test_nodes_go_and_names_dynamic_axes_and_outputs_stay(foldable: Path, tmp_path: Path) -> None:
    artifact = simplify(foldable, tmp_path / "out.onnx")
    assert (
        model_io(read_graph(artifact.path).load())
        == model_io(read_graph(foldable).load())
        == artifact.manifest.io
    )
    assert artifact.manifest.proof["nodes_before"] == 7
    assert artifact.manifest.proof["nodes_after"] == len(read_graph(artifact.path).load().graph.node) < 7
    assert artifact.manifest.proof["removed"]["Identity"] == 1  # type: ignore[index]
    assert artifact.manifest.warnings == ()
    assert all(check.passed for check in artifact.manifest.checks)
    for batch, length in ((1, 1), (5, 9)):
        x = np.random.default_rng(0).standard_normal((batch, 4, length)).astype(np.float32)
        feeds = {"x": x, "shift": np.array([2], np.int64)}
        for expected, found in zip(
            outputs_of(foldable, feeds), outputs_of(artifact.path, feeds), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_a_model_with_nothing_to_simplify_is_unchanged(
    name: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    artifact = simplify(tiny_file(name), tmp_path / "out.onnx")
    assert artifact.manifest.proof["removed"] == {}
    assert artifact.manifest.warnings == ()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (changed_weight, "same outputs as before"),
        (without_last_input, "input 'shift' was lost"),
        (fixed_batch, "same outputs as before"),
        (failing, "onnxsim failed (RuntimeError: no such shape); the model"),
    ],
)
def test_a_simplifier_that_changes_the_model_leaves_it_as_it_was_with_a_warning(
    broken: Callable[[onnx.ModelProto], onnx.ModelProto],
    said: str,
    foldable: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(STAGE, "_run_onnxsim", lambda model, *_: broken(model))
    artifact = simplify(foldable, tmp_path / "out.onnx")
    (warning,) = artifact.manifest.warnings
    assert said in warning
    assert warning.endswith("the model was left as it is")
    assert read_graph(artifact.path).load() == read_graph(foldable).load()
    assert artifact.manifest.proof["removed"] == {}


def test_the_outputs_are_compared_on_the_data_which_must_fit(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    artifact = simplify(tiny_file("mlp"), tmp_path / "out.onnx", data=str(samples("mlp", 16)))
    (check,) = (check for check in artifact.manifest.checks if check.name == "same outputs as before")
    assert check.detail.startswith("2 inputs")
    with pytest.raises(DataError, match=r"'x' has shape 8x16; \[batch,4,8,8\] is required"):
        simplify(tiny_file("residual"), tmp_path / "out" / "m.onnx", data=str(samples("mlp")))
    assert not (tmp_path / "out").exists()


class Attention(torch.nn.Module):
    """As MobileViT and ViT write it: three projections, a softmax and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(part: torch.Tensor) -> torch.Tensor:
            return part.view(x.shape[0], 5, 4, 4).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        weights = (query @ key.transpose(-1, -2) / 2.0).softmax(-1)
        return (weights @ value).transpose(1, 2).reshape(x.shape[0], 5, 16)


def test_a_simplified_file_holds_operators_of_onnx_alone_and_keeps_its_notes(tmp_path: Path) -> None:
    import onnxsim

    path = tmp_path / "attention.onnx"
    qcompile.export(Attention().eval(), path, inputs=["x:[batch,5,16]"])
    model = read_graph(path).load()
    write_notes(model, {"x": InputNote((2, 5, 16))})
    onnx.save(model, path)
    fused, _ = onnxsim.simplify(model)
    assert "com.microsoft" in {node.domain for node in fused.graph.node}  # what it would write by itself
    simplified = simplify(path, tmp_path / "simple.onnx")
    assert not simplified.manifest.warnings
    after = read_graph(simplified.path).load()
    assert {node.domain for node in after.graph.node} <= {"", "ai.onnx"}
    assert [entry.key for entry in after.metadata_props] == [KEY]
    assert read_notes(after) == {"x": InputNote((2, 5, 16))}


SCORES = "(float[b,4,6] x, bool[b,1,4,4] m) => (float[b,2,4,3] y)"
ATTENTION = """
    q0 = MatMul(x, wq)  q1 = Add(q0, bq)  q2 = Reshape(q1, heads)  q = Transpose <perm = [0,2,1,3]> (q2)
    k0 = MatMul(x, wk)  k1 = Reshape(k0, heads)  k2 = Transpose <perm = [0,2,1,3]> (k1)
    k3 = Reshape(k2, flat)  k4 = Transpose <perm = [0,2,1]> (k3)  k = Reshape(k4, back)
    v0 = MatMul(x, wv)  v1 = Reshape(v0, heads)  v = Transpose <perm = [0,2,1,3]> (v1)
    qs = Mul(q, c)  ks = Mul(k, c)
    s0 = MatMul(qs, ks)  mask = Where(m, zero, lowest)  s = Add(s0, mask)
    p = Softmax <axis = -1> (s)  nan = IsNaN(p)  clean = Where(nan, zero, p)  y = MatMul(clean, v)
"""
CONSTANTS: dict[str, NDArray[Any]] = {
    "heads": np.array([-1, 4, 2, 3]),
    "flat": np.array([-1, 4, 3]),
    "back": np.array([-1, 2, 3, 4]),
    "c": np.float32(0.7),
    "zero": np.float32(0),
    "lowest": np.float32(-3.4028235e38),
}
ALL = {"guard dropped": 1, "transpositions merged": 1, "scale folded into weights": 2}


def make(body: str = ATTENTION, signature: str = SCORES, **changed: Any) -> onnx.ModelProto:
    """A model of ONNX's text form with random weights wq, wk, wv, bq and the constants."""
    generator = np.random.default_rng(0)
    weights = {n: generator.standard_normal((6, 6)).astype(np.float32) for n in ("wq", "wk", "wv")}
    weights["bq"] = generator.standard_normal(6).astype(np.float32)
    arrays = {**CONSTANTS, **weights, **changed}
    read = {name: np.asarray(array) for name, array in arrays.items() if re.search(rf"\b{name}\b", body)}
    return model_of(f"{signature} {{ {body} }}", **read)


def attended_by(model: onnx.ModelProto, batch: int = 2) -> list[NDArray[Any]]:
    """The outputs on fixed input, whose last sample is masked as a whole."""
    generator = np.random.default_rng(1)
    mask = generator.random((batch, 1, 4, 4)) < 0.7
    mask[-1] = False
    feeds = {"x": generator.standard_normal((batch, 4, 6)).astype(np.float32), "m": mask}
    feeds["given"] = generator.standard_normal((batch, 1, 4, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in feeds.items() if name in wanted}))


def test_attention_over_one_token_stays_attention_which_tensorrt_builds(tmp_path: Path) -> None:
    """onnxsim would write its scores as Shape and ConstantOfShape: TensorRT-RTX 1.7.1 fails on these."""
    pytest.importorskip("tensorrt_rtx")
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[n,96] x) => (float[n,4,1,24] y)
        <int64[5] heads = {-1,1,3,4,24}, int64[3] flat = {-1,1,24}, int64[4] turned = {-1,4,24,1},
         int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            g1 = Gemm (x, w, b) r = Reshape (g1, heads) t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
            q5 = Slice (t, zero, one, zero) q = Squeeze (q5, zero)
            k5 = Slice (t, one, two, zero) v5 = Slice (t, two, three, zero) v = Squeeze (v5, zero)
            k3 = Reshape (k5, flat) kt = Transpose <perm = [0, 2, 1]> (k3) k = Reshape (kt, turned)
            s = MatMul (q, k) p = Softmax <axis = -1> (s) y = MatMul (p, v) }"""
    )
    for name, shape in (("w", (96, 288)), ("b", (288,))):
        values = 0.1 * rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "m.onnx")
    simple = qcompile.simplify(tmp_path / "m.onnx", tmp_path / "s.onnx").path
    assert "Softmax" in {node.op_type for node in onnx.load(simple).graph.node}
    built = qcompile.build(
        simple, tmp_path / "m.engine", target="tensorrt-rtx", precision="fp16", gpus=["sm86"],
        min_shapes=["x:1x96"], opt_shapes=["x:8x96"], max_shapes=["x:8x96"],
    )  # fmt: skip
    assert built.path.is_file()


def test_all_three_go_and_the_outputs_stay_also_where_a_row_is_masked_as_a_whole() -> None:
    model = make()
    before = attended_by(model)
    assert simplify_attention(Graph(model, Path("m.onnx"))) == ALL
    onnx.checker.check_model(model, full_check=True)
    assert Counter(node.op_type for node in model.graph.node) == {
        "MatMul": 5, "Add": 2, "Reshape": 3, "Transpose": 3, "Where": 1, "Softmax": 1,
    }  # fmt: skip
    np.testing.assert_allclose(attended_by(model)[0], before[0], rtol=1e-5, atol=1e-6)
    assert simplify_attention(Graph(model, Path("m.onnx"))) == {}


GIVEN = SCORES.replace("bool[b,1,4,4] m", "bool[b,1,4,4] m, float[b,1,4,4] given")
TURNED = "(float[b,4,6] x, bool[b,1,4,4] m) => (float[b,h,s,d] y)"
MERGED, DROPPED, FOLDED = "transpositions merged", "guard dropped", "scale folded into weights"


@pytest.mark.parametrize(
    ("stays", "old", "new", "signature", "stored"),
    [
        (DROPPED, "", "", SCORES, {"lowest": np.float32(-np.inf)}),  # of a row that is masked as a whole
        (DROPPED, "s = Add(s0, mask)", "s = Add(s0, given)", GIVEN, {}),
        (DROPPED, "s = Add(s0, mask)", "l = Log(s0) s = Add(l, mask)", GIVEN, {}),
        (DROPPED, "s = Add(s0, mask)", "s = Div(s0, given)", GIVEN, {}),
        (DROPPED, "", "", SCORES, {"zero": np.float32(0.5)}),  # it puts in something else
        (MERGED, "perm = [0,2,1]>", "perm = [0,1,2]>", TURNED, {"flat": np.array([-1, 3, 4])}),
        (MERGED, "k2 = Transpose <perm = [0,2,1,3]>", "k2 = Transpose <perm = [0,1,2,3]>", TURNED, {}),
        (FOLDED, "MatMul(x, wk)", "MatMul(x, wq)", SCORES, {}),  # a weight that two products share
        (FOLDED, "ks = Mul(k, c)", "ks = Mul(k, column)", SCORES,
         {"c": np.float32([0.5, 1, 2]), "column": np.float32([[1], [2], [3]])}),
    ],
)  # fmt: skip
def test_what_would_change_the_outputs_stays(
    stays: str, old: str, new: str, signature: str, stored: dict[str, Any]
) -> None:
    model = make(ATTENTION.replace(old, new) if old else ATTENTION, signature, **stored)
    before = attended_by(model)
    assert stays not in simplify_attention(Graph(model, Path("m.onnx")))
    np.testing.assert_allclose(attended_by(model)[0], before[0], rtol=1e-5, atol=1e-6)


def test_a_factor_that_adds_axes_stays() -> None:
    """Without it the output had another shape, so that nothing of the model was simplified."""
    body = "h = MatMul(x, wq) s = Mul(h, wide) y = Abs(s)"
    model = make(body, "(float[b,4,6] x) => (float[1,b,4,6] y)", wide=np.full((1, 1, 1, 1), 2, np.float32))
    assert simplify_attention(Graph(model, Path("m.onnx"))) == {}


def test_what_is_an_output_of_the_model_keeps_its_value() -> None:
    for inside in ("q", "q1", "qs", "k4", "p"):
        model = make()
        model.graph.output.append(onnx.helper.make_tensor_value_info(inside, onnx.TensorProto.FLOAT, None))
        before = attended_by(model)
        simplify_attention(Graph(model, Path("m.onnx")))
        for found, expected in zip(attended_by(model), before, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attributes", "shape", "becomes_global"),
    [
        ("AveragePool", "kernel_shape = [7, 5]", "n,2,7,5", True),
        ("AveragePool", "kernel_shape = [64, 64], strides = [64, 64], ceil_mode = 1", "n,2,7,5", True),
        ("AveragePool", "kernel_shape = [7, 5], pads = [0, 0, 0, 0], count_include_pad = 1", "n,2,7,5", True),
        ("MaxPool", "kernel_shape = [7, 5]", "n,2,7,5", True),
        ("AveragePool", "kernel_shape = [7, 4]", "n,2,7,5", False),
        ("AveragePool", "kernel_shape = [7, 5], pads = [1, 1, 1, 1]", "n,2,7,5", False),
        ("AveragePool", "kernel_shape = [7, 5]", "n,2,h,w", False),
    ],
)
def test_a_window_over_the_whole_image_is_global_and_any_other_stays(
    operator: str, attributes: str, shape: str, becomes_global: bool
) -> None:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 19]> g (float[{shape}] x) => (float[n,2,p,q] y) '
        f"{{ y = {operator} <{attributes}> (x) }}"
    )
    x = np.random.default_rng(0).standard_normal((3, 2, 7, 5)).astype(np.float32)
    expected = outputs_of(model, x)[0]
    assert pool_globally(Graph(model, Path("m.onnx"))) == becomes_global
    assert model.graph.node[0].op_type == ("Global" if becomes_global else "") + operator
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(outputs_of(model, x)[0], expected, rtol=1e-6, atol=1e-6)
