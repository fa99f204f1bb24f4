"""`qcompile bench`, `gate` and `tune`, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from commands import MakeModel, MakePath, Qc
from mode_models import written

import qcompile
from qcompile.bench.results.results import Results, load_results
from qcompile.bench.results.row import Row

pytestmark = pytest.mark.usefixtures("short_blocks")


PLAIN = "(float[n,16] x) => (float[n,16] y) { y = Relu (x) }"
SINES = " ".join(f"s{i + 1} = Sin (s{i})" for i in range(12))
WITH_WORK = f"""(float[n,16] x) => (float[n,16] y) <int64[3] large = {{2000, 1, 1}}, float nothing = {{0}}> {{
    s0 = Expand (x, large) {SINES} most = ReduceMax <keepdims = 0> (s12) zero = Mul (most, nothing)
    r = Relu (x) y = Add (r, zero) }}"""
"""The same outputs, and twelve sines of many values, which change nothing: 0 times their largest is added."""


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and one that takes many times as long for the same outputs."""
    return written(tmp_path / "old.onnx", PLAIN), written(tmp_path / "new.onnx", WITH_WORK)


def test_a_slower_version_fails_and_every_form_says_so(
    qc: Qc, versions: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = versions
    junit, report = tmp_path / "gate.xml", tmp_path / "gate.md"
    said = qc(
        "gate", old, new, "--threads", 1, "--max-time", 20, "--max-larger", 10_000, "--junit", junit,
        "--markdown", report,
    )  # fmt: skip
    assert said.code == 1
    assert "FAILED" in said.out
    assert "gate failed: 1 check, 1 artifact" in said.out
    assert "new.onnx: latency changes by" in said.err
    assert "| new.onnx | latency |" in report.read_text()
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("failures") == "1"
    failed = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["latency"]


def test_a_larger_and_less_accurate_version_fails(
    qc: Qc, tiny: MakeModel, samples: MakePath, tmp_path: Path
) -> None:
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    model = tiny("residual")
    onnx.save(model, old)
    inputs = np.load(samples("residual", 64))["x"]
    with qcompile.load(str(old), threads=1) as runner:
        labels = runner.infer({"x": inputs})["y"].argmax(axis=1)
    np.savez(tmp_path / "data.npz", x=inputs, labels=labels)
    for one in model.graph.initializer:
        if one.name == "w3":
            weights = -onnx.numpy_helper.to_array(one)  # the best class becomes the worst
            one.CopyFrom(onnx.numpy_helper.from_array(weights, "w3"))
    model.doc_string = "x" * 10_000
    onnx.save(model, new)
    said = qc(
        "gate", old, new, "--threads", 1, "--max-time", 0.2, "--evaluation", tmp_path / "data.npz", "--json"
    )
    assert said.code == 1
    checks = {check["kind"]: check for check in json.loads(said.out)["pairs"][0]["checks"]}
    assert checks["size"]["state"] == "failed"
    assert checks["accuracy"]["state"] == "failed"
    assert checks["accuracy"]["old"] == "100.00%"
    assert checks["outputs"]["state"] == "skipped"
    assert "but accuracy decides" in checks["outputs"]["text"]


def test_folders_of_recipes_are_compared_artifact_by_artifact(qc: Qc, tiny_file: MakePath) -> None:
    model = tiny_file("mlp")
    old, new = model.parent / "old", model.parent / "new"
    for folder, names in ((old, ("a", "b", "gone")), (new, ("a", "b", "added"))):
        folder.mkdir()
        for name in names:
            qcompile.build(str(model), folder / f"{name}.onnx", target="onnxruntime")
    (new / "b.onnx").write_bytes(b"damaged")
    (old / "results.json").write_text("{}")
    said = qc("gate", old, new, "--threads", 1, "--max-time", 0.2, "--json")
    assert said.code == 1
    found = json.loads(said.out)
    checks = {pair["name"]: pair["checks"] for pair in found["pairs"]}
    assert list(checks) == ["a.onnx", "b.onnx", "gone.onnx"]
    states = {check["kind"]: check["state"] for check in checks["a.onnx"]}
    assert states.pop("latency") in ("passed", "undecided")  # 0.2 s on a busy machine
    assert states == {"size": "passed", "outputs": "passed"}
    assert checks["b.onnx"][0]["state"] == "failed"
    assert "no such artifact" in checks["gone.onnx"][0]["text"]
    again = qc("gate", old, old, "--skip-identical", "--json")
    assert again.code == 0
    checks = {pair["name"]: pair["checks"] for pair in json.loads(again.out)["pairs"]}
    assert [[(one["kind"], one["state"]) for one in of] for of in checks.values()] == [
        [("run", "passed")]
    ] * 3
    assert found["added"] == ["added.onnx"]
    assert found["limits"]["max_slower_percent"] == 2.0


BENCH = "bench mlp.onnx --baseline mlp.onnx"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gate old.onnx new.onnx", "does not exist"),
        ("gate --max-slower 0 a b", "--max-slower"),
        ("gate --max-drop 1 a b", "--evaluation"),
        ("gate --device all a b", "one device"),
        ("gate . new.onnx", "OLD is a folder"),
        ("gate . .", "no built artifact"),
        (f"{BENCH} --batch-sizes 1,x", "--batch-sizes"),
        (f"{BENCH} --clients 0", "--clients"),
        (f"{BENCH} --streams 0", "--streams"),
        (f"{BENCH} --python onnxruntime", "--python"),
        (f"{BENCH} --device gpu", "device 'gpu': cpu, cuda or cuda:NUMBER is required"),
        ("bench --baseline mlp.onnx", "ARTIFACTS"),
    ],
)
def test_what_cannot_be_measured_or_compared_is_said_in_a_line(
    qc: Qc, tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if words.startswith("bench"):
        tiny_file("mlp", file="here/mlp.onnx")
    said = qc(*words.split())
    assert said.code == 2
    assert message in said.err


def test_one_command_writes_every_form_and_says_how_to_repeat_it(
    qc: Qc, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    words = ["bench", model, model, "--baseline", model, "--threads", 1, "--max-time", 0.1]
    words += ["--clients", "1,2", "--layer-times", "-o", tmp_path / "r.json"]
    words += ["--csv", tmp_path / "r.csv", "--markdown", tmp_path / "r.md"]
    code, out, _ = qc(*words)
    assert code == 0
    assert "speed-up" in out
    assert "clients" in out
    assert "layers of mlp.onnx, profiled" in out
    assert "100.0%" in out
    results = load_results(tmp_path / "r.json")
    assert results.settings["command"] == ["qcompile", *map(str, words)]
    assert [point.count for point in results.rows[0].concurrency] == [1, 2]
    assert (tmp_path / "r.csv").read_text().count("\n") == 3
    assert "mlp.onnx (2)" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("not run", 0), ("measured", 0)])
def test_a_failed_row_is_the_exit_code_of_a_bench(
    qc: Qc, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    row = Row("a", "a.onnx", "onnxruntime", status=status, reason="for a test")
    here, settings = {"processor": "some", "cores": 2}, {"threads": 1, "inputs": {}}
    results = Results(baseline="a", rows=[row], environment=here, settings=settings)
    monkeypatch.setattr("qcompile.bench.benchmark.benchmark", lambda *_, **__: results)
    assert qc("bench", "a.onnx", "--baseline", "a.onnx").code == code
