"""`qcompile gate` as it is typed: real versions of a tiny model, and what a CI reads of the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from commands import MakePath, Qc
from onnx import helper

import qcompile

pytestmark = pytest.mark.usefixtures("short_blocks")

MakeModel = Callable[..., onnx.ModelProto]


def with_work(model: onnx.ModelProto, repeats: int) -> onnx.ModelProto:
    """A model that also computes many sines, which change nothing: their product with 0 is added."""
    nodes = [helper.make_node("Expand", ["y", "large"], ["s0"])]
    nodes += [helper.make_node("Sin", [f"s{i}"], [f"s{i + 1}"]) for i in range(repeats)]
    nodes += [
        helper.make_node("ReduceMax", [f"s{repeats}"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "nothing"], ["zero"]),
        helper.make_node("Add", ["y", "zero"], ["out"]),
    ]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array([2000, 1, 1], np.int64), "large"),
            onnx.numpy_helper.from_array(np.zeros((), np.float32), "nothing"),
        ]
    )
    model.graph.output[0].name = "out"
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def versions(tiny: MakeModel, tmp_path: Path) -> tuple[Path, Path]:
    """A model, and one that takes many times as long for the same outputs."""
    paths = tmp_path / "old.onnx", tmp_path / "new.onnx"
    onnx.save(tiny("mlp"), paths[0])
    onnx.save(with_work(tiny("mlp"), 12), paths[1])
    return paths


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("old.onnx", "new.onnx"), "does not exist"),
        (("--max-slower", "0", "a", "b"), "--max-slower"),
        (("--max-drop", "1", "a", "b"), "--evaluation"),
        (("--device", "all", "a", "b"), "one device"),
        ((".", "new.onnx"), "OLD is a folder"),
        ((".", "."), "no built artifact"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    qc: Qc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = qc("gate", *words)
    assert said.code == 2
    assert message in said.err
