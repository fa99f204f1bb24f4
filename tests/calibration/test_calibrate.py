"""`calibrate` gives the ranges of the values alone; bad samples and models are named, with the sample."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from calibrated import (
    COUNT,
    SAMPLES,
    Listener,
    MakePath,
    assert_counts,
    assert_equal,
    function_from,
    function_of,
    half_product,
    normal,
    npz,
    observed,
    plain,
    property_test,
    save,
)
from hypothesis import given
from hypothesis import strategies as st
from written_models import model_of

from qcompile.calibration import Ranges, load_ranges, observe
from qcompile.calibration.calibrate import Shard
from qcompile.calibration.taps import choose_taps
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.core.artifact import load_artifact
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, DataError, InvalidOption, MissingFile
from qcompile.model.graph.onnx_file import read_graph, read_weightless

STEPS = ["prepare the model", "calibrate"]


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, COUNT),
        ({"limit": 5}, 5),
        ({"limit": 100}, COUNT),
        ({"shard": Shard(2, 4)}, 3),
        ({"shard": Shard(1, 4)}, 4),
        ({"shard": Shard(3, 4), "limit": 6}, 1),
        ({"shard": Shard(14, 20)}, 0),
    ],
)
def test_progress_is_told_with_the_number_of_samples_there_are(
    network: Path, data: str, options: dict[str, Any], total: int
) -> None:
    heard = Listener()
    observed(network, data, progress=heard, threads=2, **options)
    assert [text for text, _ in itertools.groupby(text for text, _, _ in heard.said)] == STEPS
    done, totals = zip(*(state[1:] for state in heard.said if state[0] == "calibrate"), strict=True)
    assert {*totals} == {total}
    assert list(done) == sorted(done)
    assert done[-1] == total
    assert all(0 <= count <= total for count in done)


def test_the_artifact_says_what_was_observed(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("mlp")
    artifact = calibrate(
        model,
        str(samples("mlp", 20)),
        tmp_path / "mlp.ranges",
        method="percentile:99.9",
        samples=12,
        shard="1/2",
    )
    assert load_artifact(artifact.path).manifest.as_json() == artifact.manifest.as_json()
    manifest = artifact.manifest
    assert (manifest.kind, manifest.stage, manifest.sources["model"]) == (
        "ranges",
        "calibrate",
        read_graph(model).digest(),
    )
    assert manifest.options == {"method": "percentile:99.9", "shard": "1/2"}
    assert manifest.proof["samples"] == 6
    assert "1 of 2 parts" in manifest.sources["data"]
    ranges = load_ranges(artifact.path)
    assert (str(ranges.method), ranges.samples) == ("percentile:99.9", 6)
    assert manifest.proof["tensors"] == len(ranges.histograms)


def test_only_the_named_tensors_are_observed(network: Path, data: str, whole: Ranges) -> None:
    found = observed(network, data, tensors={"y", "c", "f"})
    assert sorted(found.histograms) == ["c", "d", "y"]
    assert found.shared == {"f": ("d",)}
    for name, histogram in found.histograms.items():
        np.testing.assert_array_equal(histogram.counts, whole.histograms[name].counts)


# What cannot be done.


@pytest.mark.parametrize(
    ("body", "signature", "tensors"),
    [
        ("y = Add(x, x)", "(int64[n] x) => (int64[n] y)", None),
        ("y = Exp(x)", "(float[n] x) => (float[n] y)", None),
        ("y = Relu(x)", "(float[n] x) => (float[n] y)", set[str]()),
    ],
)
def test_a_model_without_activations_to_observe_cannot_be_calibrated(
    tmp_path: Path, body: str, signature: str, tensors: set[str] | None
) -> None:
    model = save(tmp_path / "m.onnx", body, signature)
    dtype = np.int64 if "int64" in signature else np.float32
    with pytest.raises(CalibrationError, match=r"m\.onnx: .*nothing to calibrate"):
        observed(model, npz(tmp_path / "d.npz", x=np.arange(3).astype(dtype)), tensors=tensors)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "kl"}, "`method` 'kl': minmax, percentile"),
        ({"shard": "3/2"}, "`shard` '3/2'"),
        ({"samples": -1}, "`samples` -1: at least 0 is required"),
        ({"threads": -1}, "`threads` -1: at least 0 is required"),
        ({"model": "none.onnx"}, "none.onnx"),
        ({"data": "none.npz"}, "none.npz"),
        ({"output": "."}, "is a folder"),
    ],
)
def test_wrong_options_are_refused_before_any_work(
    network: Path,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    heard = Listener()
    values = {"model": network, "data": data, "output": "r", "progress": heard} | options
    with pytest.raises((InvalidOption, MissingFile), match=re.escape(words)):
        calibrate(values.pop("model"), values.pop("data"), values.pop("output"), **values)
    assert heard.said == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("threads", [1, 2])
def test_nan_in_the_data_is_an_error_naming_input_and_sample(
    tiny_file: MakePath, tmp_path: Path, bad: float, what: str, threads: int
) -> None:
    x = np.zeros((9, 16), np.float32)
    x[5, 3] = bad
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(DataError, match=rf"data\.npz\[5:6\]: input 'x' holds {what}") as caught:
        calibrate(tiny_file("mlp"), spec, tmp_path / "mlp.ranges", threads=threads)
    assert caught.value.data == {"tensor": "x", "sample": "data.npz[5:6]"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "mlp.onnx"]
    by_function = function_of(tmp_path / "d", np.split(x, [4]))
    with pytest.raises(DataError, match=rf"samples batch 1 sample 1: input 'x' holds {what}"):
        observed(tiny_file("mlp"), by_function, threads=threads)


def test_nan_in_an_input_that_is_not_observed_is_an_error_too(tmp_path: Path) -> None:
    signature = "(float[n] x, float[n] z) => (float[n] y, float[n] e)"
    model = save(tmp_path / "m.onnx", "e = Exp(z) y = Relu(x)", signature)
    x, z = np.zeros(2, np.float32), np.array([0, np.nan], np.float32)
    with pytest.raises(DataError, match=r"d\.npz\[1:2\]: input 'z' holds NaN"):
        observed(model, npz(tmp_path / "d.npz", x=x, z=z))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("half", [False, True])
def test_a_model_that_overflows_is_an_error_naming_tensor_and_sample(
    tmp_path: Path, threads: int, half: bool
) -> None:
    model = tmp_path / "m.onnx"
    x = np.ones((6, 4), np.float16 if half else np.float32)
    x[3, 1] = 1000
    if half:
        half_product(model)
    else:
        save(model, "a = Exp(x) y = Add(a, x)", "(float[n, 4] x) => (float[n, 4] y)")
    spec = npz(tmp_path / "data.npz", x=x)
    with pytest.raises(CalibrationError, match="tensor 'a' holds infinity at") as caught:
        observed(model, spec, threads=threads)
    assert caught.value.data == {"tensor": "a", "sample": "data.npz[3:4]"}
    assert "the input is finite" in caught.value.message


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_earliest_bad_sample_is_the_one_that_is_named(tmp_path: Path, threads: int) -> None:
    """The earliest takes longest: others are found to be bad before it."""
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, w] x) => (float[n, w] y)")
    small = np.zeros((1, 1), np.float32)
    long = np.zeros((1, 300_000), np.float32)
    long[0, -1] = 1000
    spec = function_of(tmp_path / "d", [small, small, small, long, small + np.nan, small + np.inf, small])
    with pytest.raises(CalibrationError, match="tensor 'e' holds infinity at samples batch 3,"):
        observed(model, spec, threads=threads)
    # It is named, too, where reading fails later.
    body = (
        "for i in range(6):\n    if i == 5: raise OSError('disk')\n"
        "    yield np.full((1, 4), np.nan if i == 3 else 0, np.float32)"
    )
    with pytest.raises(DataError, match="samples batch 3: input 'x' holds NaN"):
        observed(model, function_from(tmp_path / "e", body), threads=threads)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_model_that_fails_on_the_first_sample_names_it(tmp_path: Path, size: int) -> None:
    body = "r = Reshape(x, s) y = Sigmoid(r)"
    model = save(
        tmp_path / "m.onnx", body, "(float[n, w] x) => (float[k, 3] y)", s=np.array([-1, 3], np.int64)
    )
    spec = function_of(tmp_path / "d", [normal(size, 4 if size != 4 else 5)])
    with pytest.raises(DataError, match="samples batch 0: the model failed on it"):
        observed(model, spec)


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


def test_inputs_may_be_strings(tmp_path: Path) -> None:
    body = (
        'f = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_floats = [1.0, 2.0]> (s) y = Relu(f)'
    )
    made = model_of(f"(string[n] s) => (float[n] y) {{ {body} }}", imports=', "ai.onnx.ml" : 2')
    onnx.save(made, tmp_path / "m.onnx")
    spec = function_from(tmp_path / "d", "yield np.array(['a', 'b', 'a'])")
    assert observed(tmp_path / "m.onnx", spec).histograms["y"].max == 2.0


def test_a_tensor_that_is_empty_in_every_sample_has_no_range(tmp_path: Path) -> None:
    body = "zero = Constant <value = int64[1] {0}> () s = Slice(x, zero, zero, zero) y = Relu(x) z = Relu(s)"
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[n, 4] y, float[m, 4] z)")
    for size in (1, 3):
        spec = function_of(tmp_path / f"d{size}", np.split(normal(3, 4), 3 // size))
        found = observed(model, spec)
        assert sorted(found.names()) == ["x", "y"]
        for name in ("s", "z"):
            with pytest.raises(CalibrationError, match=f"tensor '{name}' .*empty in every sample"):
                found.amax(name)


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
    graph = read_weightless(network)
    assert_equal(observe(graph, Data(data, graph.io.inputs, batch_size=5)), whole)
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
