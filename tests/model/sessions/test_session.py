"""The probe of saturating kernels: what it says of this machine is true, and recordings are what it said.

ONNX Runtime's optimizer makes another MaxPool of one behind a Pad of zeros; no session of ours does.
Which planned nodes it left in another precision is told by the names that it gives.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated import require_emulated, run_emulated
from numpy.typing import NDArray
from onnx import helper
from written_models import model_of

import qcompile
import qcompile.model.graph.saturating_kernels as home
from qcompile.core.processor import isa_here, isa_of
from qcompile.engines.registry import engine
from qcompile.model.graph.graph_rules import NONE, SaturatingKernels, graph_rules
from qcompile.model.graph.onnx_file import Graph
from qcompile.model.graph.saturating_kernels import probe, saturating_kernels
from qcompile.model.sessions import session
from qcompile.model.sessions.session import (
    has_zero_padded_pool,
    make_session,
    missed_nodes,
    session_facts,
    session_options,
)
from qcompile.spec.words import ISAS

LARGE = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[N, 256] x) => (float[N, 256] y) { y = MatMul(x, w) }", "x @ w"),
        ("(float[N, 256] x) => (float[N, 256] y, float[256, 256] w) { y = Identity(x) }", "w"),
        ("(float[N, 256] x) => (float[N, 256] y) { y = Identity(x) }", "x"),
        (
            """(float[N, 256] x) => (float[N, 256] y) { y = If(c) <
            then_branch = t () => (float[N, 256] a) { a = MatMul(x, w) },
            else_branch = e () => (float[N, 256] b) { b = Identity(x) }> }""",
            "x @ w",
        ),
    ],
    ids=["read by a node", "an output", "read by nothing", "read in a branch"],
)
def test_a_session_computes_with_weights_in_memory(text: str, expected: str) -> None:
    """ONNX Runtime reads them where they lie, and crashed without them; it refuses what nothing reads."""
    graph = Graph(model_of(text, w=LARGE, c=np.array(True)), Path("m.onnx"))
    made = make_session(graph, session_options())
    del graph
    gc.collect()
    others = [np.full((256, 256), np.nan, np.float32) for _ in range(64)]  # over what was freed
    x = np.ones((2, 256), np.float32)
    found = made.run(None, {"x": x})[-1]
    np.testing.assert_allclose(
        found, {"x @ w": x @ LARGE, "w": LARGE, "x": x}[expected], rtol=1e-5, atol=1e-5
    )
    assert len(others) == 64


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_processor_is_one_that_was_recorded_or_saturates_nowhere(target: str) -> None:
    """Natively, whichever processor this is: with VNNI and on ARM nothing saturates."""
    found = probe(target)
    assert found == graph_rules(target).saturates.get(isa_here(), NONE)


def test_onnx_runtime_on_an_emulated_haswell_is_as_recorded(tmp_path: Path) -> None:
    require_emulated("haswell")
    models = [home._static_layers(), home._dynamic_layers()]
    outputs = run_emulated("haswell", [(model, dict(feeds)) for model, feeds in models], tmp_path)
    orders = {name: home._order(sums) for each in outputs for name, sums in each.items()}
    assert SaturatingKernels(**orders) == graph_rules("onnxruntime").saturates["avx2"]  # type: ignore[arg-type]


def test_openvino_told_to_use_avx2_is_as_recorded() -> None:
    if isa_here() in ("neon", "neon-dotprod", "i8mm"):
        pytest.skip("ARM has no AVX2")
    code = """from qcompile.model.graph.graph_rules import graph_rules
from qcompile.model.graph.saturating_kernels import probe
print(probe("openvino") == graph_rules("openvino").saturates["avx2"])"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_another_instruction_set_is_looked_up_and_this_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    monkeypatch.setattr(home, "probe", lambda _: "asked")
    assert saturating_kernels("onnxruntime", "avx512-vnni") == "asked"
    monkeypatch.setattr(home, "isa_here", lambda: "avx2")
    monkeypatch.setattr(home, "probe", lambda _: NONE)  # a file for AVX2 is for every processor that has it
    assert saturating_kernels("openvino", "avx2") == graph_rules("openvino").saturates["avx2"]
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    assert saturating_kernels("onnxruntime", "avx2") == graph_rules("onnxruntime").saturates["avx2"]
    assert saturating_kernels("openvino", "amx") == NONE
    assert saturating_kernels("tensorrt", "avx512-vnni") == NONE
    assert not NONE


def test_features_of_a_processor_are_one_instruction_set() -> None:
    sets = (["avx2"], [], ["avx2", "avx512f"], ["avx2", "avx_vnni"], ["avx512_vnni", "avx_vnni"],
            ["avx512_vnni", "amx_int8"])  # fmt: skip
    assert [isa_of(one, arm=False) for one in sets] == [
        "avx2", "avx2", "avx2", "avx-vnni", "avx512-vnni", "amx",  # the third: AVX-512 without VNNI
    ]  # fmt: skip
    assert [isa_of(one, arm=True) for one in ([], ["asimddp"], ["asimddp", "i8mm"])] == [
        "neon", "neon-dotprod", "i8mm",
    ]  # fmt: skip
    assert isa_here() in ISAS


LOWEST = float("-inf")


def write(path: Path, value: float | None, *, operator: str = "MaxPool") -> Path:
    """x [n, 2, 7, 7] ─ Pad of one row and column ─ pool of 3 x 3 by 2 ─ y [n, 2, 4, 4]."""
    stored = {} if value is None else {"value": np.float32(value)}
    model = model_of(
        f"""(float[n,2,7,7] x) => (float[n,2,4,4] y) <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
            padded = Pad ({", ".join(["x", "pads", *stored])})
            [pool] y = {operator} <kernel_shape = [3, 3], strides = [2, 2]> (padded) }}""",
        **stored,
    )
    onnx.save(model, path)
    return path


def pooled(x: NDArray[np.float32], value: float) -> NDArray[np.float32]:
    """The largest of every window, by hand."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max(axis=(-2, -1)))


@pytest.fixture
def negative() -> NDArray[np.float32]:
    """Values below 0, which a padding of zeros covers at the border."""
    return -np.random.default_rng(0).uniform(0.1, 1, (2, 2, 7, 7)).astype(np.float32)


@pytest.mark.parametrize(
    ("operator", "value", "found"),
    [("MaxPool", None, True), ("MaxPool", 0.0, True), ("MaxPool", LOWEST, False), ("MaxPool", -1.0, False),
     ("AveragePool", 0.0, False)],
)  # fmt: skip
def test_only_zeros_are_lost(tmp_path: Path, operator: str, value: float | None, found: bool) -> None:
    path = write(tmp_path / "pool.onnx", value, operator=operator)
    assert has_zero_padded_pool(onnx.load(path)) is found
    assert bool(session_facts(path)[0]) is found


@pytest.mark.parametrize("version", [20, 21, 23])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_pairs_of_int8_run_in_every_opset(kind: str, version: int, tmp_path: Path) -> None:
    # ONNX Runtime 1.31.1 and 1.32.0 add a pair behind the Transpose, and refuse it from opset 21 on.
    text = f"""(float[N,4,3] x) => (float[N,3,4] y) <float s = {{0.5}}, {kind} z = {{0}}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Transpose <perm = [0,2,1]> (d) }}"""
    model, x = model_of(text, opset=version), np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    onnx.save(model, tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", Graph(model, Path("m.onnx"))):
        found = make_session(source, session_options()).run(None, {"x": x})[0]
        np.testing.assert_array_equal(found, x.transpose(0, 2, 1))


@pytest.mark.parametrize("value", [None, 0.0, LOWEST, -1.0])
def test_a_session_pools_the_zeros(
    tmp_path: Path, negative: NDArray[np.float32], value: float | None
) -> None:
    path = write(tmp_path / "pool.onnx", value)
    found = make_session(path, session_options()).run(None, {"x": negative})[0]
    np.testing.assert_array_equal(found, pooled(negative, value or 0.0))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_what_is_built_pools_the_zeros(tmp_path: Path, negative: NDArray[np.float32], target: str) -> None:
    path = write(tmp_path / "pool.onnx", 0.0)
    simplified = qcompile.simplify(path, tmp_path / "simplified.onnx")
    qcompile.build(simplified.path, tmp_path / "built.onnx", target=target)
    with engine(target).open(str(tmp_path / "built.onnx")) as runner:
        found = runner.infer({"x": negative})["y"]
    np.testing.assert_array_equal(found, pooled(negative, 0.0))


LAYERS = ["mm", "mm2", "head", "mm_quant"]
FLOATS = helper.make_graph(
    [helper.make_node("Gemm", ["x", "w"], [f"out{i}"], name) for i, name in enumerate(LAYERS)], "g", [], []
)


def optimized(*nodes: str) -> onnx.ModelProto:
    """A graph of FusedGemm (float32) and QGemm (int8) by their names: "float fused mm"."""
    text = "(float[n,4] x) => (float[n,4] y) { y = Identity(x) }"
    model = model_of(text, imports=', "com.microsoft" : 1')
    for index, node in enumerate(nodes):
        kind, _, name = node.partition(" ")
        operator = {"float": "FusedGemm", "int8": "QGemm", "plain": "Gemm"}[kind]
        model.graph.node.append(helper.make_node(operator, ["x"], [f"made{index}"], name))
    return model


@pytest.mark.parametrize(
    ("nodes", "missed", "unknown"),
    [
        (["int8 mm", "int8 mm2"], [], []),
        (["int8 mm", "plain mm2"], ["mm2"], []),
        (["int8 mm/MatMulAddFusion", "float fused mm2/MatMulAddFusion"], ["mm2"], []),
        (["plain mm2_token_7", "int8 mm_token_12"], ["mm2"], []),
        (["int8 mm"], [], []),  # mm2 became part of another node
        (["int8 mm", "plain head"], [], []),  # a node that was not planned
        (["int8 mm", "int8 mm2", "plain mm_quant"], [], []),  # nor this, although the optimizer names so
        (["int8 mm", "float "], [], ["mm2"]),  # made by the optimizer, of what is not told
        (["int8 mm", "float fused other/Fusion"], [], ["mm2"]),
    ],
)
def test_names_tell_what_became_of_a_node(nodes: list[str], missed: list[str], unknown: list[str]) -> None:
    model = onnx.ModelProto(graph=FLOATS)
    found, left = missed_nodes(FLOATS.node[:2], model, optimized(*nodes), "int8")
    assert found == dict.fromkeys(missed, "fp32")
    assert left == unknown


@pytest.mark.parametrize(
    ("plain_ms", "other_ms", "said"),
    [
        (10.0, 19.0, "1.9 times as long"),
        (10.0, 10.5, ""),
        (10.0, 4.0, ""),
        (0.3, 3.0, ""),
        (3000.0, 6000.0, "2.0"),
    ],
)
def test_what_is_slower_than_its_float_model_is_said(
    plain_ms: float, other_ms: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, runs = [0.0], [0]

    def run(duration_ms: float) -> Callable[[], None]:
        def work() -> None:
            now_s[0] += duration_ms / 1e3
            runs[0] += 1

        return work

    monkeypatch.setattr(session.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(session, "_LEAST_S", 5e-4)
    notes = session.slower_note(run(plain_ms), run(other_ms))
    assert bool(notes) == bool(said)
    assert all(said in note for note in notes)
    assert now_s[0] < 2 or runs[0] == 4  # seconds; what takes longer runs twice
