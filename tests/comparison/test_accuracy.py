"""`diff --metric`: what both sides reach, the paired interval, and the limit on the drop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qcompile
from qcompile.cli import main
from qcompile.errors import DataError, InvalidOption


@pytest.fixture
def sides(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> tuple[str, str, str]:
    """A model, one whose first weight is off, and 90 samples that the model labels but for every seventh."""
    model, data, other = tiny_file("mlp"), samples("mlp", 90), tmp_path / "off.onnx"
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    values = onnx.numpy_helper.to_array(weight)
    noise = np.random.default_rng(5).standard_normal(values.shape).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(values + 0.2 * noise, weight.name))
    onnx.save(proto, other)
    x = np.load(data)["x"]
    labels = onnxruntime.InferenceSession(str(model)).run(None, {"x": x})[0].argmax(axis=1)
    labels[::7] = (labels[::7] + 1) % 8
    np.savez(tmp_path / "labelled.npz", x=x, labels=labels)
    return str(model), str(other), str(tmp_path / "labelled.npz")


def right(model: str, data: str) -> np.ndarray:
    """Which samples a model answers rightly."""
    arrays = np.load(data)
    outputs = onnxruntime.InferenceSession(model).run(None, {"x": arrays["x"]})[0]
    return np.asarray(outputs.argmax(axis=1) == arrays["labels"])


def test_both_sides_are_measured_on_all_samples(sides: tuple[str, str, str]) -> None:
    model, other, data = sides
    found = qcompile.diff(model, other, data=data, metric="top1", threads=1)
    assert found.samples == 64  # whose outputs are compared
    accuracy = found.accuracy
    a, b = right(model, data), right(other, data)
    assert accuracy.samples == 90
    assert (accuracy.reference, accuracy.artifact) == (pytest.approx(a.mean()), pytest.approx(b.mean()))
    assert accuracy.drop == pytest.approx(100 * (a.mean() - b.mean()))
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low <= accuracy.drop <= accuracy.high
    assert accuracy.drop > 0
    assert bool(accuracy)  # without a limit any drop passes
    assert not found  # the outputs differ
    assert found.as_json()["accuracy"]["metric"] == "top1"


def test_a_limit_fails_what_loses_more(sides: tuple[str, str, str]) -> None:
    model, other, data = sides
    same = qcompile.diff(model, model, data=data, max_drop=0.0, threads=1)
    assert same
    assert same.accuracy.metric == "top1"  # chosen by the labels
    assert same.accuracy.note.startswith("top1: ")
    assert (same.accuracy.drop, same.accuracy.low, same.accuracy.high) == (0.0, 0.0, 0.0)
    assert same.accuracy.agreement == 1.0
    lost = qcompile.diff(model, other, data=data, metric="f1", max_drop=0.5, samples=40, threads=1)
    assert lost.accuracy.samples == 40
    assert not lost.accuracy


def test_a_terminal_shows_the_line_and_the_exit_code_follows(
    sides: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, other, data = sides
    for artifact, options, code, said in (
        (model, ["--max-drop", "0.5"], 0, "drop 0.00 [0.00, 0.00] points, at most 0.50 is required: pass"),
        (other, ["--max-drop", "0.5", "--atol", "1000"], 1, "points, at most 0.50 is required: TOO LARGE"),
        (other, ["--metric", "mse", "--atol", "1000"], 0, "mse: 0 and "),
    ):
        with pytest.raises(SystemExit) as done:
            main(["diff", model, artifact, "--data", data, "--threads", "1", *options])
        out = " ".join(capsys.readouterr().out.split())
        assert int(done.value.code or 0) == code, out
        assert said in out
    with pytest.raises(SystemExit):
        main(["diff", model, other, "--data", data, "--metric", "top1", "--json"])
    shown = json.loads(capsys.readouterr().out)["accuracy"]
    assert set(shown) == {
        "metric", "note", "reference", "artifact", "drop", "low", "high", "samples", "agreement", "max_drop",
    }  # fmt: skip


def test_what_is_missing_is_said_before_anything_runs(sides: tuple[str, str, str], tmp_path: Path) -> None:
    model, other, data = sides
    with pytest.raises(InvalidOption, match="there is no data; labelled samples are required"):
        qcompile.diff(model, other, metric="top1")
    with pytest.raises(InvalidOption, match="did you mean 'top1'"):
        qcompile.diff(model, other, data=data, metric="topp1")
    np.savez(tmp_path / "bare.npz", x=np.load(data)["x"])
    with pytest.raises(DataError, match="has no labels, and top1 needs them"):
        qcompile.diff(model, model, data=str(tmp_path / "bare.npz"), metric="top1", threads=1)
    bare = qcompile.diff(model, model, data=str(tmp_path / "bare.npz"), metric="auto", threads=1)
    assert (bare.accuracy.metric, bare.accuracy.artifact) == ("cosine", 1.0)
