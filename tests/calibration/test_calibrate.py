from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from qcompile.artifact import load_artifact
from qcompile.calibration import Data, Ranges, calibrate, load_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.taps import choose_taps, tapped
from qcompile.errors import CalibrationError, DataError, InvalidOption, MissingFile, ModelError
from qcompile.model.onnx_file import fingerprint, model_io

MakePath = Callable[..., Path]


def save(path: Path, body: str, signature: str) -> Path:
    """A model file from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def data_file(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def ranges_of(model: Path, data: str | Path, output: Path, **options: object) -> Ranges:
    return load_ranges(calibrate(model, str(data), output, threads=1, **options).path)  # type: ignore[arg-type]


def assert_equal(found: Ranges, expected: Ranges) -> None:
    assert found.samples == expected.samples
    assert found.histograms.keys() == expected.histograms.keys()
    for name, histogram in expected.histograms.items():
        again = found.histograms[name]
        assert (again.exponent, again.min, again.max) == (histogram.exponent, histogram.min, histogram.max)
        np.testing.assert_array_equal(again.counts, histogram.counts)


@pytest.fixture
def exact(tmp_path: Path) -> Path:
    """A model whose every activation is one correctly rounded operation: no kernel can differ."""
    body = """
        three = Constant <value = float {3.0}> ()
        m = Mul(x, three)
        a = Add(m, x)
        y = Relu(a)
    """
    return save(tmp_path / "exact.onnx", body, "(float[n, 5] x) => (float[n, 5] y)")


def test_ranges_do_not_depend_on_the_batch_size(exact: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).laplace(size=(29, 5)).astype(np.float32)
    data = data_file(tmp_path / "data.npz", x=x)
    whole = ranges_of(exact, data, tmp_path / "whole", batch_size=29)
    assert list(whole.histograms) == ["a", "m", "x", "y"]
    for batch_size in (1, 2, 3, 7):
        assert_equal(ranges_of(exact, data, tmp_path / "part", batch_size=batch_size), whole)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "part").read_bytes()


def test_ranges_do_not_depend_on_the_order_of_samples(exact: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).laplace(size=(29, 5)).astype(np.float32)
    first = ranges_of(exact, data_file(tmp_path / "1.npz", x=x), tmp_path / "1")
    second = ranges_of(exact, data_file(tmp_path / "2.npz", x=x[::-1]), tmp_path / "2")
    assert_equal(second, first)
    assert first.data != second.data


def test_shards_merge_to_the_whole(exact: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).laplace(size=(29, 5)).astype(np.float32)
    whole = ranges_of(exact, data_file(tmp_path / "whole.npz", x=x), tmp_path / "whole")
    left = ranges_of(exact, data_file(tmp_path / "l.npz", x=x[:11]), tmp_path / "l")
    left.merge(ranges_of(exact, data_file(tmp_path / "r.npz", x=x[11:]), tmp_path / "r"))
    assert_equal(left, whole)


@pytest.mark.parametrize("name", ["residual", "mlp"])
def test_the_extremes_of_convolutions_and_products_hardly_depend_on_the_batch_size(
    tiny_file: MakePath, samples: MakePath, tmp_path: Path, name: str
) -> None:
    model, data = tiny_file(name), samples(name, 13)
    whole = ranges_of(model, data, tmp_path / "whole", batch_size=13)
    for batch_size in (1, 2, 3, 7):
        part = ranges_of(model, data, tmp_path / "part", batch_size=batch_size)
        assert part.histograms.keys() == whole.histograms.keys()
        for tensor, histogram in whole.histograms.items():
            found = part.histograms[tensor]
            assert found.total == histogram.total
            assert (found.min, found.max) == pytest.approx((histogram.min, histogram.max), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_histograms_count_what_onnx_runtime_computes(
    tiny_file: MakePath, samples: MakePath, tmp_path: Path, name: str
) -> None:
    model, data = tiny_file(name), samples(name, 8)
    found = ranges_of(model, data, tmp_path / "ranges", batch_size=4)
    proto = onnx.load(model)
    copy = tapped(proto, choose_taps(proto))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=providers)
    expected = {name: Histogram() for name in ("x", *(value.name for value in session.get_outputs()))}
    for batch in np.split(np.load(data)["x"], 2):
        expected["x"].add(batch)
        for value, array in zip(session.get_outputs(), session.run(None, {"x": batch}), strict=True):
            expected[value.name].add(array)
    assert_equal(found, Ranges("", "", 8, histograms=expected))


def test_the_artifact_says_what_was_observed(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("mlp")
    said: list[tuple[str, int, int | None]] = []
    artifact = calibrate(
        model,
        str(samples("mlp", 20)),
        tmp_path / "mlp.ranges",
        method="percentile:99.9",
        samples=12,
        batch_size=5,
        progress=lambda text, done=0, total=None, /: said.append((text, done, total)),
    )
    assert load_artifact(artifact.path) == artifact
    manifest = artifact.manifest
    assert (manifest.kind, manifest.sources["model"]) == ("ranges", fingerprint(model))
    assert manifest.options == {"method": "percentile", "percentile": 99.9}
    assert manifest.proof["samples"] == 12
    assert said == [("calibrate", done, 12) for done in (5, 10, 12)]
    ranges = load_ranges(artifact.path)
    assert (ranges.method, ranges.percentile, ranges.samples) == ("percentile", 99.9, 12)
    assert "labels" not in ranges.histograms


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_nan_in_the_data_is_an_error_naming_input_and_batch(
    tiny_file: MakePath, tmp_path: Path, bad: float, what: str
) -> None:
    x = np.zeros((9, 16), np.float32)
    x[5, 3] = bad
    data = data_file(tmp_path / "data.npz", x=x)
    with pytest.raises(DataError, match=rf"data\.npz\[4:6\]: input 'x' holds {what}") as caught:
        calibrate(tiny_file("mlp"), data, tmp_path / "mlp.ranges", batch_size=2)
    assert caught.value.data == {"tensor": "x", "sample": "data.npz[4:6]"}
    assert not (tmp_path / "mlp.ranges").exists()


def test_nan_in_an_input_that_is_not_tapped_is_an_error_too(tmp_path: Path) -> None:
    signature = "(float[n] x, float[n] z) => (float[n] y, float[n] e)"
    model = save(tmp_path / "m.onnx", "e = Exp(z) y = Relu(x)", signature)
    data = data_file(tmp_path / "data.npz", x=np.zeros(2, np.float32), z=np.array([0, np.nan], np.float32))
    with pytest.raises(DataError, match="input 'z' holds NaN"):
        calibrate(model, data, tmp_path / "r")


def test_a_model_that_overflows_is_an_error_naming_the_tensor(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "e = Exp(x) y = Add(e, x)", "(float[n, 2] x) => (float[n, 2] y)")
    x = np.ones((4, 2), np.float32)
    x[3, 1] = 1000
    with pytest.raises(CalibrationError, match="tensor 'e' holds infinity") as caught:
        calibrate(model, data_file(tmp_path / "data.npz", x=x), tmp_path / "r", batch_size=1)
    assert caught.value.data == {"tensor": "e", "sample": "data.npz[3:4]"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "m.onnx"]


def test_skipped_integer_tensors_have_a_reason(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx", "y = Gather(x, ids)", "(float[n, 4] x, int64[n] ids) => (float[n, 4] y)"
    )
    data = data_file(tmp_path / "data.npz", x=np.ones((3, 4), np.float32), ids=np.array([2, 0, 1]))
    ranges = ranges_of(model, data, tmp_path / "r")
    assert ranges.skipped == {"ids": "it is int64, not a float"}
    assert sorted(ranges.histograms) == ["x", "y"]


def test_a_tensor_that_stays_empty_is_skipped_with_its_reason(tmp_path: Path) -> None:
    body = """
        zero = Constant <value = int64[1] {0}> ()
        s = Slice(x, zero, zero, zero)
        y = Relu(x)
        z = Relu(s)
    """
    model = save(tmp_path / "m.onnx", body, "(float[n, 4] x) => (float[n, 4] y, float[m, 4] z)")
    ranges = ranges_of(model, data_file(tmp_path / "d.npz", x=np.ones((3, 4), np.float32)), tmp_path / "r")
    assert ranges.skipped == dict.fromkeys(["s", "z"], "it was empty in every sample")
    assert sorted(ranges.histograms) == ["x", "y"]


def test_samples_of_different_shapes_are_counted_together(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, w] x) => (float[n, w] y)")
    folder = tmp_path / "ragged"
    folder.mkdir()
    for index, width in enumerate((3, 5, 1)):
        np.save(folder / f"{index}.npy", np.full((2, width), index, np.float32))
    ranges = ranges_of(model, folder, tmp_path / "r")
    assert (ranges.samples, ranges.histograms["x"].total, ranges.histograms["y"].max) == (6, 18, 2.0)


def test_a_sample_on_which_the_model_fails_is_named(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx", "y = Gather(x, ids)", "(float[n, 4] x, int64[n] ids) => (float[n, 4] y)"
    )
    data = data_file(tmp_path / "data.npz", x=np.ones((3, 4), np.float32), ids=np.array([0, 0, 7]))
    with pytest.raises(DataError, match=r"data\.npz\[2:3\]: the model failed on it"):
        calibrate(model, data, tmp_path / "r", batch_size=1)


def test_a_model_without_float_activations_cannot_be_calibrated(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Add(x, x)", "(int64[n] x) => (int64[n] y)")
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        calibrate(model, data_file(tmp_path / "d.npz", x=np.arange(3)), tmp_path / "r")


def test_a_model_that_onnx_runtime_refuses_is_named(tmp_path: Path) -> None:
    graph = onnx.load(save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n] x) => (float[n] y)"))
    graph.graph.node.append(onnx.helper.make_node("NoSuchOperator", ["y"], ["z"]))
    onnx.save(graph, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it"):
        calibrate(
            tmp_path / "m.onnx", data_file(tmp_path / "d.npz", x=np.ones(3, np.float32)), tmp_path / "r"
        )


def test_wrong_options_are_refused_before_any_work(
    tiny_file: MakePath, samples: MakePath, tmp_path: Path
) -> None:
    model, data = tiny_file("mlp"), str(samples("mlp", 4))
    with pytest.raises(InvalidOption, match="method 'kl' is unknown"):
        calibrate(model, data, tmp_path / "r", method="kl")
    with pytest.raises(InvalidOption, match="at least 1 is required"):
        calibrate(model, data, tmp_path / "r", samples=0)
    with pytest.raises(MissingFile):
        calibrate(tmp_path / "none.onnx", data, tmp_path / "r")


def test_data_may_be_given_already_opened(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model, path = tiny_file("mlp"), samples("mlp", 10)
    inputs = model_io(onnx.load(model)).inputs
    opened = calibrate(model, Data(str(path), inputs, batch_size=3, limit=7), tmp_path / "1", threads=1)
    spelled = calibrate(model, str(path), tmp_path / "2", batch_size=3, samples=7, threads=1)
    assert opened.path.read_bytes() == spelled.path.read_bytes()
