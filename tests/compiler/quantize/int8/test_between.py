"""Q/DQ between convolutions for TensorRT: squeeze and excite, Resize, one scale at Concat and MaxPool."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from qcompile.compiler.quantize.int8.placement import plan
from qcompile.compiler.quantize.int8.static import quantize_static
from qcompile.compiler.quantize.int8.tensorrt import share_scales
from qcompile.compiler.quantize.prepare import prepare_graph
from qcompile.model.graph import producers

WIDTH = 16
RESIZE = 'u = Resize<mode = "{mode}">(r, , twice)'


def network(body: str) -> onnx.ModelProto:
    """A prepared graph from x to y with weights of 16 channels; each node is named by what it makes."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,{WIDTH},8,8] x) => (float[n,c,h,v] y) {{ {body} }}"""
    model = parser.parse_model(text)
    generator = np.random.default_rng(0)
    weights = {f"w{i}": generator.standard_normal((WIDTH, WIDTH, 1, 1)) for i in range(1, 6)}
    weights |= {"wide": generator.standard_normal((WIDTH, 2 * WIDTH, 1, 1)), "twice": np.array([1, 1, 2, 2])}
    read = {name for node in model.graph.node for name in node.input}
    for name, values in weights.items():
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    for node in model.graph.node:
        node.name = node.output[0]
    return prepare_graph(model)


def quantized(body: str, *, amax: dict[str, float] | None = None, **options: Any) -> dict[str, list[float]]:
    """Node to the scale of the pair in front of each operand; 0 for none. Scales are amax / 127."""
    model = network(body)
    ranges = {name: (-127.0, 127.0) for node in model.graph.node for name in (*node.input, *node.output)}
    ranges |= {name: (-limit * 127, limit * 127) for name, limit in (amax or {}).items()}
    placement = plan(model, "tensorrt", **options)
    share_scales(model.graph, placement.nodes, ranges)
    graph = quantize_static(model, placement, ranges).graph
    made_by, stored = producers(graph), {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    readers = {name for node in graph.node for name in node.input} | {"y"}
    assert all(set(node.output) & readers for node in graph.node), "a pair that nobody reads"
    return {
        node.name: [
            round(float(stored[made_by[name].input[1]].max()), 6)
            if name in made_by and made_by[name].op_type == "DequantizeLinear" else 0.0
            for name in node.input
        ]
        for node in graph.node
    }  # fmt: skip


EXCITED = """
r = Relu(c) g = GlobalAveragePool(r) a = Conv(g, w2) b = Relu(a) e = Conv(b, w3) h = {gate}(e) s = Mul(r, h)
y = Conv(s, w4)
"""


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_both_operands_of_squeeze_and_excite_are_quantized(gate: str) -> None:
    """EfficientNetQDQCase; Model-Optimizer's own code quantizes this Mul too."""
    body = "c = Conv(x, w1)" + EXCITED.format(gate=gate)
    assert quantized(body)["s"] == [1.0, 1.0]
    assert quantized(body, exclude=["s"])["s"] == [0.0, 0.0]
    assert quantized(body, exclude=["e"])["s"] == [0.0, 0.0]


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv(x, w1) g = Sigmoid(c) s = Mul(c, g) y = Conv(s, w2)",
        "c = Conv(x, w1) t = Add(c, w2) k = Clip(t) s = Mul(c, k) y = Conv(s, w3)",
        "c = Conv(x, w1) g = Sigmoid(x) s = Mul(c, g) y = Conv(s, w2)",
        "c = Conv(x, w1) d = Conv(x, w2) z = Add(c, d) g = Sigmoid(d) s = Mul(z, g) y = Conv(s, w3)",
    ],
)
def test_activations_and_other_gates_stay_in_float(body: str) -> None:
    """SiLU and HardSwish are part of their convolution."""
    assert quantized(body)["s"] == [0.0, 0.0]


@pytest.mark.parametrize(("mode", "scale"), [("nearest", 1.0), ("linear", 1.0), ("cubic", 0.0)])
def test_a_resize_behind_a_convolution_is_quantized(mode: str, scale: float) -> None:
    body = f"c = Conv(x, w1) r = Relu(c) {RESIZE.format(mode=mode)}"
    assert quantized(f"{body} y = Conv(u, w2)")["u"][0] == scale
    assert quantized(f"{body} y = Exp(u)")["u"][0] == 0.0, "nobody reads integers"


def test_a_resize_of_a_sum_that_is_quantized_is_quantized() -> None:
    body = f"c = Conv(x, w1) d = Conv(c, w2) r = Add(d, c) {RESIZE.format(mode='nearest')} y = Conv(u, w3)"
    assert quantized(body)["u"][0] == 1.0


def test_a_max_pool_gets_no_pair_and_one_scale_on_both_sides() -> None:
    body = "c = Conv(x, w1) r = Relu(c) p = MaxPool<kernel_shape = [1,1]>(r) d = Conv(r, w2) e = Conv(p, w3)"
    found = quantized(f"{body} y = Add(d, e)", amax={"r": 2.0, "p": 1.5})
    assert (found["p"][0], found["d"][0], found["e"][0]) == (0.0, 2.0, 2.0)


def test_what_a_concat_joins_has_its_scale() -> None:
    """Model-Optimizer, `get_concat_eliminated_tensors`."""
    body = "c = Conv(x, w1) d = Conv(c, w2) k = Concat<axis = 1>(c, d) y = Conv(k, wide)"
    found = quantized(body, amax={"c": 0.5, "d": 2.0, "k": 2.0})
    assert found["d"][0] == found["y"][0] == 2.0
    other = body.replace("y = Conv(k, wide)", "e = Exp(k) y = Conv(e, wide)")
    assert quantized(other, amax={"c": 0.5, "d": 2.0, "k": 2.0})["d"][0] == 0.5


def test_one_scale_goes_through_resize_and_through_a_second_concat() -> None:
    resize = RESIZE.format(mode="nearest")
    body = (
        f"c = Conv(x, w1) r = Relu(c) {resize} d = Conv(u, w2) k = Concat<axis = 1>(u, d) e = Conv(k, wide)"
    )
    body += " f = Conv(d, w3) m = Concat<axis = 1>(d, f) z = Conv(m, wide) y = Add(e, z)"
    found = quantized(body, amax={"r": 0.5, "u": 0.75, "d": 1.25, "k": 1.5, "m": 3.0})
    assert (found["u"][0], found["d"][0], found["e"][0]) == (3.0, 3.0, 3.0)
    assert (found["f"][0], found["z"][0]) == (3.0, 3.0)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_other_targets_are_placed_as_before(target: Any) -> None:
    placement = plan(network("c = Conv(x, w1) d = Conv(x, w2) s = Mul(c, d) y = Conv(s, w3)"), target)
    assert placement.nodes == ("c", "d", "s", "y")
