"""Q/DQ at the Adds that close residual branches, for TensorRT: each case has the source of its positions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import static
from onnx import numpy_helper
from written_models import model_of, normal

from qcompile.compiler.quantize.int8.placement import Placement, place_nodes
from qcompile.compiler.quantize.int8.static import quantize_static
from qcompile.compiler.quantize.int8.tensorrt import share_scales
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.model.graph.graph import producers

TF = "NVIDIA/TensorRT, tools/tensorflow-quantization/tensorflow_quantization/custom_qdq_cases.py"
"""`ResidualConnectionQDQCase`; the figures are in docs/source/docs/add_custom_qdq_cases.md."""
TORCH = "NVIDIA/TensorRT, tools/pytorch-quantization/examples/torchvision/models/classification/resnet.py"
MODELOPT = "NVIDIA/Model-Optimizer, modelopt/onnx/quantization/graph_utils.py"
"""Of small layers: `find_nodes_from_convs_to_exclude` and `_exclude_matmuls_by_inference`."""
HEAD = "a = Conv(x, w1) r = Relu(a)"

CASES = {
    "a shortcut": (
        f"{HEAD} c = Conv(r, w2) s = Add(c, r) y = Relu(s)", "c- r+", f"{TF}: figure 3"
    ),
    "a shortcut as the first operand": (
        f"{HEAD} c = Conv(r, w2) s = Add(r, c) y = Relu(s)", "r+ c-", f"{TF}: figure 3"
    ),
    "a projection": (
        f"{HEAD} c = Conv(r, w2) d = Relu(c) e = Conv(d, w3) p = Conv(r, w4) s = Add(e, p) y = Relu(s)",
        "e- p+",
        f"{TORCH}: Bottleneck.forward, `self.residual_quantizer(identity)` behind `self.downsample(x)`",
    ),
    "a projection as the first operand": (
        f"{HEAD} p = Conv(r, w4) c = Conv(r, w2) d = Relu(c) e = Conv(d, w3) s = Add(p, e) y = Relu(s)",
        "p+ e-", f"{MODELOPT}: build_non_residual_input_map, 'Input in the longest path to LCA'",
    ),
    "two branches of one length": (
        "c = Conv(x, w2) e = Conv(x, w3) s = Add(c, e) y = Conv(s, w4)", "c+ e-",
        f"{MODELOPT}: build_non_residual_input_map, `else` of `if d1 > d2`",
    ),
    "a convolution that another node reads": (
        "c = Conv(x, w2) d = Conv(c, w3) s = Add(c, d) y = Conv(s, w4)", "c+ d-",
        f"{TF}: 'input does not have more than 1 outbound node'",
    ),
    "no convolution that only the sum reads": (
        "c = Conv(x, w2) d = Conv(c, w3) f = Exp(x) s = Add(c, f) u = Add(s, d) y = Conv(u, w4)", "c+ f+",
        f"{TF}: 'Default behavior: add QDQ in all inputs'",
    ),
    "a convolution that is the residual of ConvNeXt": (
        "c = Conv(x, w2) d = Conv(c, w3) e = HardSigmoid(d) s = Add(c, e) y = Conv(s, w4)", "c+ e-",
        f"{MODELOPT}: build_non_residual_input_map, 'LCA being backbone itself is not residual Add'",
    ),
    "an activation behind the convolution": (
        f"{HEAD} c = Conv(r, w2) d = Relu(c) s = Add(d, r) y = Conv(s, w4)", "d- r+",
        f"{TF}: 'Conv -> BatchNorm -> Activation -> Add' of EfficientNet-B0",
    ),
    "a limited activation": (
        f"{HEAD} c = Conv(r, w2) d = Clip(c, low, high) s = Add(d, r) y = Conv(s, w4)", "d- r+",
        f"{TF}: 'Conv -> BatchNorm -> Activation -> Add' of EfficientNet-B0",
    ),
    "a SiLU behind the convolution": (
        f"{HEAD} c = Conv(r, w2) g = Sigmoid(c) d = Mul(g, c) s = Add(d, r) y = Conv(s, w4)", "d- r+",
        f"{MODELOPT}: get_fusible_backbone, Mul, Sigmoid, BatchNormalization, Conv",
    ),
    "a gate by another tensor": (
        "c = Conv(x, w2) g = Sigmoid(x) d = Mul(c, g) e = Conv(d, w3) s = Add(d, e) y = Conv(s, w4)", "d+ e-",
        f"{MODELOPT}: get_fusible_backbone has no such pattern",
    ),
    "the residual stream of ResNet-v2": (
        f"{HEAD} c = Conv(r, w2) s = Add(c, a) r2 = Relu(s) y = Conv(r2, w3)", "c- a+",
        f"{TF}: '[ResNet-v2]: Connection is direct ReLU -> Conv2D -> Add'",
    ),
    "a pool in front of the branches": (
        f"{HEAD} q = MaxPool <kernel_shape = [1,1]> (r) c = Conv(q, w2) s = Add(c, q) y = Relu(s)", "c- q+",
        f"{TF}: 'a simple residual branch and the other Conv'",
    ),
    "a linear bottleneck of MobileNetV2": (
        "p = Conv(x, w1) e = Conv(p, w2) r = Relu(e) q = Conv(r, w3) s = Add(q, p) y = Conv(s, w4)",
        "q- p+", f"{TF}: 'input does not have more than 1 outbound node'",
    ),
    "an input of the model": (
        "c = Conv(x, w2) s = Add(c, x) y = Relu(s)", "c- x+", f"{TF}: 'all inputs except 1'"
    ),
    "a residual that no convolution reads": (
        "c = Conv(x, w2) f = Exp(x) s = Add(c, f) y = Conv(s, w4)", "c- f+", f"{TF}: 'all inputs except 1'"
    ),
    "the sum of a vector": (
        "c = Conv(x, w2) s = Add(c, v) y = Conv(s, w4)", "c- v-", f"{TF}: 'the input is Bias'"
    ),
    "a matrix product": (
        "c = MatMul(x, square) s = Add(c, x) y = MatMul(s, square)", "c- x-",
        "docs/quantization.md: Residual adds"
    ),
}  # fmt: skip
"""Body of a graph from x to y; each operand of its Add `s` with + for Q/DQ; where that is from.

Model-Optimizer's own code (commit 5a4242f), run on these graphs, decides alike but for six. It takes a bare
Clip, and a SiLU without BatchNormalization, for no activation. It quantizes both operands beside an input of
the model, and both of the sum of a product. It fails at the two with an Exp of an input.
"""


STORED = {
    **{f"w{i}": normal(16, 16, 1, 1, seed=i) for i in range(1, 6)}, "square": normal(16, 16),
    "v": np.ones((16, 1, 1), np.float32), "low": np.float32(0), "high": np.float32(6),
    "wide": normal(16, 32, 1, 1), "twice": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip


def network(body: str) -> onnx.ModelProto:
    """A graph from x [1,16,16,16] to y with the weights that it reads; nodes are named by what they make."""
    read = {name: np.asarray(array) for name, array in STORED.items() if re.search(rf"\b{name}\b", body)}
    return named_by_outputs(model_of(f"(float[1,16,16,16] x) => (float[n,c,h,w] y) {{ {body} }}", **read))


def named_by_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def scales_of(
    model: onnx.ModelProto | str, *, amax: dict[str, float] | None = None, **options: Any
) -> dict[str, list[float]]:
    """Node to the scale of the pair in front of each operand; 0 for none. Scales are amax / 127."""
    ready = prepare_graph(network(model) if isinstance(model, str) else model)
    ranges = {name: (-127.0, 127.0) for node in ready.graph.node for name in (*node.input, *node.output)}
    ranges |= {name: (-limit * 127, limit * 127) for name, limit in (amax or {}).items()}
    placement = place_nodes(ready, "tensorrt", **options)
    share_scales(ready.graph, placement.nodes, ranges)
    graph = quantize_static(ready, placement, ranges).graph
    made_by, stored = producers(graph), {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    readers = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(set(node.output) & readers for node in graph.node), "a pair that nobody reads"
    return {
        node.name: [
            round(float(stored[made_by[name].input[1]].max()), 6)
            if name in made_by and made_by[name].op_type == "DequantizeLinear" else 0.0
            for name in node.input
        ]
        for node in graph.node
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_residual_branch_of_an_add_is_quantized_and_not_what_its_convolution_makes(case: str) -> None:
    body, expected, source = CASES[case]
    assert source
    operands = next(node for node in network(body).graph.node if node.name == "s").input
    scales = scales_of(body)["s"]
    assert [
        f"{n}{'+' if scale else '-'}" for n, scale in zip(operands, scales, strict=True)
    ] == expected.split()


@pytest.mark.parametrize(
    ("case", "exclude", "expected"),
    [
        ("a projection", ["e"], [1.0, 0.0]),  # what stays in float is not fused with an integer sum
        ("a projection", ["p"], [0.0, 1.0]),
        ("a projection", ["e", "p"], [0.0, 0.0]),
        ("a shortcut", ["s"], [0.0, 0.0]),
    ],
)
def test_layers_in_float_get_no_pairs(case: str, exclude: list[str], expected: list[float]) -> None:
    assert scales_of(CASES[case][0], exclude=exclude)["s"] == expected


def test_what_a_subgraph_reads_or_the_model_returns_is_read_elsewhere() -> None:
    returned, read = network(CASES["a shortcut"][0]), network(CASES["a shortcut"][0])
    value = onnx.helper.make_tensor_value_info
    returned.graph.output.append(value("c", onnx.TensorProto.FLOAT, None))
    inside = value("inside", onnx.TensorProto.FLOAT, None)
    branch = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["c"], ["inside"])], "branch", [], [inside])
    read.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "yes"))
    read.graph.node.append(
        onnx.helper.make_node("If", ["yes"], ["z"], "choice", then_branch=branch, else_branch=branch)
    )
    read.graph.output.append(value("z", onnx.TensorProto.FLOAT, None))
    for model in (returned, read):
        assert scales_of(model)["s"] == [1.0, 1.0]


def test_other_targets_fuse_nothing() -> None:
    ready = prepare_graph(network(CASES["an activation behind the convolution"][0]))
    for target in ("onnxruntime", "openvino"):
        placement = place_nodes(ready, target)  # type: ignore[arg-type]
        assert placement.fused == {}
        assert "s" in placement.nodes


RESIZE = 'u = Resize<mode = "{mode}">(r, , twice)'
EXCITED = (
    "c = Conv(x, w1) r = Relu(c) g = GlobalAveragePool(r) a = Conv(g, w2) b = Relu(a) e = Conv(b, w3) "
    "h = Sigmoid(e) s = Mul(r, h) y = Conv(s, w4)"
)


@pytest.mark.parametrize(
    ("body", "exclude", "expected"),
    [
        # EfficientNetQDQCase; Model-Optimizer's own code quantizes this Mul too.
        (EXCITED, [], [1.0, 1.0]),
        (EXCITED.replace("Sigmoid", "HardSigmoid"), [], [1.0, 1.0]),
        (EXCITED, ["s"], [0.0, 0.0]),
        (EXCITED, ["e"], [0.0, 0.0]),
        # SiLU and HardSwish are part of their convolution.
        ("c = Conv(x, w1) g = Sigmoid(c) s = Mul(c, g) y = Conv(s, w2)", [], [0.0, 0.0]),
        ("c = Conv(x, w1) t = Add(c, w2) k = Clip(t) s = Mul(c, k) y = Conv(s, w3)", [], [0.0, 0.0]),
        ("c = Conv(x, w1) g = Sigmoid(x) s = Mul(c, g) y = Conv(s, w2)", [], [0.0, 0.0]),
        ("c = Conv(x, w1) d = Conv(x, w2) z = Add(c, d) g = Sigmoid(d) s = Mul(z, g) y = Conv(s, w3)", [],
         [0.0, 0.0]),
    ],
)  # fmt: skip
def test_both_operands_of_squeeze_and_excite_are_quantized_and_those_of_activations_are_not(
    body: str, exclude: list[str], expected: list[float]
) -> None:
    assert scales_of(body, exclude=exclude)["s"] == expected


@pytest.mark.parametrize(
    ("behind", "mode", "scale"),
    [
        ("r = Relu(c)", "nearest", 1.0),
        ("r = Relu(c)", "linear", 1.0),
        ("r = Relu(c)", "cubic", 0.0),
        ("d = Conv(c, w2) r = Add(d, c)", "nearest", 1.0),  # of a sum that is quantized
    ],
)
def test_a_resize_behind_a_convolution_is_quantized(behind: str, mode: str, scale: float) -> None:
    body = f"c = Conv(x, w1) {behind} {RESIZE.format(mode=mode)}"
    assert scales_of(f"{body} y = Conv(u, w2)")["u"][0] == scale
    assert scales_of(f"{body} y = Exp(u)")["u"][0] == 0.0, "nobody reads integers"


def test_a_max_pool_gets_no_pair_and_one_scale_on_both_sides() -> None:
    body = "c = Conv(x, w1) r = Relu(c) p = MaxPool<kernel_shape = [1,1]>(r) d = Conv(r, w2) e = Conv(p, w3)"
    found = scales_of(f"{body} y = Add(d, e)", amax={"r": 2.0, "p": 1.5})
    assert (found["p"][0], found["d"][0], found["e"][0]) == (0.0, 2.0, 2.0)


def test_what_a_concat_joins_has_its_scale() -> None:
    """Model-Optimizer, `get_concat_eliminated_tensors`."""
    body = "c = Conv(x, w1) d = Conv(c, w2) k = Concat<axis = 1>(c, d) y = Conv(k, wide)"
    found = scales_of(body, amax={"c": 0.5, "d": 2.0, "k": 2.0})
    assert found["d"][0] == found["y"][0] == 2.0
    other = body.replace("y = Conv(k, wide)", "e = Exp(k) y = Conv(e, wide)")
    assert scales_of(other, amax={"c": 0.5, "d": 2.0, "k": 2.0})["d"][0] == 0.5


def test_one_scale_goes_through_resize_and_through_a_second_concat() -> None:
    resize = RESIZE.format(mode="nearest")
    body = (
        f"c = Conv(x, w1) r = Relu(c) {resize} d = Conv(u, w2) k = Concat<axis = 1>(u, d) e = Conv(k, wide)"
    )
    body += " f = Conv(d, w3) m = Concat<axis = 1>(d, f) z = Conv(m, wide) y = Add(e, z)"
    found = scales_of(body, amax={"r": 0.5, "u": 0.75, "d": 1.25, "k": 1.5, "m": 3.0})
    assert (found["u"][0], found["d"][0], found["e"][0]) == (3.0, 3.0, 3.0)
    assert (found["f"][0], found["z"][0]) == (3.0, 3.0)


def with_product(body: str, inputs: str, output: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A prepared graph with random weights; a product of 64 by 64 beside it, which INT8 takes."""
    arrays = {name: normal(*shape) for name, shape in (*weights.items(), ("w64", (64, 64)))}
    signature = f"({inputs}, float[n,64] beside) => ({output}, float[n,64] large)"
    model = model_of(f"{signature} {{ {body} large = MatMul(beside, w64) }}", **arrays)
    return prepare_graph(named_by_outputs(model))


def placed(*arguments: str, float8: bool = False, **weights: tuple[int, ...]) -> Placement:
    """The plan for a graph of `with_product`."""
    return place_nodes(with_product(*arguments, **weights), "tensorrt", float8=float8)


@pytest.mark.parametrize(
    ("weight", "options", "behind", "reason"),
    [
        ((16, 16, 3, 3), "", True, None),
        ((16, 3, 3, 3), "", False, None),
        ((16, 3, 7, 7), "", True, None),
        ((8, 4, 3, 3), "", False, None),  # the first layer
        ((8, 4, 3, 3), "", True, "its 4 and 8 channels are few for INT8: both are below 16"),
        ((12, 20, 3, 3), "", True, "its 20 and 12 channels are few for INT8: neither is a multiple of 8"),
        ((10, 64, 1, 1), "", True, None),
        ((32, 8, 1, 7), "", True, "its 8 and 32 channels are few for INT8: its kernel is longer on one axis"),
        ((32, 32, 1, 7), "", True, None),
        ((32, 1, 3, 3), "<group = 32>", True, None),
        ((32, 1, 1, 1), "<group = 32>", True, "a group has 1 channels"),
        ((36, 1, 3, 3), "<group = 36>", True, "a group has 1 channels"),
        ((64, 32, 1, 1), "<group = 2>", True, None),
    ],
)
def test_convolutions_of_few_channels_stay_in_float(
    weight: tuple[int, ...], options: str, behind: bool, reason: str | None
) -> None:
    channels = weight[1] * (int(options.split()[-1][:-1]) if options else 1)
    body = f"{'a = Exp(x)' if behind else ''} c = Conv {options} ({'a' if behind else 'x'}, w)"
    found = placed(body, f"float[n,{channels},9,9] x", f"float[n,{weight[0]},h,v] c", w=weight)
    assert ("c" in found.nodes) is (reason is None)
    assert found.left_in_float.get("c", "").startswith(reason or "")


@pytest.mark.parametrize(
    ("body", "inputs", "output", "reason"),
    [
        ("c = MatMul(x, w)", "float[n,16] x", "float[n,16] c", None),
        ("c = MatMul(x, w)", "float[1,16] x", "float[1,16] c", "it is a matrix by a vector"),
        ("c = MatMul(x, w)", "float[1,9,16] x", "float[1,9,16] c", None),
        ("c = MatMul(x, narrow)", "float[n,16] x", "float[n,10] c", "its n of 10 are below the 16"),
        ("c = MatMul(x, short)", "float[n,10] x", "float[n,16] c", "its k of 10 are below the 16"),
        ("c = Gemm<transB = 1>(x, narrow)", "float[n,10] x", "float[n,16] c", "its k of 10 are below the 16"),
        ("c = Gemm<transB = 1>(x, short)", "float[n,16] x", "float[n,10] c", "its n of 10 are below the 16"),
        ("c = MatMul(x, z)", "float[n,32,32] x, float[n,32,32] z", "float[n,32,32] c", None),
        ("c = MatMul(x, z)", "float[n,1,32] x, float[n,32,32] z", "float[n,1,32] c", "it is a matrix by"),
        ("c = MatMul(x, z)", "float[n,32,8] x, float[n,8,32] z", "float[n,32,32] c", "its k of 8 are below"),
    ],
)  # fmt: skip
def test_products_of_vectors_and_small_products_stay_in_float(
    body: str, inputs: str, output: str, reason: str | None
) -> None:
    for float8 in (False, True):
        found = placed(body, inputs, output, float8=float8, w=(16, 16), narrow=(16, 10), short=(10, 16))
        assert ("c" in found.nodes) is (reason is None)
        assert found.left_in_float.get("c", "").startswith(reason or "")


def attention(
    keys: str, *, head: int = 32, between: str = "m = Identity(s)", queries: str = "64"
) -> Placement:
    """The plan for attention; `between` makes m of the scores s."""
    body = f"s = MatMul(q, k) {between} p = Softmax(m) r = MatMul(p, v)"
    shapes = f"float[n,4,{queries},{head}] q, float[n,4,{head},{keys}] k, float[n,4,{keys},{head}] v"
    inputs = f"{shapes}, float[n,1,1,{keys}] mask, bool[n,1,1,{keys}] seen"
    return placed(body, inputs, f"float[n,4,{queries},{head}] r", half=(1,))


@pytest.mark.parametrize("keys", ["16", "197", "512"])
def test_attention_of_up_to_512_positions_is_quantized(keys: str) -> None:
    assert {"s", "r"} <= set(attention(keys).nodes)
    assert {"s", "r"} <= set(attention(keys, between="m = Mul(s, half)").nodes)


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [
        ("513", {}, "it is attention over 513 positions; TensorRT fuses up to 512 in INT8"),
        ("77", {"queries": "4096"}, "it is attention over 4096 positions; TensorRT fuses up to 512 in INT8"),
        ("length", {}, "it is attention of dynamic length; TensorRT fuses it in INT8 up to 512 positions"),
        ("64", {"head": 80}, "its heads are 80 wide; TensorRT fuses 16, 32, 64 in INT8"),
        ("64", {"between": "m = Add(s, mask)"}, "it is attention with an added mask, which Model-Optimizer"),
        ("64", {"between": "t = Mul(s, half) m = Add(mask, t)"}, "it is attention with an added mask"),
        ("64", {"between": "m = Where(seen, s, half)"}, "it is attention with an added mask"),
    ],
)
def test_other_attention_stays_in_float_in_both_products(
    keys: str, options: dict[str, str], reason: str
) -> None:
    found = attention(keys, **options)  # type: ignore[arg-type]
    assert found.nodes == ("large",)
    assert found.left_in_float.keys() == {"s", "r"}
    assert all(text.startswith(reason) for text in found.left_in_float.values())


def test_what_a_user_names_or_nothing_else_would_be_is_quantized_anyway(tmp_path: Path) -> None:
    model = with_product("c = MatMul(x, w)", "float[n,16] x", "float[n,10] c", w=(16, 10))
    assert place_nodes(model, "tensorrt").nodes == ("large",)
    assert place_nodes(model, "tensorrt", only=["MatMul"]).nodes == ("c", "large")
    assert place_nodes(model, "tensorrt", chosen=["c"]).nodes == ("c", "large")
    assert place_nodes(model, "onnxruntime").nodes == ("c", "large")
    small, why = (
        place_nodes(model, "tensorrt", exclude=["large"]),
        "its n of 10 are below the 16 of INT8 kernels",
    )
    assert small.nodes == ("c",)
    assert small.warnings == (
        f"TensorRT has no good kernel for any layer, and all are quantized; node 'c': {why}",
    )
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=normal(8, 16), beside=normal(8, 64))
    for layers, left in (({}, {"c": why}), ({"c": "int8"}, {})):  # calibrated for the target alone
        made = static(tmp_path / "net.onnx", tmp_path, target="tensorrt", layers=layers)
        assert made.manifest.proof["left_in_float"] == left
