"""Every node in its older form, or an error that names it: ONNX Runtime runs both files, and they agree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import parser
from two_opsets import assert_the_same, model, operators

from qcompile.compiler.opset.lower import lower_opset
from qcompile.errors import ModelError, UnsupportedOperator
from qcompile.model.graph.graph import opset
from qcompile.spec.opsets import NEWEST, OLDEST
from qcompile.spec.tensors import Feeds

ONE_NODE = {
    "gelu": (20, "(float[2,3] x) => (float[2,3] y)", "y = Gelu(x)", ""),
    "gelu by tanh": (20, "(float[2,3] x) => (float[2,3] y)", 'y = Gelu<approximate="tanh">(x)', ""),
    "groups scaled": (
        18, "(float[n,6,4,4] x, float[3] s, float[3] b) => (float[n,6,4,4] y)",
        "y = GroupNormalization<num_groups=3>(x,s,b)", "",
    ),
    "channels scaled": (
        21, "(float[n,6,4,4] x, float[6] s, float[6] b) => (float[n,6,4,4] y)",
        "y = GroupNormalization<num_groups=3,epsilon=0.1>(x,s,b)", "",
    ),
    "stored scales": (
        21, "(float[n,4,5] x) => (float[n,4,5] y)", "y = GroupNormalization<num_groups=2>(x,s,b)",
        "<float[4] s={1.,2.,3.,4.}, float[4] b={0.,1.,0.,-1.}>",
    ),
    "rms": (23, "(float[2,3,4] x, float[4] s) => (float[2,3,4] y)", "y = RMSNormalization(x,s)", ""),
    "rms of two axes": (
        23, "(float[2,3,4] x, float[3,4] s) => (float[2,3,4] y)", "y = RMSNormalization<axis=1>(x,s)", "",
    ),
    "layer": (
        20, "(float[2,3,4] x, float[4] s, float[4] b) => (float[2,3,4] y)",
        "y = LayerNormalization(x,s,b)", "",
    ),
    "layer without bias": (
        20, "(float[2,3,4] x, float[3,4] s) => (float[2,3,4] y)",
        "y = LayerNormalization<axis=1,epsilon=0.1>(x,s)", "",
    ),
    "half layer": (
        20, "(float16[2,3,4] x, float16[4] s) => (float[2,3,4] y)",
        "z = LayerNormalization(x,s) y = Cast<to=1>(z)", "",
    ),
    "half gelu": (20, "(float16[2,6] x) => (float16[2,6] y)", "y = Gelu(x)", ""),
    "half gelu by tanh": (
        20, "(float16[2,6] x) => (float16[2,6] y)", 'y = Gelu<approximate="tanh">(x)', "",
    ),
    "half groups": (
        21, "(float16[2,6,8] x, float16[6] s, float16[6] b) => (float16[2,6,8] y)",
        "y = GroupNormalization<num_groups=3>(x,s,b)", "",
    ),
    "half rms": (
        23, "(float16[2,6] x, float16[6] s) => (float16[2,6] y)", "y = RMSNormalization(x,s)", "",
    ),
    "mish": (18, "(float[2,3] x) => (float[2,3] y)", "y = Mish(x)", ""),
    "mish of 22": (22, "(float[2,3] x) => (float[2,3] y)", "y = Mish(x)", ""),
    "swish": (24, "(float[2,3] x) => (float[2,3] y)", "y = Swish<alpha=1.5>(x)", ""),
    "attention of heads": (
        23, "(float[2,4,8] q, float[2,5,8] k, float[2,5,8] v) => (float[2,4,8] y)",
        "y = Attention<q_num_heads=2,kv_num_heads=2>(q,k,v)", "",
    ),
    "causal attention": (
        23, "(float[2,2,4,8] q, float[2,2,4,8] k, float[2,2,4,8] v) => (float[2,2,4,8] y)",
        "y = Attention<is_causal=1>(q,k,v)", "",
    ),
    "rotary": (
        23, "(float[1,2,4,8] q, float[4,4] c, float[4,4] s, int64[1,4] p) => (float[1,2,4,8] y)",
        "y = RotaryEmbedding(q,c,s,p)", "",
    ),
    "centre": (18, "(float[5,7] x) => (float[4,9] y)", "y = CenterCropPad(x,s)", "<int64[2] s={4,9}>"),
    "grid": (20, "(float[1,1,4,4] x, float[1,3,3,2] g) => (float[1,1,3,3] y)", "y = GridSample(x,g)", ""),
    "cubic grid": (
        20, "(float[1,1,4,4] x, float[1,3,3,2] g) => (float[1,1,3,3] y)",
        'y = GridSample<mode="cubic",padding_mode="border">(x,g)', "",
    ),
    "equal parts": (18, "(float[6] x) => (float[3] a, float[3] b)", "a, b = Split<num_outputs=2>(x)", ""),
    "unequal parts": (
        18, "(float[2,7] x) => (float[2,3] a, float[2,3] b, float[2,1] c)",
        "a, b, c = Split<num_outputs=3,axis=-1>(x)", "",
    ),
    "parts of unknown size": (
        18, "(float[2,n] x) => (float[2,k] a, float[2,l] b)", "a, b = Split<num_outputs=2,axis=1>(x)", "",
    ),
    "padded axis": (
        18, "(float[2,3] x) => (float[2,6] y)", "y = Pad(x,p,,a)", "<int64[1] a={-1}, int64[2] p={1,2}>",
    ),
    "pads at run time": (
        18, "(float[2,3] x, int64[2] p) => (float[2,n] y)", "y = Pad(x,p,,a)", "<int64[1] a={1}>",
    ),
    "every pad": (
        19, "(float[2,3] x) => (float[2,5] y)", 'y = Pad<mode="reflect">(x,p)', "<int64[4] p={0,1,0,1}>",
    ),
    "scaled axes": (
        19, "(float[1,2,3,4] x) => (float[1,2,6,8] y)", 'y = Resize<axes=[2,3],mode="linear">(x,,f)',
        "<float[2] f={2.,2.}>",
    ),
    "sized axes": (
        18, "(float[1,2,3,4] x) => (float[1,2,7,5] y)", 'y = Resize<axes=[-2,-1],mode="cubic">(x,,,s)',
        "<int64[2] s={7,5}>",
    ),
    "nearest": (
        19, "(float[n,2,3,4] x) => (float[n,2,6,8] y)",
        'y = Resize<coordinate_transformation_mode="asymmetric",nearest_mode="floor">(x,,f)',
        "<float[4] f={1.,1.,2.,2.}>",
    ),
    "transform": (20, "(float[1,8,1] x) => (float[1,8,2] y)", "y = DFT(x,,a)", "<int64 a={1}>"),
    "transform of the last but one": (20, "(float[1,3,8,1] x) => (float[1,3,8,2] y)", "y = DFT(x)", ""),
    "infinite": (20, "(float16[3] x) => (bool[3] y)", "y = IsInf(x)", ""),
    "any": (20, "(bool[2,3] x) => (bool[2,1] y)", "y = ReduceMax(x,a)", "<int64[1] a={-1}>"),
    "all": (20, "(bool[2,3] x) => (bool[3] y)", "y = ReduceMin<keepdims=0>(x,a)", "<int64[1] a={0}>"),
    "there": (18, "(float[2] x) => (bool y)", "y = OptionalHasElement(x)", ""),
    "the element": (18, "(float[2] x) => (float[2] y)", "y = OptionalGetElement(x)", ""),
    "cast": (25, "(float[3] x) => (float16[3] y)", "y = Cast<to=10>(x)", ""),
    "cast as another": (19, "(float[3] x, int32[1] t) => (int32[3] y)", "y = CastLike(x,t)", ""),
    "pooled": (
        22, "(float[1,2,5,5] x) => (float[1,2,3,3] y)",
        "y = AveragePool<kernel_shape=[3,3],dilations=[1,1]>(x)", "",
    ),
    "quantized": (
        23, "(float[2,3] x) => (float[2,3] y)",
        "q = QuantizeLinear<output_dtype=2,precision=1>(x,s,z) y = DequantizeLinear<output_dtype=1>(q,s,z)",
        "<float s={0.5}, uint8 z={3}>",
    ),
    "text": (19, "(float[2] x) => (bool[2] y)", "z = Equal(x,x) y = Identity(z)", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_NODE)
def test_an_operator_computes_the_same_in_opset_17(name: str) -> None:
    assert_the_same(model(*ONE_NODE[name]))


@pytest.mark.parametrize("highest", [13, 14, 15, 16, 18, 19])
@pytest.mark.parametrize(
    "name",
    "gelu by tanh,layer,layer without bias,channels scaled,rms,causal attention,sized axes".split(","),
)
def test_an_operator_computes_the_same_in_other_opsets(name: str, highest: int) -> None:
    before = model(*ONE_NODE[name])
    if highest < opset(before):
        assert_the_same(before, highest)
    else:
        assert lower_opset(before, highest) == before


def test_what_runtimes_fuse_is_made_of_what_they_know() -> None:
    assert operators(assert_the_same(model(*ONE_NODE["gelu"]))) == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert operators(assert_the_same(model(*ONE_NODE["stored scales"]))) == [
        "Shape", "Reshape", "InstanceNormalization", "Reshape", "Mul", "Add",
    ]  # fmt: skip
    swish = ["Constant", "Cast", "Mul", "Sigmoid", "Mul"]
    assert operators(assert_the_same(model(*ONE_NODE["swish"]))) == swish


REFUSED = {
    "BitwiseAnd 'making y': the operator came with opset 18": (
        18, "(int32[3] x) => (int32[3] y)", "y = BitwiseAnd(x,x)", "",
    ),
    "Col2Im .* came with opset 18": (
        18, "(float[1,4,4] x) => (float[1,1,3,3] y)", "y = Col2Im(x,s,k)",
        "<int64[2] s={3,3}, int64[2] k={2,2}>",
    ),
    "ReduceMean 'making y': its axes are computed at run time .'a'.": (
        18, "(float[2,3] x, int64[1] a) => (float[k,l] y)", "y = ReduceMean(x,a)", "",
    ),
    "its axes are computed at run time": (  # a stored tensor that is also an input is no constant
        18, "(float[2,3] x, int64[1] a) => (float[k,l] y)", "y = ReduceMean(x,a)", "<int64[1] a={1}>",
    ),
    "its mean and deviation are read": (
        17, "(float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] m)", "y, m = LayerNormalization(x,s)",
        "",
    ),
    "Pad .*mode 'wrap' came with opset 19": (
        19, "(float[2,3] x) => (float[2,5] y)", 'y = Pad<mode="wrap">(x,p)', "<int64[4] p={0,1,0,1}>",
    ),
    "antialias = 1 came with opset 18": (
        18, "(float[1,1,4,4] x) => (float[1,1,2,2] y)", 'y = Resize<antialias=1,mode="linear">(x,,f)',
        "<float[4] f={1.,1.,0.5,0.5}>",
    ),
    "keep_aspect_ratio_policy 'not_larger' came with opset 18": (
        18, "(float[1,1,4,4] x) => (float[1,1,2,2] y)",
        'y = Resize<axes=[2,3],keep_aspect_ratio_policy="not_larger",mode="linear">(x,,,s)',
        "<int64[2] s={2,3}>",
    ),
    "coordinate_transformation_mode 'half_pixel_symmetric' came with opset 19": (
        19, "(float[1,1,4,4] x) => (float[1,1,2,2] y)",
        'y = Resize<coordinate_transformation_mode="half_pixel_symmetric",mode="linear">(x,,f)',
        "<float[4] f={1.,1.,0.5,0.5}>",
    ),
    "GridSample .*samples no image": (
        20, "(float[1,1,2,2,2] x, float[1,2,2,2,3] g) => (float[1,1,2,2,2] y)", "y = GridSample(x,g)", "",
    ),
    "attribute dilations = .2, 2. came with opset 19": (
        22, "(float[1,1,5,5] x) => (float[1,1,3,3] y)",
        "y = AveragePool<kernel_shape=[2,2],dilations=[2,2]>(x)", "",
    ),
    "QuantizeLinear 'making y': 'x' is tensor.float16.": (
        19, "(float16[2] x, float16 s) => (uint8[2] y)", "y = QuantizeLinear(x,s)", "",
    ),
    "'y' is tensor.float8e4m3fn.": (19, "(float[2] x) => (float8e4m3fn[2] y)", "y = Cast<to=17>(x)", ""),
    "attribute block_size = 2 came with opset 21": (
        21, "(float[4] x, float[2] s) => (uint8[4] y)", "y = QuantizeLinear<axis=0,block_size=2>(x,s)", "",
    ),
    "reduction 'max' came with opset 18": (
        18, "(float[3] x, int64[1,1] i, float[1] u) => (float[3] y)",
        'y = ScatterND<reduction="max">(x,i,u)', "",
    ),
    "'x' is tensor.bfloat16., which it takes only in newer": (
        22, "(bfloat16[1,1,4] x, bfloat16[1,1,2] w) => (bfloat16[1,1,3] y)", "y = Conv(x,w)", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_older_form_is_refused_by_name_with_a_way_out(why: str) -> None:
    highest = 16 if "mean and deviation" in why else 17
    with pytest.raises(UnsupportedOperator, match=why) as caught:
        lower_opset(model(*REFUSED[why]), highest)
    assert f"opset {highest} is required" in caught.value.message
    assert caught.value.hint
    assert caught.value.data["operator"] in REFUSED[why][2]


def test_a_newer_opset_than_those_known_is_refused() -> None:
    problem = f"opset {NEWEST + 1} to 17: only {OLDEST} to {NEWEST} are supported"
    with pytest.raises(ModelError, match=problem):
        lower_opset(model(NEWEST + 1, "(float[2] x) => (float[2] y)", "y = Relu(x)"), 17)


def test_zeros_in_the_extents_of_a_reshape_are_what_decides_below_opset_14() -> None:
    signature, body = "(float[2,3] x) => (float[a,b] y)", "y = Reshape<allowzero=1>(x,s)"
    assert_the_same(model(18, signature, body, "<int64[2] s={3,-1}>"), 13)
    with pytest.raises(UnsupportedOperator, match="allowzero = 1"):
        lower_opset(model(18, signature, body, "<int64[2] s={0,3}>"), 13)


def test_graphs_inside_nodes_are_lowered_with_constants_from_outside() -> None:
    body = (
        "y = If(c) <then_branch = t () => (float[2,3] a) { q = Relu(x) a = Gelu(q) },"
        " else_branch = e () => (float[2,3] b) { r = ReduceMax(x,axes) b = Sub(x,r) }>"
    )
    before = model(20, "(bool c, float[2,3] x) => (float[2,3] y)", body, "<int64[1] axes={0}>")
    for condition in (True, False):
        x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
        assert_the_same(before, 17, {"c": np.array(condition), "x": x})


def test_the_models_own_functions_are_written_out() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
    g (float[2,3] x) => (float[2,3] y) { y = mine.Twice(x) }
    <domain: "mine", opset_import: ["" : 20]> Twice (a) => (b) { c = Gelu(a) b = Add(c, c) }
    """
    after = assert_the_same(parser.parse_model(text))
    assert not after.functions


def test_operators_of_other_domains_stay_as_they_are() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[2,3] x) => (float[2,3] y) { h = com.microsoft.QuickGelu(x) y = Gelu(h) }
    """
    after = assert_the_same(parser.parse_model(text))
    assert operators(after)[0] == "QuickGelu"


def test_new_tensors_and_nodes_have_names_that_no_other_has() -> None:
    before = model(20, "(float[2] x) => (float[2] y)", "z = Relu(x) y = Gelu(z)")
    before.graph.node[0].name = "y/Erf"
    before.graph.node[0].output[0] = before.graph.node[1].input[0] = "y/erf"
    nodes = assert_the_same(before).graph.node
    assert len({node.name for node in nodes}) == len({node.output[0] for node in nodes}) == len(nodes) > 4


def test_every_operator_that_changed_is_either_known_here_or_refused() -> None:
    """A new opset of the onnx package cannot slip through: whatever is listed nowhere is refused."""
    from qcompile.compiler.opset.rewrites import DECOMPOSITIONS, REWRITES
    from qcompile.compiler.opset.schemas import COMPATIBLE

    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions.setdefault(schema.name, set()).add(schema.since_version)
    changed = {name for name, found in versions.items() if any(17 < v <= NEWEST for v in found)}
    new = {name for name in changed if min(versions[name]) > 17}
    bodies = {"AffineGrid", "Attention", "CenterCropPad", "Mish", "RotaryEmbedding", "Swish"}
    refused = {
        "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Col2Im", "DeformConv", "ImageDecoder",
        "RegexFullMatch", "StringConcat", "StringSplit", "TensorScatter",
    }  # fmt: skip
    assert new <= bodies | refused | DECOMPOSITIONS.keys()
    assert DECOMPOSITIONS.keys() - {"LayerNormalization"} <= new
    assert changed - new <= COMPATIBLE | REWRITES.keys()


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(REDUCTIONS),
    axes=st.none() | st.lists(st.integers(0, 2), max_size=3, unique=True),
    negative=st.booleans(),
    keepdims=st.integers(0, 1),
    noop=st.integers(0, 1),
    as_node=st.booleans(),
    version=st.sampled_from([18, 20, 23, 25]),
)
def test_a_reduction_keeps_its_axes_whatever_form_they_have(
    kind: str, axes: list[int] | None, negative: bool, keepdims: int, noop: int, as_node: bool, version: int
) -> None:
    values = None if axes is None else [a - 3 * negative for a in axes]
    listed, constant, stored = ", ".join(map(str, values or ())), "", ""
    if values is not None and as_node:
        constant = f"axes = Constant <value_ints: ints = [{listed}]> ()"
    elif values is not None:
        stored = f"<int64[{len(values)}] axes = {{{listed}}}>"
    reduced = 0 if noop and not axes else len(axes or (0, 1, 2))
    rank = 3 if keepdims else 3 - reduced
    result = f"float[{','.join('abc'[:rank])}]" if rank else "float"
    operands = "x" if values is None else "x, axes"
    body = f"[reduce] y = Reduce{kind} <keepdims = {keepdims}, noop_with_empty_axes = {noop}> ({operands})"
    before = model(version, f"(float[2,3,4] x) => ({result} y)", f"{constant} {body}", stored)
    feeds: Feeds = {"x": np.random.default_rng(0).uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)}
    if noop and not axes and kind in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
        with pytest.raises(UnsupportedOperator, match="noop_with_empty_axes"):
            lower_opset(before, 17)
        return
    after = assert_the_same(before, 17, feeds)
    lowered = next((node for node in after.graph.node if node.op_type.startswith("Reduce")), None)
    if kind != "Sum" and lowered is not None:
        assert len(lowered.input) == 1
        given = {attribute.name: list(attribute.ints) for attribute in lowered.attribute}
        assert given.get("axes", []) == (values or [])


@settings(max_examples=40, deadline=None)
@given(
    axes=st.lists(st.integers(-3, 2), min_size=1, max_size=3, unique_by=lambda axis: axis % 3),
    pads=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    mode=st.sampled_from(["constant", "edge", "reflect"]),
    stored=st.booleans(),
)
def test_pads_of_some_axes_are_those_of_all(
    axes: list[int], pads: list[int], mode: str, stored: bool
) -> None:
    given = np.array(pads[: len(axes)] + pads[-len(axes) :], np.int64)
    values = {"axes": axes, "pads": given.tolist()} if stored else {"axes": axes}
    declared = ", ".join(
        f"int64[{len(v)}] {name} = {{{','.join(map(str, v))}}}" for name, v in values.items()
    )
    inputs = "float[3,4,5] x" if stored else f"float[3,4,5] x, int64[{len(given)}] pads"
    body = f'y = Pad<mode="{mode}">(x, pads, , axes)'
    before = model(18, f"({inputs}) => (float[a,b,c] y)", body, f"<{declared}>")
    feeds: Feeds = {"x": np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)}
    assert_the_same(before, 17, feeds if stored else feeds | {"pads": given})


@settings(max_examples=40, deadline=None)
@given(extent=st.integers(1, 12), count=st.integers(1, 4), known=st.booleans(), axis=st.sampled_from([0, -2]))
def test_parts_are_as_large_as_they_were(extent: int, count: int, known: bool, axis: int) -> None:
    assume(-(-extent // count) * (count - 1) < extent)  # ONNX Runtime makes no empty part
    names = [f"y{index}" for index in range(count)]
    results = ", ".join(f"float[k{name},2] {name}" for name in names)
    body = f"{', '.join(names)} = Split<num_outputs={count}, axis={axis}>(x)"
    before = model(18, f"(float[{extent if known else 'n'},2] x) => ({results})", body)
    after = assert_the_same(before, 17, {"x": np.arange(2.0 * extent, dtype=np.float32).reshape(extent, 2)})
    assert ("Shape" in operators(after)) is not known
