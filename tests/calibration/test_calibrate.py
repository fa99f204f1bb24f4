"""What is told, kept and refused by `calibrate`."""

from __future__ import annotations

import itertools
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
    Said,
    function_of,
    npz,
    observed,
    save,
)

from qcompile.artifact import load_artifact
from qcompile.calibration import Ranges, calibrate, load_ranges
from qcompile.calibration.calibrate import Shard
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, InvalidOption, MissingFile, ModelError
from qcompile.model.weightless import fingerprint, read_weightless


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


def test_progress_over_a_function_has_no_total_but_the_limit(network: Path, tmp_path: Path) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [5]))
    for limit, total in ((None, None), (9, 9)):
        heard = Listener()
        observed(network, spec, progress=heard, limit=limit)
        done, known = totals(heard.said)
        assert known == {total}
        assert done[-1] == (total or COUNT)


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


def test_data_may_be_given_already_opened(network: Path, data: str, tmp_path: Path) -> None:
    weightless = read_weightless(network)
    opened = calibrate(weightless, Data(data, weightless.io.inputs, batch_size=3, limit=7), tmp_path / "1")
    spelled = calibrate(network, data, tmp_path / "2", samples=7)
    assert opened.path.read_bytes() == spelled.path.read_bytes()


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


def test_a_model_that_onnx_runtime_refuses_is_named(tmp_path: Path) -> None:
    graph = onnx.load(save(tmp_path / "m.onnx", "y = Relu(x)", "(float[n] x) => (float[n] y)"))
    graph.graph.node.append(onnx.helper.make_node("NoSuchOperator", ["y"], ["z"]))
    onnx.save(graph, tmp_path / "m.onnx")
    spec = npz(tmp_path / "d.npz", x=np.ones(3, np.float32))
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it"):
        calibrate(tmp_path / "m.onnx", spec, tmp_path / "r")


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
