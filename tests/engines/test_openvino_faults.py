"""Graphs that OpenVINO computes wrongly: each in its smallest form, wrong as it is, and right when cured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from openvino_faults import (
    CASES,
    CONV,
    IMAGE,
    JOINED,
    KERNEL,
    MEAN,
    SEEN,
    SEQUENCE,
    STATE,
    STORED,
    Values,
    arrays,
    as_written,
    by_channel,
    counted,
    cured,
    gathered,
    network,
    reshaped,
    scaled,
    shared,
)

import qcompile
from qcompile.compiler.opset.cures import FAULTY_GRAPHS
from qcompile.engines.openvino.words import KNOWN_FAULTS
from qcompile.model.outputs.judgement import output_error

openvino = pytest.importorskip("openvino")

RIGHT_DB = 60


def by_openvino(model: onnx.ModelProto | str, feeds: dict[str, Values], *, fixed: bool) -> list[Values]:
    """What a program gets that loads a file with nothing but OpenVINO."""
    core = openvino.Core()
    loaded = core.read_model(model if isinstance(model, str) else model.SerializeToString())
    if fixed:
        loaded.reshape({name: array.shape for name, array in feeds.items()})
    compiled = core.compile_model(loaded, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(feeds)
    return [results[output] for output in compiled.outputs]


def snr_db(model: onnx.ModelProto, computed: onnx.ModelProto, *, fixed: bool) -> float:
    """How near OpenVINO comes with one graph to what another says."""
    feeds = arrays(model)
    pairs = zip(as_written(model, feeds), by_openvino(computed, feeds, fixed=fixed), strict=True)
    return min(
        output_error(expected, found).snr_db if expected.shape == found.shape else -99.0
        for expected, found in pairs
    )


ALSO_FIXED = (
    "quantized-extremum",
    "reduced-axes",
    "reduced-channels",
    "quantized-factors",
    "reduced-scale",
    "gathered-scale",
    "shifted-count",
)


@pytest.mark.parametrize("fixed", [False, True], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("case", CASES)
def test_a_cured_graph_computes_what_the_graph_says(case: str, fixed: bool) -> None:
    name, before = CASES[case]
    assert FAULTY_GRAPHS[name].find(before)
    after = cured(name, before)
    if FAULTY_GRAPHS[name].quantized:
        feeds = arrays(before)
        for expected, found in zip(as_written(before, feeds), as_written(after, feeds), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert snr_db(before, after, fixed=fixed) > RIGHT_DB


def test_a_process_that_one_scale_of_a_gathered_product_ends_goes_on_when_cured() -> None:
    """With one scale for all channels and a zero point, OpenVINO 2026.4.1 ends with SIGSEGV."""
    before = gathered("MatMul", "n,l,24", (1, 24, 8))
    [scale] = [tensor for tensor in before.graph.initializer if tensor.name == "w_s"]
    scale.CopyFrom(numpy_helper.from_array(np.full(8, 0.01, np.float32), "w_s"))
    for fixed in (False, True):
        assert snr_db(before, cured("gathered-scale", before), fixed=fixed) > RIGHT_DB


@pytest.mark.parametrize("case", CASES)
def test_the_graph_as_it_is_is_computed_wrongly(case: str) -> None:
    if not openvino.__version__.startswith(SEEN):
        pytest.skip(f"seen with OpenVINO {SEEN}, and {openvino.__version__} is installed")
    name, model = CASES[case]
    assert snr_db(model, model, fixed=False) < RIGHT_DB
    assert (snr_db(model, model, fixed=True) < RIGHT_DB) == (name in ALSO_FIXED)


RIGHT: dict[str, onnx.ModelProto] = {
    "no shapes": network(
        IMAGE, f"{CONV} r = Relu (c) q = Pair (r) g = GlobalAveragePool (q) y = Flatten (g)", "y",
        int8=KERNEL, b=(16,),
    ),
    "fixed": network(
        "2,16,6,6", f"{CONV} q = Pair (c) {STATE}", "q", "state", int8=KERNEL, b=(16,), **STORED
    ),
    "biased, reshaped": reshaped(pair="Pair", operands="p, w, b", b=(8,)),
    "sequence, reshaped": reshaped("MatMul", (1, 16, 8), SEQUENCE, (-1, 9, 2, 4), pair="Pair"),
    "mean": network(SEQUENCE, "m = ReduceMean <axes = [1]> (x) y = Pair (m)", "y"),
    "mean, scale": by_channel("ReduceMean", "t = Mul (r, k)"),
    "scale": scaled("r = Relu (m) t = Mul (r, k)"),
    "bias": scaled("a = Add (m, b) t = Relu (a)", first="m = MatMul (p, u)"),
    "batch first": reshaped(target=(0, 2, 4)),
    "no multiple": reshaped(target=(-1, 4, 8)),
    "biased conv, reshape, mean": network(
        IMAGE, f"{CONV} n = Relu (c) {MEAN}", "y", int8=KERNEL, b=(16,), **JOINED
    ),
    "matmul, relu, gather": gathered("MatMul", "n,l,24", (1, 24, 8), between="t = Relu (m)"),
    "matmul, bias, gather": gathered("MatMul", "n,l,24", (1, 24, 8), between="t = Add (m, b)", b=(8,)),
    "conv, relu read twice": shared("r = Relu (m) t = Tanh (r) y = Add (r, t)"),
    "counts of the first axis": counted("t = Sub (s, one)", axis=0),
    "counts of one axis of four": counted("t = Sub (s, one)", shape="n,2,l,16"),
    "counts, and the largest": counted("t = Max (s, two)"),
    "counts and others": counted("u = Unsqueeze (s, two) t = Add (u, i)"),
}  # fmt: skip
"""Graphs like those above, which OpenVINO computes rightly."""


@pytest.mark.parametrize("kind", RIGHT)
def test_a_graph_that_is_computed_rightly_stays(kind: str) -> None:
    model = RIGHT[kind]
    assert [fault.name for fault in KNOWN_FAULTS if FAULTY_GRAPHS[fault.name].find(model)] == []
    assert snr_db(model, model, fixed=False) > RIGHT_DB


POOLED = network(
    IMAGE, """c = Conv (x, w, b) r = Relu (c) m = ReduceMax <axes = [2, 3], keepdims = 0> (r)
        y = Gemm (m, v, d)""",
    "y", w=(16, 16, 3, 3), b=(16,), v=(16, 10), d=(10,),
)  # fmt: skip
# Two convolutions, and two steps of a recurrence that begins with zeros.
RECOGNIZER = network(
    IMAGE, f"""c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0) r0 = Relu (c0)
        c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1, b1) r1 = Relu (c1)
        rows = ReduceMean <axes = [2], keepdims = 0> (r1) {STATE}
        g0 = Gather <axis = 2> (rows, step0) k0 = Gemm (state, v, d) i0 = Gemm (g0, u, e) a0 = Add (i0, k0)
        h = Tanh (a0)
        g1 = Gather <axis = 2> (rows, step1) k1 = Gemm (h, v, d) i1 = Gemm (g1, u, e) a1 = Add (i1, k1)
        y = Tanh (a1)""",
    "y", w0=(16, 16, 3, 3), b0=(16,), w1=(16, 16, 3, 3), b1=(16,), v=(16, 16), d=(16,), u=(16, 16), e=(16,),
    step0=np.int64(0), step1=np.int64(1),
    **STORED | {"width": np.int64([16]), "value": np.float32([[0.0]])},
)  # fmt: skip
HEADS = network(
    "n,32,16", "rows = Reshape (x, flat) g = Gemm (rows, w) m = Reshape (g, groups) y = MatMul (m, v)",
    "y", w=(16, 32), v=(32, 10), flat=np.int64([-1, 16]), groups=np.int64([-1, 32, 32]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "fault"),
    [(POOLED, "quantized-extremum"), (RECOGNIZER, "merged-bias"), (HEADS, "moved-scale")],
    ids=["pooled", "recognizer", "heads"],
)
def test_a_built_file_computes_its_graph_wherever_it_is_loaded(
    model: onnx.ModelProto, fault: str, tmp_path: Path
) -> None:
    model = onnx.shape_inference.infer_shapes(model)
    path, data = tmp_path / "m.onnx", str(tmp_path / "x.npz")
    onnx.save(model, path)
    shape = (1, 32, 16) if fault == "moved-scale" else (1, 16, 6, 6)
    samples = [{"x": np.random.default_rng(seed).standard_normal(shape, np.float32)} for seed in range(8)]
    np.savez(data, x=np.concatenate([feeds["x"] for feeds in samples]))
    ranges = qcompile.calibrate(path, data, tmp_path / "r", targets=["openvino"]).path
    built = qcompile.build(
        path, tmp_path / "b.onnx", target="openvino", precision="int8", ranges=ranges, data=data
    )
    assert fault in dict(built.manifest.proof["worked_around"])  # type: ignore[call-overload]
    layers = built.manifest.proof["layers_by_precision"]
    assert isinstance(layers, dict)
    assert not layers["fp32"]
    assert layers["int8"].get("Conv", 0) == sum(node.op_type == "Conv" for node in model.graph.node)
    written = onnx.load(built.path)
    for fixed in (False, True):
        for feeds in samples[:2]:
            (expected,), (found,) = (
                as_written(written, feeds),
                by_openvino(str(built.path), feeds, fixed=fixed),
            )
            assert output_error(expected, found).snr_db > 45  # a value between two integers goes either way
            assert output_error(as_written(model, feeds)[0], found).snr_db > 25
