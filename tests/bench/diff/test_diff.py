"""Polygraphy's verdicts, our defaults per precision; accuracy of both sides, and the limit on the drop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import MakePath, Qc
from layer_faults import perturbed

import qcompile
from qcompile.bench.diff.diff import parse_tolerances
from qcompile.bench.metrics.output_verdict import Tolerances, judge
from qcompile.core.figures import MINUS
from qcompile.errors import DataError, InvalidOption
from qcompile.model.outputs.output_forms import parse_rules


def rows(seed: int = 0, count: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 10)).astype(np.float32)


@pytest.mark.parametrize(("precision", "passes"), [("fp32", False), ("fp16", True)])
def test_each_precision_has_its_tolerance_and_every_batch_must_pass(precision: str, passes: bool) -> None:
    good, found = {"y": rows()}, {"y": rows() * np.float32(1.005)}
    assert judge([good, good], [good, found], precision)[0].passed == passes


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("share", "passes"), [(5e-5, True), (2e-4, False)])
def test_an_element_near_zero_may_err_by_a_share_of_the_largest(
    size: float, share: float, passes: bool
) -> None:
    reference = np.array([[size, 0.0]], np.float32)
    found = np.array([[size, share * size]], np.float32)
    assert judge([{"y": reference}], [{"y": found}], "fp32")[0].passed == passes


def test_given_tolerances_replace_the_defaults_per_output() -> None:
    reference = {"a": rows(), "b": rows(1)}
    found = {"a": rows() + 0.05, "b": rows(1) + 0.05}
    limits = Tolerances(atol={"a": 0.1})
    a, b = judge([reference], [found], "fp32", limits)
    assert (a.passed, b.passed) == (True, False)
    with pytest.raises(InvalidOption, match="'c'"):
        judge([reference], [found], "fp32", Tolerances(atol={"c": 1.0}))


def test_tolerances_are_spelled_as_polygraphy_spells_them() -> None:
    assert parse_tolerances(["1e-3", "out:0:2"], option="--atol") == {"": 1e-3, "out:0": 2.0}
    for text in ("x:y", "x:-1", "nan"):
        with pytest.raises(InvalidOption, match=f"--atol '{text}'"):
            parse_tolerances([text], option="--atol")


def test_an_output_is_judged_as_what_the_user_says_it_is() -> None:
    reference = rows()
    rolled = np.roll(reference, 1, axis=1) * np.float32(0.01) + reference
    rolled[:, 0] = reference.max(axis=1) + 0.01
    assert judge([{"pooled": reference}], [{"pooled": rolled}], "int8")[0].rule == "signal"
    verdict = judge([{"pooled": reference}], [{"pooled": rolled}], "int8", rules={"": "classes"})[0]
    assert verdict.rule == "classes"
    assert not verdict.passed
    with pytest.raises(InvalidOption, match="rule for 'z': no such output"):
        judge([{"y": reference}], [{"y": reference}], "int8", rules={"z": "signal"})
    with pytest.raises(InvalidOption, match="classes, embedding, labels, signal"):
        parse_rules(["y:best"])
    assert parse_rules(["a:b:signal", "classes"]) == {"a:b": "signal", "": "classes"}


@pytest.fixture
def sides(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> tuple[str, str, str]:
    """A model, one whose first weight is off, and 90 samples that the model labels but for every seventh."""
    model, data, other = tiny_file("mlp"), samples("mlp", 90), tmp_path / "off.onnx"
    onnx.save(perturbed(onnx.load(model), "w1", by=0.2), other)
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
    assert same.accuracy.drop == 0.0
    assert same.accuracy.low == pytest.approx(-same.accuracy.high)
    assert same.accuracy.statement == "90 samples, none changed: at most 4.09 points with 95% confidence"
    assert same.accuracy.agreement == 1.0
    lost = qcompile.diff(model, other, data=data, metric="f1", max_drop=0.5, samples=40, threads=1)
    assert lost.accuracy.samples == 40
    assert not lost.accuracy


def test_a_terminal_shows_the_line_and_the_exit_code_follows(sides: tuple[str, str, str], qc: Qc) -> None:
    model, other, data = sides
    for artifact, options, code, said in (
        (
            model,
            ["--max-drop", "0.5"],
            0,
            f"drop 0.00 [{MINUS}4.09, 4.09] points, at most 0.50 is required: pass on these samples; "
            "90 samples, none changed: at most 4.09 points with 95% confidence",
        ),
        (other, ["--max-drop", "0.5", "--atol", "1000"], 1, "points, at most 0.50 is required: TOO LARGE"),
        (other, ["--metric", "mse", "--atol", "1000"], 0, "mse: 0 and "),
    ):
        shown = qc("diff", model, artifact, "--data", data, "--threads", 1, *options)
        assert shown.code == code, shown
        assert said in " ".join(shown.out.split())
    accuracy = qc("diff", model, other, "--data", data, "--metric", "top1", "--json").json["accuracy"]
    assert set(accuracy) == {
        "metric", "note", "reference", "artifact", "drop", "low", "high", "samples", "agreement", "max_drop",
        "statement",
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
