"""The body that is written for an operator is a valid graph, which ONNX Runtime and TensorRT-RTX take.

It computes what ONNX Runtime does for the operator, or onnx.reference where that lacks it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from two_opsets import model, run

import qcompile
from qcompile.compiler.opset.fit import rewritten_outputs
from qcompile.compiler.opset.lower import lower_opset, without_missing
from qcompile.engines.tensorrt.parser_operators import ask_parser, parser_of
from qcompile.errors import ModelError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import Graph, copy_model
from qcompile.model.sessions.random_input import random_feeds
from qcompile.spec.tensors import Feeds

EVERY = frozenset(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == "")
NORMALIZED = "(float[2,3,4] x, float[{0}] s, float[{0}] b) => (float[2,3,4] y)"
HEADS = "(float[2,4,3,8] q, float[2,2,5,8] k, float[2,2,5,6] v{0}) => (float[2,4,3,6] y)"
ROTARY = "(float[2,4,3,8] x, float[2,3,{0}] c, float[2,3,{0}] s) => (float[2,4,3,8] y)"
LABELS = {"t": np.array([0, 2])}
PLANE, SPACE = {"s": np.array([2, 3, 4, 5])}, {"s": np.array([2, 1, 2, 3, 4])}
ENDS = {"x": np.array([1, np.inf, -np.inf, np.nan], np.float32)}
FLOATS = "(float[2,6] x) => (float[2,6] y)"

Case = tuple[str, list[int], str, list[str], Feeds]
"""Operator, opsets, signature, settings and operands, inputs that are not random."""
CASES: list[Case] = [
    ("AffineGrid", [20, 23], "(float[n,2,3] x, int64[4] s) => (float[n,h,w,2] y)",
     ["<align_corners=0>(x, s)", "<align_corners=1>(x, s)"], PLANE),
    ("AffineGrid", [20], "(double[n,3,4] x, int64[5] s) => (double[n,d,h,w,3] y)",
     ["(x, s)", "<align_corners=1>(x, s)"], SPACE),
    ("Attention", [23, 24], HEADS.format(""),
     ["(q, k, v)", "<is_causal=1>(q, k, v)", "<scale=0.3, softcap=2.0>(q, k, v)"], {}),
    ("Attention", [23, 24], HEADS.format(", float[3,5] m"), ["(q, k, v, m)"], {}),
    ("Attention", [23, 24], HEADS.format(", bool[2,1,3,5] m"), ["(q, k, v, m)"],
     {"m": np.ones((2, 1, 3, 5), bool)}),
    ("Attention", [23], "(float[2,3,16] q, float[2,5,8] k, float[2,5,8] v) => (float[2,3,16] y)",
     ["<q_num_heads=4, kv_num_heads=2>(q, k, v)"], {}),
    ("BlackmanWindow", [17, 20], "(int64 n) => (float[m] y)", ["<periodic=0>(n)", "(n)"], {"n": np.array(8)}),
    ("CastLike", [15, 19, 23], "(float[6] x, float16[1] t) => (float16[6] y)", ["(x, t)"], {}),
    ("Celu", [12, 17], FLOATS, ["(x)", "<alpha=2.0>(x)"], {}),
    ("CenterCropPad", [18, 20, 23], "(float[5,6] x, int64[2] s) => (float[a,b] y)",
     ["(x, s)", "<axes=[1,0]>(x, s)"], {"s": np.array([8, 3])}),
    ("CenterCropPad", [18], "(float[5,6] x, int64[1] s) => (float[a,b] y)", ["<axes=[-2]>(x, s)"],
     {"s": np.array([7])}),
    ("DynamicQuantizeLinear", [11], "(float[2,6] x) => (uint8[2,6] y, float s, uint8 z)", ["(x)"], {}),
    ("Gelu", [20, 22], FLOATS, ["(x)", '<approximate="tanh">(x)'], {}),
    ("GroupNormalization", [18, 20], "(float[2,4,3] x, float[2] s, float[2] b) => (float[2,4,3] y)",
     ["<num_groups=2, epsilon=0.1>(x, s, b)"], {}),
    ("GroupNormalization", [21, 23], "(float[2,4,3] x, float[4] s, float[4] b) => (float[2,4,3] y)",
     ["<num_groups=2>(x, s, b)", "<num_groups=1>(x, s, b)", "<num_groups=4>(x, s, b)"], {}),
    ("HammingWindow", [17, 20], "(int64 n) => (float[m] y)", ["<periodic=0>(n)", "(n)"], {"n": np.array(7)}),
    ("HannWindow", [17, 20], "(int64 n) => (double[m] y)",
     ["<periodic=0, output_datatype=11>(n)", "<output_datatype=11>(n)"], {"n": np.array(8)}),
    ("IsInf", [10, 16, 20], "(float[4] x) => (bool[4] y)",
     ["(x)", "<detect_positive=0>(x)", "<detect_negative=0>(x)"], ENDS),
    ("LayerNormalization", [17, 20], NORMALIZED.format(4),
     ["<axis=-1>(x, s, b)", "<axis=2, epsilon=0.1>(x, s)"], {}),
    ("LayerNormalization", [17], NORMALIZED.format("3,4"), ["<axis=1>(x, s, b)", "<axis=-2>(x, s)"], {}),
    ("MeanVarianceNormalization", [13, 17], "(float[2,3,4,4] x) => (float[2,3,4,4] y)",
     ["(x)", "<axes=[0,2]>(x)"], {}),
    ("Mish", [18, 22], FLOATS, ["(x)"], {}),
    ("NegativeLogLikelihoodLoss", [13, 22], "(float[2,3] x, int64[2] t, float[3] w) => (float y)",
     ["(x, t)", '<reduction="sum">(x, t, w)', "<ignore_index=2>(x, t, w)"], LABELS),
    ("RMSNormalization", [23, 24], NORMALIZED.format(4), ["(x, s)", "<axis=2, epsilon=0.1>(x, s)"], {}),
    ("RotaryEmbedding", [23], ROTARY.format(4), ["(x, c, s)", "<interleaved=1>(x, c, s)"], {}),
    ("RotaryEmbedding", [23], ROTARY.format(2),
     ["<rotary_embedding_dim=4>(x, c, s)", "<rotary_embedding_dim=4, interleaved=1>(x, c, s)"], {}),
    ("SoftmaxCrossEntropyLoss", [13], "(float[2,3] x, int64[2] t) => (float y)",
     ["(x, t)", '<reduction="sum">(x, t)', "<ignore_index=2>(x, t)"], LABELS),
    ("Swish", [24], FLOATS, ["(x)", "<alpha=1.7>(x)"], {}),
]  # fmt: skip
EACH = [
    pytest.param(operator, opset, signature, call, fixed, id=f"{operator}-{opset}-{number}-{place}")
    for number, (operator, opsets, signature, calls, fixed) in enumerate(CASES)
    for opset in opsets
    for place, call in enumerate(calls)
]
RANDOM = {"Bernoulli"}
SEQUENCES = {"SequenceMap"}
BY_NO_RUNTIME = {"CausalConvWithState", "LinearAttention", "SwiGLU"}
"""Of opset 27 and 28, which ONNX Runtime 1.31 does not read."""


def built(operator: str, opset: int, signature: str, call: str) -> onnx.ModelProto:
    """A model of one node, which has as many of its results as the signature."""
    results = ", ".join(part.split()[-1] for part in signature.partition("=> (")[2].rstrip(")").split(", "))
    return model(opset, signature, f"{results} = {operator}{call}")


@pytest.mark.parametrize(("operator", "opset", "signature", "call", "fixed"), EACH)
def test_a_body_is_valid_and_computes_what_its_operator_does(
    operator: str, opset: int, signature: str, call: str, fixed: Feeds
) -> None:
    before = built(operator, opset, signature, call)
    feeds = random_feeds(model_io(before).inputs, extent=2) | fixed
    try:
        expected = run(before, feeds)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        expected = list(ReferenceEvaluator(before).run(None, feeds))
    after = copy_model(before)
    assert without_missing(after, EVERY - {operator})
    onnx.checker.check_model(after, full_check=True)
    assert operator not in {node.op_type for node in after.graph.node}
    for form in (after, *([lower_opset(before, 17)] if opset > 17 else ())):
        for one, other in zip(expected, run(form, feeds), strict=True):
            assert one.dtype == other.dtype
            tolerance = 4e-3 if one.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


def test_each_operator_that_a_reader_may_lack_is_in_the_table() -> None:
    schemas = [schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""]
    bodies = {s.name for s in schemas if s.has_function or s.has_context_dependent_function}
    oldest = parser_of("8.5.3")
    assert oldest is not None
    lacked = bodies - oldest.operators
    assert lacked <= {case[0] for case in CASES} | RANDOM | SEQUENCES | BY_NO_RUNTIME


@pytest.mark.parametrize("operator", ["AffineGrid", "CenterCropPad", "SoftmaxCrossEntropyLoss"])
def test_tensorrt_rtx_builds_the_body_of_what_it_lacks(operator: str, tmp_path: Path) -> None:
    module = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    parser = ask_parser(module)
    assert parser is not None
    assert operator not in parser.operators
    for name, opsets, signature, calls, fixed in CASES:
        for call in calls if name == operator and "double" not in signature else ():
            graph = built(name, opsets[-1], signature.replace("float[n,", "float[2,"), call)
            for key, values in fixed.items():
                if key == "s":
                    graph.graph.initializer.append(onnx.numpy_helper.from_array(values, key))
                    graph.graph.input.remove(next(v for v in graph.graph.input if v.name == key))
            onnx.save(graph, tmp_path / "m.onnx")
            qcompile.build(tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=("sm86",))


def test_an_invalid_rewrite_is_a_defect_and_no_fault_of_the_model(tmp_path: Path) -> None:
    before = model(17, "(float[2] x) => (float[2] y)", "y = Relu(x)")
    after = model(17, "(float[2] x) => (float[k] y)", "y = Range(x, x, x)")
    with pytest.raises(
        ModelError, match=r"m\.onnx: a rewrite made an invalid graph of it: .*Range"
    ) as caught:
        rewritten_outputs(Graph(before, tmp_path / "m.onnx"), Graph(after, tmp_path / "m.onnx"))
    assert "defect of qcompile" in caught.value.hint
