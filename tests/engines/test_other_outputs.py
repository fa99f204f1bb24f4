"""Outputs that cannot be compared element by element: of another shape, or chosen by values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mode_models import written
from onnx import helper, parser
from written_models import model_of, normal
from wrong_kernels import check_of, optimize_wrongly

import qcompile
from qcompile.errors import IntentNotReached

POOLED = """(float[b,3,5,8] x) => (float[b,4,p,q] y, float[b,4] z) <float[4,3,1,1] w> {{
    a = Conv (x, w) {pooled} g = GlobalAveragePool (a) z = Flatten (g) }}"""


def pooling(path: Path, pooled: str) -> Path:
    return written(path, POOLED.format(pooled=pooled), w=normal(4, 3, 1, 1))


def test_a_window_that_begins_in_the_padding_is_dropped_by_every_runtime(tmp_path: Path) -> None:
    """OpenVINO 2026.4 keeps it, ONNX and PyTorch do not: the pool is written with the pads that it has."""
    pytest.importorskip("openvino")
    pooled = "y = MaxPool<kernel_shape=[2,2], strides=[3,3], pads=[1,1,1,1], ceil_mode=1> (a)"
    model, data = pooling(tmp_path / "m.onnx", pooled), tmp_path / "x.npy"
    np.save(data, normal(16, 3, 5, 8))
    built = qcompile.build(model, tmp_path / "o.onnx", target="openvino", data=str(data))
    with qcompile.load(built.path) as runner:
        assert runner.infer({"x": normal(2, 3, 5, 8)})["y"].shape == (2, 4, 2, 3)


@pytest.mark.parametrize("to", [7, 11], ids=["int64", "float64"])
def test_an_output_of_another_type_fails_the_build(
    to: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cast(model: onnx.ModelProto) -> None:
        if len(model.graph.output) < 2:  # a prefix
            return
        model.graph.node[-1].output[0] = "plain"
        model.graph.node.append(helper.make_node("Cast", ["plain"], ["z"], to=to))
        model.graph.output[1].type.tensor_type.elem_type = to

    optimize_wrongly(monkeypatch, cast)
    model = pooling(tmp_path / "m.onnx", "y = Relu (a)")
    found = {7: "int64", 11: "float64"}[to]
    with pytest.raises(IntentNotReached, match=f"output 'z' is {found} where its graph gives float32"):
        qcompile.build(model, tmp_path / "o.onnx", target="onnxruntime")


RANGE = """(float[n] x) => (float[m] y, float[n] z)
    <float offset = {4}, float start = {0}, float one = {1}> {
        s = ReduceSum <keepdims = 0> (x) t = Add (s, offset) y = Range (start, t, one) z = Relu (x) }"""


def change_offset(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "offset":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(7), "offset"))


def test_extents_that_depend_on_values_are_not_compared_and_said_by_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimize_wrongly(monkeypatch, change_offset)
    model = written(tmp_path / "m.onnx", RANGE)
    np.savez(tmp_path / "x.npz", x=np.full(16, 0.2, np.float32))
    built = qcompile.build(model, tmp_path / "o.onnx", target="onnxruntime", data=str(tmp_path / "x.npz"))
    check = check_of(built)
    assert check.passed
    assert check.detail.startswith("output 'z': equal to its graph; ")
    assert check.detail.endswith("; output 'y' is not compared: its extents depend on values (Range)")


def test_extents_that_depend_on_extents_alone_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RANGE.replace(
        "s = ReduceSum <keepdims = 0> (x)", "e = Shape (x) c = Cast <to = 1> (e) s = Squeeze (c)"
    )
    optimize_wrongly(monkeypatch, change_offset)
    with pytest.raises(IntentNotReached, match=r"output 'y' is \d+ where its graph gives \d+"):
        qcompile.build(written(tmp_path / "m.onnx", text), tmp_path / "o.onnx", target="onnxruntime")


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("declared", "words"), [((1, 4), "1x4"), (("b", "b"), r"\[b,b\]")])
def test_an_output_of_other_extents_than_declared_fails_the_build(
    declared: tuple[int | str, ...], words: str, target: str, tmp_path: Path
) -> None:
    pytest.importorskip(target)
    body = "a = Conv (x, w) m = MaxPool <kernel_shape = [4,4]> (a) y = Flatten (m)"
    model = model_of(f"(float[b,3,4,4] x) => (float[b,4] y) {{ {body} }}", w=normal(4, 3, 1, 1))
    for dim, extent in zip(model.graph.output[0].type.tensor_type.shape.dim, declared, strict=True):
        setattr(dim, "dim_value" if isinstance(extent, int) else "dim_param", extent)
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", normal(16, 3, 4, 4))
    data = str(tmp_path / "x.npy")
    with pytest.raises(IntentNotReached, match=f"output 'y' is 8x4 where the file declares {words}"):
        qcompile.build(tmp_path / "m.onnx", tmp_path / "o.onnx", target=target, data=data)


@pytest.mark.parametrize("samples", [2, 20])
def test_numbers_beside_samples_are_such_as_the_samples_have(samples: int, tmp_path: Path) -> None:
    """A loop that runs n times; of no turn the maximum is that of nothing, which no sample shows."""
    pytest.importorskip("openvino")
    body = parser.parse_graph(
        "body (int64 i, bool c, float[4] s) => (bool c2, float[4] s2, float[4] o)"
        " { c2 = Identity(c) s2 = Add(s, x) o = Identity(s2) }"
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body),
        helper.make_node("ReduceMax", ["all"], ["y"], axes=[0], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("n", 7, [])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, [4])])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        tmp_path / "m.onnx",
    )
    (tmp_path / "d.py").write_text(
        "import numpy as np\ndef data():\n"
        f"    for i in range({samples}): yield {{'x': np.full(4, i + 1.0, 'f4'), 'n': np.array(3)}}\n"
    )
    data = f"{tmp_path / 'd.py'}:data"
    assert check_of(
        qcompile.build(tmp_path / "m.onnx", tmp_path / "o.onnx", target="openvino", data=data)
    ).passed


def test_lengths_of_an_axis_of_another_input_have_its_extent(tmp_path: Path) -> None:
    body = """(float[time,batch,8] x, int32[batch] lengths) => (float[2,batch,4] h)
        <float[2,12,8] W, float[2,12,4] R> {
        o, h = GRU<hidden_size=4, direction="bidirectional"> (x, W, R, , lengths) }"""
    model = written(tmp_path / "m.onnx", body, opset=14, W=normal(2, 12, 8), R=normal(2, 12, 4))
    simplified = qcompile.simplify(model, tmp_path / "s.onnx")
    assert all(check.passed for check in simplified.manifest.checks)
