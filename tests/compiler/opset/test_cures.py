"""Graphs that engines are known to compute wrongly are found, and rewritten to the same, 80 dB or better."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from torch import nn
from two_opsets import model, operators, run
from written_models import model_of, normal

from qcompile.compiler.opset.cures import FAULTY_GRAPHS
from qcompile.engines.onnx_runtime import runner as of_onnx_runtime
from qcompile.engines.openvino import words as of_openvino
from qcompile.engines.tensorrt.known_faults import KNOWN_FAULTS
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import copy_model
from qcompile.model.outputs.judgement import output_error
from qcompile.model.sessions.random_input import random_feeds

Feeds = dict[str, NDArray[Any]]


def cured(name: str, before: onnx.ModelProto, feeds: Feeds, *, reference: bool = False) -> onnx.ModelProto:
    """The model after the cure, which leaves nothing to find, checked against the model before it."""
    faulty = FAULTY_GRAPHS[name]
    assert faulty.find(before)
    assert faulty.rewrite is not None
    after = copy_model(before)
    faulty.rewrite(after)
    onnx.checker.check_model(after, full_check=True)
    assert faulty.find(after) == []
    expected = ReferenceEvaluator(before).run(None, feeds) if reference else run(before, feeds)
    for one, other in zip(expected, run(after, feeds), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert output_error(one, other).snr_db >= 80
    return after


def test_each_known_fault_has_its_finder_and_each_rewrite_its_cure() -> None:
    known = [*KNOWN_FAULTS, *of_onnx_runtime.KNOWN_FAULTS, *of_openvino.KNOWN_FAULTS]
    assert {fault.name for fault in known} == set(FAULTY_GRAPHS)
    assert len(known) == len(FAULTY_GRAPHS)
    for fault in known:
        assert (fault.action == "rewrite") == (FAULTY_GRAPHS[fault.name].rewrite is not None), fault.name
        assert fault.issues, "a fault without a report or a source is a rumour"


SAMPLE = "(float[2, 3, 5, 7] x, float[2, 4, 6, 2] g) => (float[2, 3, 4, 6] y)"


GROUPS = "(float[2, 4, 3, 3] x, float[4] s, float[4] b) => (float[2, 4, 3, 3] y)"


@pytest.mark.parametrize(
    ("name", "graph", "shapes", "expected"),
    [
        ("grid-sample-mode", (20, SAMPLE, 'y = GridSample <mode="linear", align_corners=1> (x, g)'),
         {"x": (2, 3, 5, 7), "g": (2, 4, 6, 2)}, ["GridSample"]),
        ("shape-slice", (15, "(float[N, 3, 4] x) => (int64[2] y)", "y = Shape <start=1> (x)"),
         {"x": (2, 3, 4)}, ["Shape", "Slice"]),
        ("group-norm-of-one", (21, GROUPS, "y = GroupNormalization <num_groups=1> (x, s, b)"),
         {"x": (2, 4, 3, 3), "s": (4,), "b": (4,)}, None),
    ],
)  # fmt: skip
def test_a_form_that_is_read_wrongly_is_written_otherwise(
    name: str, graph: tuple[Any, ...], shapes: dict[str, tuple[int, ...]], expected: list[str] | None
) -> None:
    arrays = {key: normal(*shape, seed=seed) for seed, (key, shape) in enumerate(shapes.items())}
    arrays["x"] += np.arange(arrays["x"].shape[1]).reshape(-1, *[1] * (arrays["x"].ndim - 2))
    after = cured(name, model(*graph), arrays)
    assert expected in (None, operators(after))
    assert [item.name for item in after.graph.node[0].attribute if item.name == "mode"] == []


LEVELS = """
    a = GridSample <mode="bilinear", padding_mode="%s", align_corners=%d> (x, g)
    b = GridSample <mode="bilinear", padding_mode="%s", align_corners=%d> (z, g)
    s = Unsqueeze (a, m)  t = Unsqueeze (b, m)  c = Concat <axis=-2> (s, t)
    f = Flatten <axis=3> (c)  y = Identity (c)
"""
ATTENTION = "(float[N, 3, 5, 7] x, float[N, 3, 2, 3] z, float[N, 4, 6, 2] g) => (float[N, 3, 4, 2, 6] y)"


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("batch", [1, 3])
def test_samples_of_a_deformable_attention_are_gathered(padding: str, aligned: int, batch: int) -> None:
    text = LEVELS % (padding, aligned, padding, aligned)
    before = model(16, ATTENTION, text, "<int64[1] m = {-2}>")
    grid = 1.3 * normal(batch, 4, 6, 2, seed=1)  # some points lie outside
    feeds = {"x": normal(batch, 3, 5, 7), "z": normal(batch, 3, 2, 3, seed=2), "g": grid}
    after = cured("deformable-attention", before, feeds)
    assert "GridSample" not in operators(after)


def test_a_sample_that_cannot_be_gathered_is_left_to_be_found() -> None:
    text = LEVELS % ("reflection", 0, "zeros", 0)
    before = model(16, ATTENTION, text, "<int64[1] m = {-2}>")
    FAULTY_GRAPHS["deformable-attention"].rewrite(before)  # type: ignore[misc]
    assert operators(before).count("GridSample") == 1


@pytest.mark.parametrize("kind", ["float", "float16", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumsums_of_several_kinds_leave_one_kind(kind: str, axis: int, exclusive: int, reverse: int) -> None:
    other = {0: 1, 1: 0, -1: 0}[axis]
    before = model(
        17,
        f"({kind}[B, 3, 4] x) => ({kind}[B, 3, 4] y, {kind}[B, 3, 4] z, {kind}[B, 3, 4] w)",
        f"y = CumSum (x, o) w = CumSum (y, o) z = CumSum <exclusive={exclusive}, reverse={reverse}> (x, a)",
        f"<int64 o = {{{other}}}, int64 a = {{{axis}}}>",
    )
    dtype = {"float": np.float32}.get(kind) or np.dtype(kind)
    after = cured("cumsum-axes", before, {"x": (8 * normal(2, 3, 4)).round().astype(dtype)})
    assert operators(after).count("CumSum") == 2


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_mods_of_integers_divide_integers(kind: str) -> None:
    before = model(17, f"({kind}[11] x, {kind}[11] d) => ({kind}[11] y)", "y = Mod (x, d)")
    values = [18542495, 2147483647, -7, 7, -8, 0, 31, -2147483000, 70000, -70000, -200006]
    divisors = [32, 32, 4, -4, 4, 5, 32, 7, 100003, 100003, -100003]
    feeds = {"x": np.array(values, kind), "d": np.array(divisors, kind)}
    after = cured("mod-by-float", before, feeds)
    np.testing.assert_array_equal(run(after, feeds)[0][:2], [31, 31])  # where the report has -1


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_read_time_first(operator: str, gates: int) -> None:
    # ONNX Runtime refuses layout 1; ONNX's reference is what is compared with.
    before = model_of(
        f"""(float[2,5,3] x) => (float[2,5,1,4] y, float[2,1,4] h) {{
        [layer] y, h = {operator}<hidden_size=4, layout=1>(x, w, r) }}""",
        w=normal(1, 4 * gates, 3, seed=1), r=normal(1, 4 * gates, 4, seed=2),
    )  # fmt: skip
    cured("recurrent-layout", before, {"x": normal(2, 5, 3)}, reference=True)


MHA = """
    q = Transpose <perm = [0, 2, 1, 3]> (%s)
    k = Relu (z)  s = MatMul (q, k)  d = Mul (s, f)  p = Softmax <axis=-1> (d)
    v = Relu (w)  y = MatMul (p, v)
"""
MHA_IO = "(float[1, 5, 2, 8] x, float[1, 2, 8, 5] z, float[1, 2, 5, 8] w) => (float[1, 2, 5, 8] y)"


KEYS = """
    t = Transpose <perm = [0, 2, 1]> (x)  i = Reshape (t, image)
    c = Conv <kernel_shape = [2, 2], strides = [2, 2]> (i, w)
    f = Reshape (c, tokens)  n = Transpose <perm = [0, 2, 1]> (f)  k = MatMul (n, p)
    kt = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (x, kt)  q = Softmax <axis=-1> (s)  y = MatMul (q, k)
"""
KEYS_STORED = (
    "<int64[4] image = {0, 2, 4, 4}, int64[3] tokens = {0, 2, 4}, float[2, 2] p = {1, 0, 0, 1}, "
    "float[2, 2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}>"
)


ROTATED = """
    h, r = Split <axis = 1> (x, parts)  a = Mul (r, cos)  b = Mul (r, sin)  t = Add (a, b)
    c = Concat <axis = 1> (%s, t)  q = Mul (c, f)  s = MatMul (q, k)  p = Softmax <axis=-1> (s)
    y = MatMul (p, v)
"""
ROTATED_STORED = (
    "<int64[2] parts = {1, 4}, float[4] cos = {1, 1, 1, 1}, float[4] sin = {1, 1, 1, 1}, float f = {2}>"
)


@pytest.mark.parametrize("version", [11, 13, 17])
@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize(("axes", "keep"), [("1", 0), ("0, -1", 1), ("-2, -1", 0)])
def test_reductions_that_lose_their_axes_become_sums(
    version: int, operator: str, axes: str, keep: int
) -> None:
    body = f"y = {operator} <axes = [{axes}], keepdims = {keep}> (x)"
    shape = ", ".join("M" for _ in range(3 if keep else 2 if axes == "1" else 1))
    before = model(version, f"(float[B, 3, L] x) => (float[{shape}] y)", body)
    after = cured("reduced-axes", before, {"x": 40 * np.abs(normal(2, 3, 5)) + 0.1})
    assert operator not in operators(after)
    if (operator, axes) == ("ReduceLogSumExp", "1"):  # a sum of nothing is nothing
        x = np.array([[[-np.inf], [-np.inf], [-np.inf]], [[1], [-np.inf], [1]]], np.float32)
        np.testing.assert_allclose(run(after, {"x": x})[0], [[-np.inf], [1 + np.log(2)]], rtol=1e-6)


LEVEL_SIZES = ((8, 8), (4, 4), (2, 2))


class Attention(nn.Module):
    """Samples of the levels of a memory [n, cells, width], weighed and added, as in Deformable DETR."""

    def forward(self, grids: torch.Tensor, memory: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        sampled = []
        for level, value in enumerate(memory.split([height * width for height, width in LEVEL_SIZES], dim=1)):
            image = value.transpose(1, 2).reshape(memory.shape[0], -1, *LEVEL_SIZES[level])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(nn.functional.grid_sample(image, grid, align_corners=False))
        return (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)


@pytest.mark.parametrize("version", [18, 20])
def test_the_levels_that_pytorch_exports_are_found_and_gathered(version: int, tmp_path: Path) -> None:
    inputs = torch.rand(1, 5, 2, 3, 4, 2), torch.rand(2, 84, 8), torch.rand(2, 1, 5, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's exporter warns of itself
        program = torch.onnx.export(Attention(), inputs, dynamo=True, opset_version=version, verbose=False)
    assert program is not None
    program.save(tmp_path / "m.onnx")
    before = onnx.load(tmp_path / "m.onnx")
    assert len(FAULTY_GRAPHS["deformable-attention"].find(before)) == len(LEVEL_SIZES)
    after = cured("deformable-attention", before, random_feeds(model_io(before).inputs))
    assert "GridSample" not in operators(after)
    assert FAULTY_GRAPHS["grid-sample-mode"].find(after) == []


SCATTER = "(float[4, 4] x, int64[2, 1] i, float[2, 4] u) => (float[4, 4] y)"
BEHIND_IF = """
    s = If (c) <then_branch = a () => (float[1, 1, 4, 6] t) { t = Relu(x) },
                else_branch = b () => (float[1, 1, 4, 6] e) { e = Neg(x) }>
    p = Transpose <perm = [0, 1, 3, 2]> (s)  y = Resize <mode="linear"> (p, , k)
"""
IF_IO = "(bool c, float[1, 1, 4, 6] x) => (float[1, 1, 12, 8] y)"
IF_STORED = "<float[4] k = {1, 1, 2, 2}>"
HALF = "<float f = {0.5}>"
ONE = KEYS_STORED.replace("<", "<int64[1] one = {3}, ")
ROTATED_IO = "(float[B, 5, 4] x, float[B, 4, N] k, float[B, N, 4] v) => (float[B, M, 4] y)"
SCALED = """
    low = ReduceMin <axes = [1, 2, 3]> (x)  high = ReduceMax <axes = [1, 2, 3]> (x)
    r = Sub (high, low)  d = Sub (x, low)  n = Div (d, r)  z = Relu (n)
"""
SCALED_IO = "(float[B, 1, 4, 4] x) => (float[B, 1, 4, 4] y)"


def keys_io(batch: str) -> str:
    return f"(float[{batch}, 16, 2] x) => (float[{batch}, 16, 2] y)"


FOUND: list[tuple[str, int, tuple[Any, ...]]] = [
    ("grid-sample-mode", 0, (16, SAMPLE, 'y = GridSample <mode="bilinear"> (x, g)')),
    ("grid-sample-mode", 0, (20, SAMPLE, 'y = GridSample <mode="nearest"> (x, g)')),
    ("deformable-attention", 0, (16, SAMPLE, 'y = GridSample <mode="bilinear"> (x, g)')),  # a lone one
    ("cumsum-axes", 0, (17, "(float[2, 4] x) => (float[2, 4] z)", "y = CumSum (x, a) z = CumSum (y, b)",
                        "<int64 a = {1}, int64 b = {-1}>")),  # of one kind
    ("mod-by-float", 0, (17, "(float[4] x, float[4] d) => (float[4] y)", "y = Mod <fmod=1> (x, d)")),
    ("mod-by-float", 0, (17, "(float[N, 4] x, int64[2] d) => (int64[2] y)", "s = Shape (x) y = Mod (s, d)")),
    ("group-norm-of-one", 0, (21, GROUPS, "y = GroupNormalization <num_groups=2> (x, s, b)")),
    ("reduced-axes", 0, (17, "(float[2, 3] x) => (float[1, 1] y)", "y = ReduceL1 (x)")),
    ("reduced-axes", 0, (18, "(float[2, 3] x) => (float[2, 1] y)", "y = ReduceL1 (x, a)",
                         "<int64[1] a = {1}>")),
    ("scatter-reduction", 1, (16, SCATTER, 'y = ScatterND <reduction="mul"> (x, i, u)')),
    ("scatter-reduction", 0, (16, SCATTER, 'y = ScatterND <reduction="none"> (x, i, u)')),
    ("resize-behind-if", 1, (17, IF_IO, BEHIND_IF, IF_STORED)),
    ("resize-behind-if", 0, (17, IF_IO, BEHIND_IF.replace("Transpose <perm = [0, 1, 3, 2]> (s)", "Relu(s)"),
                             IF_STORED)),
    ("transposed-input-attention", 1, (17, MHA_IO, MHA % "x", HALF)),
    ("transposed-input-attention", 0, (17, MHA_IO, "e = Relu (x)" + MHA % "e", HALF)),
    ("fused-attention-sm120", 1, (17, MHA_IO, "e = Relu (x)" + MHA % "e", HALF)),
    ("batched-reduced-keys", 1, (17, keys_io("B"), KEYS, ONE)),
    ("batched-reduced-keys", 1, (17, keys_io("2"), KEYS, ONE)),
    ("batched-reduced-keys", 0, (17, keys_io("1"), KEYS, ONE)),  # one sample has no other slot
    ("batched-reduced-keys", 0, (17, keys_io("B"), KEYS.replace(
        "strides = [2, 2]", "strides = [1, 1], pads = [0, 0, 1, 1]"), ONE)),
    ("batched-reduced-keys", 0, (17, keys_io("B"), KEYS.replace(
        "i = Reshape (t, image)", "e = Unsqueeze (t, one)  i = Relu (e)"), ONE)),
    ("partly-rotated-attention", 1, (17, ROTATED_IO, ROTATED % "h", ROTATED_STORED)),
    ("partly-rotated-attention", 0, (17, ROTATED_IO, ROTATED % "t", ROTATED_STORED)),
    ("normalized-and-back", 1, (17, SCALED_IO, SCALED + "m = Mul (z, r)  y = Add (m, low)")),
    ("normalized-and-back", 0, (17, SCALED_IO, SCALED + "y = Mul (z, r)")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "count", "graph"), FOUND)
def test_a_graph_is_found_where_it_is_faulty_alone(name: str, count: int, graph: tuple[Any, ...]) -> None:
    assert len(FAULTY_GRAPHS[name].find(model(*graph))) == count
