"""Legal files that readers mistake are read in plain forms, which compute the same; each verb takes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, parser
from written_models import model_of

import qcompile
from qcompile.errors import ModelError
from qcompile.model.graph.graph import count_operators, infer_shapes, model_io
from qcompile.model.graph.onnx_file import Graph, copy_model, read_graph
from qcompile.model.graph.plain_forms import to_plain_forms
from qcompile.spec.tensors import TensorInfo

CONVOLUTION = "(float[n,3,8,8] x) => (float[n,5] y) <float[4,3,3,3] w, float[4,5] m>"
ON, BEHIND = "c = Conv<pads=[1,1,1,1]>(x, w)", "g = GlobalAveragePool(r) q = Flatten(g) y = MatMul(q, m)"


def network(middle: str = "r = Relu(c)", also: str = "", **options: Any) -> onnx.ModelProto:
    signature = CONVOLUTION.replace("m>", f"m{also}>")
    return model_of(f"{signature} {{ {ON} {middle} {BEHIND} }}", **options)


FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[n,3,8,8] x) => (float[n,5] y) { z = my.block(x, w) v = my.act(z) y = my.head(v, m) }
    <domain: "my", opset_import: ["" : 17, "my" : 1]> block (a, b) => (o) {
        c = Conv<pads=[1,1,1,1]>(a, b) s = ReduceMean<keepdims=0>(c) i = Greater(s, s)
        o = If(i) <then_branch = t () => (t) { t = my.act<slope=0.2>(c) },
                    else_branch = e () => (e) { e = my.act(c) }>
    }
    <domain: "my", opset_import: ["" : 16]> act <slope: float = 0.5> (a) => (o) {
        o = LeakyRelu<alpha: float = @slope>(a)
    }
    <domain: "my", opset_import: ["" : 17, "my" : 1]> head (a, b) => (o) {
        g = GlobalAveragePool(a) q = Flatten(g) c = my.act(q) o = MatMul(c, b)
    }"""


def functions() -> onnx.ModelProto:
    """Functions in functions and in branches, with attributes and their defaults, in another opset."""
    model = parser.parse_model(FUNCTIONS)
    model.graph.initializer.extend(network().graph.initializer)
    return model


def _edited(edit: Callable[[onnx.ModelProto], object], *arguments: Any, **options: Any) -> onnx.ModelProto:
    model = network(*arguments, **options)
    edit(model)
    return model


def _sparse(model: onnx.ModelProto) -> None:
    weights = model.graph.initializer.pop()
    dense = numpy_helper.to_array(weights) * np.array([[1], [0], [1], [0]], np.float32)
    places = np.argwhere(dense).astype(np.int64)
    values = numpy_helper.from_array(dense[tuple(places.T)], weights.name)
    indices = numpy_helper.from_array(places, "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dense.shape))


def _shapeless(value: onnx.ValueInfoProto) -> None:
    value.type.tensor_type.ClearField("shape")


def _of_any_batch(model: onnx.ModelProto) -> None:
    """As paddle2onnx writes a dynamic axis; ONNX Runtime reads it so."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1


LEGAL: dict[str, Callable[[], onnx.ModelProto]] = {
    "functions": functions,
    "an output without a shape": lambda: _edited(lambda model: _shapeless(model.graph.output[0])),
    "an output without a type": lambda: _edited(lambda model: model.graph.output[0].ClearField("type")),
    "an input without a shape": lambda: _edited(lambda model: _shapeless(model.graph.input[0])),
    "groups of opset 18": lambda: _edited(
        lambda model: setattr(model.opset_import[0], "version", 20),
        "r = GroupNormalization<num_groups=2>(c, s, b)", ", float[2] s, float[2] b", opset=21,
    ),
    "a window behind the image": lambda: network(
        "r = MaxPool<kernel_shape=[2,2],strides=[3,3],pads=[1,1,1,1],ceil_mode=1>(c)"
    ),
    "extents returned": lambda: network(
        "r = ConvTranspose<strides=[2,2],output_shape=[15,16]>(c, t)", ", float[4,4,3,3] t"
    ),
    "sparse weights": lambda: _edited(_sparse),
    "a domain imported twice": lambda: _edited(
        lambda model: model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    ),
    "a result left out": lambda: _edited(
        lambda model: model.graph.node[1].output.append(""), "r = Dropout(c)"
    ),
    "an extent of -1": lambda: _edited(_of_any_batch),
    "no name": lambda: _edited(lambda model: model.graph.ClearField("name")),
    "a note without a type": lambda: _edited(lambda model: model.graph.value_info.add(name="c")),
}  # fmt: skip


def _run(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


@pytest.mark.parametrize("name", LEGAL)
def test_a_plain_form_computes_the_same_and_the_checker_takes_it(name: str, tmp_path: Path) -> None:
    path, x = tmp_path / "m.onnx", np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    model = LEGAL[name]()
    onnx.save(model, path)
    graph = read_graph(path)
    graph.check()
    assert not graph.model.functions
    [output] = graph.io.outputs
    assert (output.dtype, len(output.shape), output.shape[1]) == ("float32", 2, 5)
    assert name != "an extent of -1" or graph.io.inputs[0].dynamic_axes == {0: "?"}
    np.testing.assert_allclose(_run(graph.load(), x), _run(model, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "functions", "an output without a shape", "an input without a shape", "groups of opset 18",
        "a window behind the image", "sparse weights", "a domain imported twice", "an extent of -1",
    ],
)  # fmt: skip
def test_each_verb_takes_a_legal_file(name: str, tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "x.npy"
    onnx.save(LEGAL[name](), path)
    np.save(data, np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32))
    qcompile.simplify(path, tmp_path / "s.onnx")
    ranges = qcompile.calibrate(path, str(data), tmp_path / "m.ranges").path
    int8 = qcompile.quantize(path, tmp_path / "q.onnx", ranges=ranges, allow_loss=True).path
    half = qcompile.quantize(path, tmp_path / "h.onnx", precision="fp16").path
    copied = qcompile.export(str(path), tmp_path / "e.onnx").path
    for made in (int8, half, copied):
        read_graph(Path(made)).check()
    assert qcompile.diff(str(path), str(copied), data=str(data))
    for target in ("onnxruntime", "openvino"):
        built = qcompile.build(path, tmp_path / f"{target}.onnx", target=target).path
        assert qcompile.diff(str(path), str(built), data=str(data))


def test_a_function_keeps_the_names_around_its_calls_and_brings_its_domains() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["my" : 1]> g (float[n,4] x) => (float[n,4] y) {
            m__1 = my.gelu(x) z = my.gelu(m__1) y = my.gelu(z) }
        <domain: "my", opset_import: ["" : 17, "com.microsoft" : 1]> gelu (a) => (o) {
            m = Neg(a) o = com.microsoft.FastGelu(m) }"""
    )
    plain, x = copy_model(model), np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    assert to_plain_forms(plain)
    made = [name for node in plain.graph.node for name in node.output]
    assert len(made) == len({*made}) == 6
    assert {item.domain for item in plain.opset_import} == {"", "my", "com.microsoft"}
    np.testing.assert_array_equal(_run(plain, x), _run(model, x))


def test_functions_that_call_each_other_are_refused(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[n] x) => (float[n] y) { y = my.a(x) }
        <domain: "my", opset_import: ["" : 17, "my" : 1]> a (i) => (o) { o = my.b(i) }
        <domain: "my", opset_import: ["" : 17, "my" : 1]> b (i) => (o) { o = my.a(i) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"Cycle|recursi"):
        read_graph(tmp_path / "m.onnx")


def test_a_model_of_another_domain_alone_is_read_and_has_nothing_to_quantize(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]> g (float[n,2] x) => (float[n,2] y) {
            y = ai.onnx.ml.Scaler<offset=[0.0,0.0], scale=[2.0,2.0]>(x) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    qcompile.build(tmp_path / "m.onnx", tmp_path / "b.onnx", target="onnxruntime")
    with pytest.raises(qcompile.QCompileError, match="nothing to quantize"):
        qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", mode="dynamic")


def test_an_output_of_a_rank_that_values_decide_stays_without_a_shape(tmp_path: Path) -> None:
    model = model_of("(float[n,4] x, int64[k] s) => (float[n,4] y) { y = Reshape(x, s) }")
    _shapeless(model.graph.output[0])
    onnx.save(model, tmp_path / "m.onnx")
    graph = read_graph(tmp_path / "m.onnx")
    graph.check()
    assert not graph.model.graph.output[0].type.tensor_type.HasField("shape")


def test_a_declaration_that_repeats_the_wrong_shape_is_corrected_and_another_refused(tmp_path: Path) -> None:
    body = "y = MaxPool<kernel_shape=[2,2],strides=[3,3],pads=[1,1,1,1],ceil_mode=1>(x)"
    for extents, right in (("3,4", True), ("2,3", True), ("9,9", False)):
        model = parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> '
            f"g (float[1,4,5,8] x) => (float[1,4,{extents}] y) {{ {body} }}"
        )
        onnx.save(model, tmp_path / "m.onnx")
        graph = read_graph(tmp_path / "m.onnx")
        if right:
            graph.check()
            assert graph.io.outputs == (TensorInfo("y", "float32", (1, 4, 2, 3)),)
        else:
            with pytest.raises(ModelError, match="differ in dimension"):
                graph.check()


def test_readers_agree_on_the_windows_of_a_pool() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    for operator in ("MaxPool", "AveragePool"):
        model = model_of(
            f"(float[1,4,5,8] x) => (float[a,b,c,d] y) {{ y = {operator}"
            "<kernel_shape=[2,2],strides=[3,3],pads=[1,1,1,1],ceil_mode=1>(x) }"
        )
        assert to_plain_forms(model)
        content = model.SerializeToString()
        network = trt.Builder(logger := trt.Logger(trt.Logger.INTERNAL_ERROR)).create_network(0)
        assert trt.OnnxParser(network, logger).parse(content)
        assert tuple(network.get_output(0).shape) == (1, 4, 2, 3)
        read = openvino.Core().read_model(content)
        assert read.outputs[0].partial_shape.to_shape() == [1, 4, 2, 3]
        assert infer_shapes(model)["y"] == (1, 4, 2, 3)


def test_an_exported_pool_is_in_the_form_that_all_readers_read_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Conv2d(3, 4, 1), torch.nn.MaxPool2d(2, 3, padding=1, ceil_mode=True)]
    qcompile.export(torch.nn.Sequential(*layers).eval(), tmp_path / "m.onnx", inputs=["x:1x3x5x8"])
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model_io(model).outputs[0].shape == (1, 4, 2, 3)
    assert read_graph(tmp_path / "m.onnx").is_file


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_plain_pads_return_the_extents_and_values_of_onnx_runtime(data: st.DataObject) -> None:
    def drawn(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=2, max_size=2))

    kernel, strides, extents = drawn(1, 4), drawn(1, 4), drawn(1, 9)
    options: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    operator = data.draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool", "ConvTranspose"]))
    if operator == "ConvTranspose":
        options |= {"output_shape": drawn(2, 14), "output_padding": drawn(0, 1)}
        options |= data.draw(st.sampled_from([{}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}]))
    else:
        pads = [data.draw(st.integers(0, size - 1)) for size in kernel * 2]
        options |= {"ceil_mode": 1, "pads": pads}
    node = helper.make_node(operator, ["x", "w"][: 1 + (operator == "ConvTranspose")], ["y"], **options)
    weights = np.random.default_rng(0).standard_normal((2, 3, *kernel)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((1, 2, *extents)).astype(np.float32)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    _shapeless(model.graph.output[0])
    try:
        [expected] = _run(model, x)
    except Exception:  # pads as wide as the kernel, or no window at all
        return
    if not expected.size:
        return
    plain = copy_model(model)
    to_plain_forms(plain)
    [found] = _run(plain, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    Graph(plain, Path("m.onnx")).check()
    assert infer_shapes(plain)["y"] == expected.shape or count_operators(plain) == {"AveragePool": 1}
