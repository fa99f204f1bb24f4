"""Q/DQ at the Adds that close residual branches, for TensorRT: each case has the source of its positions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from qcompile.compiler.quantize.int8.placement import plan
from qcompile.compiler.quantize.int8.static import quantize_static
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.model.graph import producers

WIDTH = 4

TF = "NVIDIA/TensorRT, tools/tensorflow-quantization/tensorflow_quantization/custom_qdq_cases.py"
"""`ResidualConnectionQDQCase`; the figures are in docs/source/docs/add_custom_qdq_cases.md."""
TORCH = "NVIDIA/TensorRT, tools/pytorch-quantization/examples/torchvision/models/classification/resnet.py"
MODELOPT = "NVIDIA/Model-Optimizer, modelopt/onnx/quantization/graph_utils.py"

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
        "c = MatMul(x, m) s = Add(c, x) y = MatMul(s, m)", "c- x-", "docs/quantization.md: Residual adds"
    ),
}  # fmt: skip
"""Body of a graph from x to y; each operand of its Add `s` with + for Q/DQ; where that is from.

Model-Optimizer's own code (commit 5a4242f), run on these graphs, decides alike but for six. It takes a bare
Clip, and a SiLU without BatchNormalization, for no activation. It quantizes both operands beside an input of
the model, and both of the sum of a product. It fails at the two with an Exp of an input.
"""


def network(body: str) -> onnx.ModelProto:
    """A graph of operators on [1, 4, 4, 4] with weights; each node is named by what it makes."""
    shape = f"float[1,{WIDTH},{WIDTH},{WIDTH}]"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({shape} x) => ({shape} y) {{ {body} }}'
    model = parser.parse_model(text)
    made = {"x"} | {name for node in model.graph.node for name in node.output}
    stored = {"low": np.float32(0), "high": np.float32(6), "v": np.ones((WIDTH, 1, 1), np.float32)}
    random = np.random.default_rng(0)
    for name in dict.fromkeys(name for node in model.graph.node for name in node.input if name not in made):
        shape_of = (WIDTH, WIDTH, 1, 1) if name.startswith("w") else (WIDTH, WIDTH)
        value = stored[name] if name in stored else random.standard_normal(shape_of).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.checker.check_model(model, full_check=True)
    return model


def quantized(model: onnx.ModelProto, **patterns: list[str]) -> onnx.GraphProto:
    """The graph with Q/DQ for TensorRT; every tensor has the range -4 to 4."""
    ready = prepare_graph(model)
    ranges = {name: (-4.0, 4.0) for node in ready.graph.node for name in (*node.input, *node.output)}
    return quantize_static(ready, plan(ready, "tensorrt", **patterns), ranges).graph


def has_pairs(graph: onnx.GraphProto, name: str) -> list[bool]:
    """For each operand of a node whether it comes out of Q/DQ."""
    made_by = producers(graph)
    makers = [made_by.get(operand) for operand in next(n for n in graph.node if n.name == name).input]
    return [maker is not None and maker.op_type == "DequantizeLinear" for maker in makers]


@pytest.mark.parametrize("case", CASES)
def test_the_residual_branch_of_an_add_is_quantized_and_not_what_its_convolution_makes(case: str) -> None:
    body, expected, source = CASES[case]
    assert source
    model = network(body)
    operands = list(next(node for node in model.graph.node if node.name == "s").input)
    graph = quantized(model)
    assert [f"{n}{'-+'[q]}" for n, q in zip(operands, has_pairs(graph, "s"), strict=True)] == expected.split()
    readers = {name for node in graph.node for name in node.input} | {"y"}
    assert all(set(node.output) & readers for node in graph.node), "a pair that nobody reads"


def test_a_convolution_that_stays_in_float_is_not_fused_with_an_integer_sum() -> None:
    body = CASES["a projection"][0]
    assert has_pairs(quantized(network(body), exclude=["e"]), "s") == [True, False]
    assert has_pairs(quantized(network(body), exclude=["p"]), "s") == [False, True]
    assert has_pairs(quantized(network(body), exclude=["e", "p"]), "s") == [False, False]


def test_an_excluded_sum_gets_no_pairs() -> None:
    assert has_pairs(quantized(network(CASES["a shortcut"][0]), exclude=["s"]), "s") == [False, False]


def test_what_a_subgraph_reads_is_read_elsewhere() -> None:
    model = network(CASES["a shortcut"][0])
    value = onnx.helper.make_tensor_value_info("inside", onnx.TensorProto.FLOAT, None)
    branch = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["c"], ["inside"])], "branch", [], [value])
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "yes"))
    model.graph.node.append(
        onnx.helper.make_node("If", ["yes"], ["z"], "choice", then_branch=branch, else_branch=branch)
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    assert has_pairs(quantized(model), "s") == [True, True]


def test_an_output_of_the_model_is_read_elsewhere() -> None:
    model = network(CASES["a shortcut"][0])
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, None))
    assert has_pairs(quantized(model), "s") == [True, True]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_other_targets_fuse_nothing(target: str) -> None:
    body, *_ = CASES["an activation behind the convolution"]
    placement = plan(prepare_graph(network(body)), target)  # type: ignore[arg-type]
    assert placement.fused == {}
    assert "s" in placement.nodes
