"""What is told, kept and refused by `calibrate`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from calibrated import (
    COUNT,
    Listener,
    MakePath,
    Said,
    function_from,
    half_product,
    normal,
    npz,
    observed,
    save,
)
from onnx import TensorProto, helper

from qcompile.artifact import load_artifact
from qcompile.calibration import Ranges, calibrate, load_ranges
from qcompile.calibration.calibrate import Shard
from qcompile.errors import CalibrationError, InvalidOption, MissingFile
from qcompile.model.weightless import fingerprint


def totals(said: Said) -> tuple[list[int], set[int | None]]:
    """How many samples were done, each time, and the totals told."""
    return [done for text, done, _ in said if text == "calibrate"], {
        total for text, _, total in said if text == "calibrate"
    }


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
    done, known = totals(heard.said)
    assert known == {total}
    assert done == sorted(done)
    assert done[-1] == total
    assert all(0 <= count <= total for count in done)


def test_every_step_is_told(network: Path, data: str, tmp_path: Path) -> None:
    heard = Listener()
    calibrate(network, data, tmp_path / "r", progress=heard)
    texts = [text for text, _ in itertools.groupby(text for text, _, _ in heard.said)]
    assert texts == ["prepare the model", "calibrate", "choose thresholds"]


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
        fingerprint(model),
    )
    assert manifest.options == {"method": "percentile:99.9", "shard": "1/2"}
    assert manifest.proof["samples"] == 6
    assert "1 of 2 parts" in manifest.sources["data"]
    ranges = load_ranges(artifact.path)
    assert (str(ranges.method), ranges.samples) == ("percentile:99.9", 6)
    assert manifest.proof["tensors"] == len(ranges.histograms)


def test_which_data_was_seen_is_kept_apart_from_how_much_of_it(network: Path, data: str) -> None:
    part, rest = observed(network, data, limit=5), observed(network, data)
    assert part.data != rest.data
    assert part.model == rest.model == fingerprint(network)


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
        calibrate(
            model, npz(tmp_path / "d.npz", x=np.arange(3).astype(dtype)), tmp_path / "r", tensors=tensors
        )


def test_wrong_options_are_refused_before_any_work(network: Path, data: str, tmp_path: Path) -> None:
    heard = Listener()
    with pytest.raises(InvalidOption, match="method 'kl'"):
        calibrate(network, data, tmp_path / "r", method="kl", progress=heard)
    with pytest.raises(InvalidOption, match="`shard` '3/2'"):
        calibrate(network, data, tmp_path / "r", shard="3/2", progress=heard)
    with pytest.raises(InvalidOption, match="at least 1 is required"):
        calibrate(network, data, tmp_path / "r", samples=0, progress=heard)
    with pytest.raises(MissingFile):
        calibrate(tmp_path / "none.onnx", data, tmp_path / "r", progress=heard)
    with pytest.raises(MissingFile):
        calibrate(network, str(tmp_path / "none.npz"), tmp_path / "r", progress=heard)
    assert heard.said == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_function_may_fill_one_buffer_again_and_again(tmp_path: Path, threads: int) -> None:
    model = save(
        tmp_path / "m.onnx", "a = Exp(x) b = Add(a, x) y = Relu(b)", "(float[n, w] x) => (float[n, w] y)"
    )
    spec = function_from(
        tmp_path / "d",
        "buffer = np.empty((1, 20000), np.float32)\nfor i in range(60):\n"
        "    buffer[:] = i / 10\n    yield buffer",
    )
    again = function_from(
        tmp_path / "e", "for i in range(60):\n    yield np.full((1, 20000), i / 10, np.float32)"
    )
    found, expected = (observed(model, s, threads=threads).histograms["x"].counts for s in (spec, again))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "body", ["y = MaxPool <kernel_shape = [2, 2]> (x)", "y = Transpose(x)", "y = Flatten(x)"]
)
def test_a_model_may_have_its_input_alone_observed(tmp_path: Path, body: str) -> None:
    model = save(tmp_path / "m.onnx", body, "(float[n, 4, 8, 8] x) => (float[i, j] y)")
    np.savez(tmp_path / "x.npz", x=normal(2, 4, 8, 8))
    assert sorted(observed(model, str(tmp_path / "x.npz")).histograms) == ["x"]


def test_an_output_that_is_a_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=normal(3, 4))
    (tmp_path / "out").mkdir()
    said: list[Any] = []
    with pytest.raises(InvalidOption):
        calibrate(
            save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, 4] x) => (float[n, 4] y)"),
            str(tmp_path / "x.npz"),
            tmp_path / "out",
            progress=lambda *s: said.append(s),
        )
    assert not [state for state in said if state[0] == "calibrate"]


def test_negative_threads_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=normal(3, 4))
    with pytest.raises(InvalidOption, match="`threads` -1: at least 0 is required"):
        observed(
            save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n, 4] x) => (float[n, 4] y)"),
            str(tmp_path / "x.npz"),
            threads=-1,
        )


def test_a_convolution_whose_output_a_subgraph_reads_is_observed(tmp_path: Path) -> None:
    body = """
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        i = If (condition) <
            then_branch = yes () => (float[n, 16, 8, 8] t) { t = Neg (c) },
            else_branch = no () => (float[n, 16, 8, 8] e) { e = Abs (c) }
        >
        y = Mul (i, i)
    """
    model = save(
        tmp_path / "m.onnx",
        body,
        "(float[n, 3, 8, 8] x, bool condition) => (float[n, 16, 8, 8] y)",
        w=normal(16, 3, 3, 3),
    )
    spec = function_from(tmp_path / "d", "yield np.ones((1, 3, 8, 8), np.float32), np.array(True)")
    assert observed(model, spec, tensors={"c", "i", "y"}).samples == 1


def test_half_activations_are_the_rounded_ones(tmp_path: Path) -> None:
    model = half_product(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)
    np.savez(tmp_path / "x.npz", x=x)
    proto = onnx.load(model)
    proto.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT16, None))
    a = onnxruntime.InferenceSession(proto.SerializeToString()).run(["a"], {"x": x})[0]
    assert observed(model, str(tmp_path / "x.npz")).histograms["a"].max == float(a.max())
