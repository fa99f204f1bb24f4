"""Models and samples of every shape, batch, order, layout and storage give the ranges of the values alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from calibrated import (
    COUNT,
    SAMPLES,
    MakePath,
    assert_counts,
    assert_equal,
    function_from,
    function_of,
    normal,
    npz,
    observed,
    plain,
    property_test,
    ranges_of,
    save,
)
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from qcompile.calibration import Ranges, observe
from qcompile.calibration.taps import choose_taps
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError
from qcompile.model.weightless import read_weightless

ROWS_MEET = {
    "attention": ("t = Transpose(x) m = MatMul(x, t) s = Softmax(m) y = MatMul(s, x)", {}),
    "softmax over the first axis": ("a = Add(x, x) s = Softmax <axis = 0> (a) y = Mul(s, x)", {}),
    "distance from the mean": ("m = ReduceMean <axes = [0]> (x) d = Sub(x, m) y = Mul(d, d)", {}),
    "running sum": ("s = CumSum(x, zero) y = Mul(s, x)", {"zero": np.array(0, np.int64)}),
    "time": (
        "u = Unsqueeze(x, one) h = RNN <hidden_size = 4> (u, w, r) q = Squeeze(h, one) y = MatMul(q, v)",
        {"one": np.array([1]), "w": normal(1, 4, 4), "r": normal(1, 4, 4), "v": normal(4, 4)},
    ),
}


@pytest.mark.parametrize("name", ROWS_MEET)
def test_a_model_whose_first_axis_is_no_batch_axis_is_run_on_whole_batches(name: str, tmp_path: Path) -> None:
    body, weights = ROWS_MEET[name]
    if name == "time":
        body = body.replace("q = Squeeze(h, one)", "q = Squeeze(h, both)")
        weights = {**weights, "both": np.array([1, 2])}
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[k, l] y)", **weights)
    batches = [normal(rows, 4) for rows in (6, 5, 1, 3)]
    found = observed(model, function_of(tmp_path / "d", batches), threads=2)
    assert found.samples == 15
    for tensor, arrays in plain(model, list(found.histograms), [{"x": batch} for batch in batches]).items():
        assert_counts(found.histograms[tensor], arrays)


def test_inputs_that_differ_in_their_first_axis_are_fed_as_they_come(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "m = MatMul(x, t) y = Relu(m)",
        "(float[n, 3] x, float[k, l] t) => (float[n, l] y)",
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for scale in (1, 2):\n"
        "        yield np.full((5, 3), scale, np.float32), np.eye(3, dtype=np.float32)\n"
    )
    found = observed(model, f"{tmp_path / 'data.py'}:samples")
    assert found.samples == 10
    assert_counts(found.histograms["t"], [np.eye(3)] * 2)
    assert_counts(found.histograms["y"], [np.full((5, 3), scale) for scale in (1, 2)])


def test_a_fixed_batch_is_fed_whole(tmp_path: Path) -> None:
    body = "t = Transpose(x) m = MatMul(x, t) y = Relu(m)"
    model = save(tmp_path / "m.onnx", body, "(float[4, 3] x) => (float[4, 4] y)")
    parts = np.split(normal(12, 3), 3)
    file = npz(tmp_path / "x.npz", x=np.concatenate(parts))
    assert observed(model, file, limit=6).samples in (4, 8)
    for spec in (file, function_of(tmp_path / "d", parts)):
        found = observed(model, spec)
        assert found.samples == 12
        for tensor, arrays in plain(model, list(found.histograms), [{"x": part} for part in parts]).items():
            assert_counts(found.histograms[tensor], arrays)


def test_scalars_and_integers_are_fed_as_they_come(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "g = Gather(x, ids) m = Mul(g, s) y = Relu(m)",
        "(float[n, 3] x, int64[k] ids, float s) => (float[k, 3] y)",
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for scale in (1, 2):\n"
        "        yield np.full((4, 3), 5, np.float32), np.array([0, 3]), np.float32(scale)\n"
    )
    found = observed(model, f"{tmp_path / 'data.py'}:samples")
    assert found.samples == 8
    assert found.skipped == {"ids": "it is int64, not a float"}
    assert_counts(found.histograms["s"], [np.array([1.0, 2.0])])
    assert_counts(found.histograms["m"], [np.full((2, 3), 5.0), np.full((2, 3), 10.0)])
    assert "ids" not in found.histograms


def test_samples_of_different_shapes_are_counted_together(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, w] x) => (float[n, w] y)")
    batches = [normal(2, 3), normal(4, 1), normal(1, 7), normal(2, 0), normal(3, 20)]
    spec = function_of(tmp_path / "d", batches)
    folder = tmp_path / "ragged"
    folder.mkdir()
    for index, batch in enumerate(batches):
        np.save(folder / f"{index}.npy", batch)
    for found in (observed(model, spec), observed(model, folder, threads=2)):
        assert found.samples == 12
        assert_counts(found.histograms["x"], batches)
        assert_counts(found.histograms["y"], [np.maximum(batch, 0) for batch in batches])


def test_a_tensor_that_is_empty_in_every_sample_has_no_range(tmp_path: Path) -> None:
    body = """
        zero = Constant <value = int64[1] {0}> ()
        s = Slice(x, zero, zero, zero)
        y = Relu(x)
        z = Relu(s)
    """
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[n, 4] y, float[m, 4] z)")
    for size in (1, 3):
        spec = function_of(tmp_path / f"d{size}", np.split(normal(3, 4), 3 // size))
        found = ranges_of(model, spec, tmp_path / "r")
        assert sorted(found.names()) == ["x", "y"]
        for name in ("s", "z"):
            with pytest.raises(CalibrationError, match=f"tensor '{name}' .*empty in every sample"):
                found.amax(name)


def test_inputs_may_be_strings(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["s"],
            ["f"],
            domain="ai.onnx.ml",
            keys_strings=["a", "b"],
            values_floats=[1.0, 2.0],
        ),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("s", TensorProto.STRING, ["n"])], [value("y", TensorProto.FLOAT, ["n"])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    spec = function_from(tmp_path / "d", "yield np.array(['a', 'b', 'a'])")
    assert observed(tmp_path / "m.onnx", spec).histograms["y"].max == 2.0


def batches_in_any_order() -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """The order of the samples, and where to cut it."""
    cuts = st.sets(st.integers(1, COUNT - 1)).map(sorted)
    return st.tuples(st.permutations(range(COUNT)), cuts)


@property_test
@given(batches_in_any_order(), st.integers(1, 3))
def test_neither_batches_nor_order_nor_threads_leave_a_trace(
    network: Path,
    whole: Ranges,
    tmp_path_factory: pytest.TempPathFactory,
    ordered: tuple[list[int], list[int]],
    threads: int,
) -> None:
    order, cuts = ordered
    spec = function_of(tmp_path_factory.mktemp("batches") / "d", np.split(SAMPLES[order], cuts))
    assert_equal(observed(network, spec, threads=threads), whole)


def test_how_samples_are_stored_and_run_leaves_no_trace(
    network: Path, data: str, whole: Ranges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "0.npy", SAMPLES[0])
    np.save(folder / "1.npy", SAMPLES[1:6])
    np.savez_compressed(folder / "2.npz", x=SAMPLES[6:], labels=np.arange(7))
    assert_equal(observed(network, folder), whole)
    inputs = read_weightless(network).io.inputs
    assert_equal(observe(network, Data(data, inputs, batch_size=5)), whole)
    np.save(tmp_path / "x.npy", SAMPLES)  # mapped: its samples cannot be written
    body = f"yield from np.split(np.load({str(tmp_path / 'x.npy')!r}, mmap_mode='r'), [1, 4])"
    assert_equal(observed(network, function_from(tmp_path / "mapped", body)), whole)
    monkeypatch.setattr("qcompile.calibration.workers.IN_FLIGHT_BYTES", 1)  # large activations: fewer workers
    assert_equal(observed(network, data, threads=3), whole)


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_histograms_count_what_onnx_runtime_computes_for_each_sample(
    tiny_file: MakePath, samples: MakePath, name: str
) -> None:
    model, path = tiny_file(name), samples(name, 8)
    found = observed(model, path)
    assert sorted(found.histograms) == sorted(choose_taps(onnx.load(model)).names)
    assert "labels" not in found.histograms
    with np.load(path) as arrays:
        feeds = [{"x": row[None]} for row in arrays["x"]]
    for tensor, arrays in plain(model, list(found.histograms), feeds).items():
        assert_counts(found.histograms[tensor], arrays)
