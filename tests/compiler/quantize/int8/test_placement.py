"""Which nodes are quantized for which target, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from written_models import model_of

import qcompile
from qcompile.compiler.quantize.calibrate import tensors_to_calibrate
from qcompile.compiler.quantize.int8.placement import place_nodes
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.errors import CalibrationError, InvalidOption
from qcompile.model.graph.onnx_file import read_weightless
from qcompile.model.outputs.judgement import output_error
from qcompile.spec.words import GRAPH_TARGETS, GraphTarget

ADDS = """(float[n,2,4,4] x) => (float[n,2,4,4] y)
<float[2,2,1,1] w = {1,2,3,4}, float[1] one = {1}, float[2] scale = {1,1}, float[2] zero = {0,0}>
{
    [conv] a = Conv(x, w)  [norm] b = BatchNormalization(a, scale, zero, zero, scale)
    [relu] c = Relu(b)  [closing] d = Add(x, c)  [constant] e = Add(d, one)  [plain] f = Add(e, x)
    [product] g = Mul(f, e)  [softmax] y = Softmax(g)
}
"""

OUTSIDE = ADDS.replace("(float[n,2,4,4] x)", "(float[n,2,4,4] x, float[2,2,1,1] k)").replace("x, w", "x, k")

ANGLES = """(float[n,t,2] x) => (float[n,t,2] y)
<int64 zero = {0}, int64 one = {1}, int64[1] last = {1}, float[1,2] steps = {1, 0.1},
 float[2,2] w = {1,2,3,4}>
{
    s = Shape(x)  t = Gather(s, one)  r = Range(zero, t, one)  p = Cast <to = 1> (r)  c = Unsqueeze(p, last)
    [angles] a = MatMul(c, steps)  e = Cos(a)  [layer] h = MatMul(x, w)  y = Mul(h, e)
}
"""

WEIGHTS = """(float[n,2] x, float[2,2] outside) => (float[n,2] y, float[2,2] z)
<float[2,2] w = {1,2,3,4}, float[4] flat = {1,2,3,4}, int64[2] shape = {2,2}>
{
    [stored] a = MatMul(x, w)  [given] b = MatMul(a, outside)  folded = Reshape(flat, shape)
    [made] y = MatMul(b, folded)  [constant] z = MatMul(w, w)
}
"""

OTHER_TYPES = """(float[2,2] x) => (double[2,2] y, double[2,2] t, int32[2,2] z)
<float[2,2] w = {1,2,3,4}, double[2,2] v = {1,2,3,4}, int32[2,2] u = {1,2,3,4}>
{
    [layer] h = MatMul(x, w)  d = Cast <to = 11> (h)  i = Cast <to = 6> (h)
    [double] y = MatMul(d, v)  [square] t = MatMul(d, d)  [whole] z = MatMul(i, u)
}
"""

DECONVOLUTION = """(float[n,2,4,4] x) => (float[n,2,4,4] y)
<float[2,2,1,1] w = {1,2,3,4}>
{
    [conv] a = Conv(x, w)  [deconv] y = ConvTranspose(a, w)
}
"""


def read(text: str) -> onnx.ModelProto:
    """A prepared model from ONNX's text form."""
    return prepare_graph(model_of(text))


@pytest.fixture
def residual(tiny: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """The tiny residual model, prepared."""
    return prepare_graph(tiny("residual"))


def test_a_target_quantizes_what_computes_and_what_it_keeps_in_integers_between(
    residual: onnx.ModelProto,
) -> None:
    assert place_nodes(residual, "tensorrt").nodes == ("conv1", "conv2", "add", "gemm")  # the residual's Add
    assert place_nodes(read(ADDS), "tensorrt").nodes == ("conv", "closing")  # no other
    placement = place_nodes(residual, "onnxruntime")
    assert placement.nodes == tuple(node.name for node in residual.graph.node)
    assert placement.left_in_float == {}
    with pytest.raises(InvalidOption, match="'tpu' is unknown; known are onnxruntime, openvino, tensorrt"):
        place_nodes(residual, "tpu")  # type: ignore[arg-type]
    residual.graph.node[0].domain = "com.example"
    assert "conv1" not in place_nodes(residual, "onnxruntime").nodes


@pytest.mark.parametrize(
    ("text", "target", "planned", "left"),
    [
        (WEIGHTS, "onnxruntime", {"stored"}, {"made", "constant", "given"}),
        (WEIGHTS, "openvino", {"stored", "given"}, {"made", "constant"}),
        (WEIGHTS, "tensorrt", {"stored", "given"}, {"made", "constant"}),
        *((OTHER_TYPES, target, {"layer"}, {"double", "square", "whole"}) for target in GRAPH_TARGETS),
        *((ANGLES, target, {"layer"}, {"angles"}) for target in GRAPH_TARGETS),
        (OUTSIDE, "onnxruntime", set(), {"conv"}),
        (DECONVOLUTION, "onnxruntime", {"conv"}, {"deconv"}),
        (DECONVOLUTION, "tensorrt", {"deconv"}, {"conv"}),
    ],
)
def test_what_computes_is_planned_or_left_in_float_with_the_reason(
    text: str, target: GraphTarget, planned: set[str], left: set[str]
) -> None:
    placement = place_nodes(read(text), target)
    assert planned <= set(placement.nodes)
    assert placement.left_in_float.keys() == left
    assert all(placement.left_in_float.values())
    if text == WEIGHTS:
        assert placement.left_in_float["constant"] == "all its inputs are constant"
    if text == ANGLES:
        assert "it reads only positions" in placement.left_in_float["angles"]
    if text == OTHER_TYPES:
        assert placement.left_in_float["whole"] == "it multiplies int32; float32 is required"
    if text == OUTSIDE:
        assert placement.left_in_float["conv"] == "its weight is computed at run time"


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("conv1", {"conv1"}),
        ("conv?", {"conv1", "conv2"}),
        ("Conv", {"conv1", "conv2"}),
        ("*", {"conv1", "conv2", "gemm"}),
        ("/head/*", {"/head/0/Conv"}),
    ],
)
def test_names_globs_and_types_exclude_nodes_and_are_the_reason(
    pattern: str, gone: set[str], residual: onnx.ModelProto
) -> None:
    if pattern.startswith("/"):  # paths of modules
        residual.graph.node[0].name, residual.graph.node[2].name = "/head/0/Conv", "/Head/1/Conv"
    placement = place_nodes(residual, "tensorrt", exclude=[pattern])
    assert placement.left_in_float == dict.fromkeys(gone, f"excluded by {pattern!r}")
    assert not gone & set(placement.nodes)


def test_a_pattern_that_matches_nothing_is_an_error(residual: onnx.ModelProto) -> None:
    for pattern in ("conv9", "Convolution", "/head/*"):
        with pytest.raises(InvalidOption, match="no node of that name, glob or operator type") as caught:
            place_nodes(residual, "onnxruntime", exclude=["Gemm", pattern])
        assert repr(pattern) in caught.value.message
        assert caught.value.data["option"] == "exclude"


BRANCHES = """(float[n,2,4,4] x) => (float[n,2,4,4] y, float[n,2,4,4] z)
<float[2,2,1,1] w = {1,2,3,4}, float[1] one = {1}>
{
    [left] a = Conv(x, w)  [right] b = Conv(x, w)  [both] c = Add(a, b)
    [pool] d = MaxPool <kernel_shape = [1,1]> (c)  [joined] e = Concat <axis = 1> (d, a)
    [float] f = Sigmoid(x)  [one_side] g = Mul(a, f)  [constant] h = Add(a, one)
    [softmax] i = Softmax(b)  [behind] y = Add(i, i)  z = Add(g, h)
}
"""


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_what_lies_between_is_quantized_where_integer_kernels_made_all_that_it_reads(
    target: GraphTarget,
) -> None:
    model = model_of(BRANCHES)
    between = ("both", "pool", "joined") if target == "onnxruntime" else ()  # nobody needs its integers
    assert place_nodes(prepare_graph(model), target).nodes == ("left", "right", *between)
    model.graph.node.append(onnx.helper.make_node("Conv", ["e", "v"], ["last"], "behind it"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4, 1, 1), "f4"), "v"))
    more = ("left", "right", "both", "pool", "joined", "behind it")
    assert place_nodes(prepare_graph(model), target).nodes == more


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_an_activation_stays_in_float_where_what_it_reads_is_read_elsewhere(activation: str) -> None:
    """The runtime folds it into the convolution, whose own value would be gone for the other reader."""
    model = read(f"""(float[n,2,4,4] x) => (float[n,2,4,4] y, float[n,2,4,4] z) <float[2,2,1,1] w>
        {{ [first] a = Conv(x, w) [act] b = {activation}(a) [second] y = Conv(b, w) [other] z = Exp(a) }}""")
    assert place_nodes(model, "onnxruntime").nodes == ("first", "second")
    del model.graph.node[-1], model.graph.output[-1]
    assert place_nodes(model, "onnxruntime").nodes == ("first", "act", "second")


def test_only_restricts_what_computes_and_says_so() -> None:
    model = prepare_graph(model_of(BRANCHES))
    placement = place_nodes(model, "onnxruntime", only=["left"])
    assert placement.nodes == ("left",)
    assert placement.left_in_float == {"right": "not among 'left'"}
    assert place_nodes(model, "onnxruntime", only=["Conv"], exclude=["left"]).left_in_float == {
        "left": "excluded by 'left'"
    }
    with pytest.raises(InvalidOption, match="`only` 'nothing'"):
        place_nodes(model, "onnxruntime", only=["nothing"])


@pytest.mark.parametrize("target", GRAPH_TARGETS)
def test_a_large_table_is_quantized_for_runtimes_that_gather_integers(target: GraphTarget) -> None:
    model = model_of("""(int64[n] ids) => (float[n,4] y) <float[4,4] w, float[20000,4] table>
        { [words] a = Gather(table, ids) [few] b = Gather(w, ids) c = Add(a, b) [fc] y = MatMul(c, w) }""")
    expected = () if target == "tensorrt" else ("words",)
    assert place_nodes(model, target).tables == expected
    assert place_nodes(model, target, exclude=["words"]).tables == ()


MakePath = Callable[..., Path]
BOTH = ("onnxruntime", "tensorrt")
ALL = ("onnxruntime", "openvino", "tensorrt")


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
    model = tmp_path / "m.onnx"
    onnx.save(model_of(f"(float[n] x) => (float[n] y) {{ {body} }}"), model)
    with pytest.raises(CalibrationError, match=r"m\.onnx: no operator would be quantized") as caught:
        activations(model, targets)
    assert caught.value.data["file"] == model
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "r", targets=targets)
    assert not (tmp_path / "r").exists()


# With ranges of exactly the wanted tensors, quantization has all it needs.


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_angles_of_positions_stay_right_where_an_input_is_longer_than_the_samples(
    target: GraphTarget, tmp_path: Path
) -> None:
    """INT8 of the angles of a rotation had 4 dB at twice the length of the samples, and nothing said so."""
    onnx.save(read(ANGLES), tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=generator.standard_normal((16, 32, 2)).astype(np.float32))
    ranges = qcompile.calibrate(
        tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "r", targets=[target]
    )
    made = qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=ranges.path, target=target)
    x = generator.standard_normal((1, 512, 2)).astype(np.float32).clip(-2, 2)
    expected, found = (
        onnxruntime.InferenceSession(path).run(None, {"x": x})[0] for path in (tmp_path / "m.onnx", made.path)
    )
    assert output_error(expected, found).snr_db > 30


def test_every_mode_leaves_products_with_positions_in_float(tmp_path: Path) -> None:
    text = ANGLES.replace("n,t,2]", "n,t,64]").partition(", float[1,2] steps")[0] + ">"
    weights = np.random.default_rng(0).standard_normal((65, 64)).astype(np.float32)
    model = model_of(text + ANGLES.partition(">\n")[2], steps=weights[:1], w=weights[1:])
    onnx.save(model, tmp_path / "m.onnx")
    dynamic = qcompile.quantize(tmp_path / "m.onnx", tmp_path / "d.onnx", mode="dynamic").manifest.proof
    assert dynamic["planned"] == {"MatMul": 1}
    stored = qcompile.quantize(tmp_path / "m.onnx", tmp_path / "w.onnx", mode="weights").manifest.proof
    assert "it reads only positions" in stored["left_in_float"]["angles"]
    assert stored["quantized"] == {"MatMul": 1}
