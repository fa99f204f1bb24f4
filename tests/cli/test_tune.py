"""`qcompile tune` by its command: the tables, the JSON, the picture, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import MakePath, Qc

import qcompile

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture
def arguments(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> list[object]:
    """A tuning of the tiny residual network that takes a second."""
    return [
        "tune", tiny_file("residual"), "--data", samples("residual"), "--metric", "cosine", "--target",
        "onnxruntime", "--max-time", 0.3, "--threads", 1, "-o", tmp_path / "out",
    ]  # fmt: skip


def test_tables_name_layers_and_trials_and_the_picture_is_drawn(
    qc: Qc, arguments: list[object], tmp_path: Path
) -> None:
    said = qc(*arguments, "--max-drop", 5)
    assert said.code == 0, said.err
    for word in (
        "layers by damage, onnxruntime", "conv1", "conv2", "gemm", "trials", "cosine drop", "latency, ms",
        "onnxruntime-fp32", "onnxruntime-int8", "best", "against float", "lost of 100.00% cosine",
    ):  # fmt: skip
        assert word in said.out, word
    assert f"recipe: {tmp_path / 'out' / 'recipe.toml'}" in said.out.replace("\n", "")
    drawn = ElementTree.parse(tmp_path / "out" / "front.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(drawn.itertext())
    for word in ("onnxruntime-fp32", "onnxruntime-int8", "latency, ms (median)", "drop, points", "budget 5"):
        assert word in words, word


def test_json_is_all_that_is_printed_and_is_what_was_written(
    qc: Qc, arguments: list[object], tmp_path: Path
) -> None:
    said = qc(*arguments, "--max-drop", 5, "--exclude", "gemm", "--samples", 10, "--json")
    assert said.code == 0, said.err

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(said.out, parse_constant=never)
    assert found == json.loads((tmp_path / "out" / "tune.json").read_text(), parse_constant=never)
    assert found["float_value"] == pytest.approx(1.0)
    assert {one["layer"] for one in found["damage"]["onnxruntime"]} == {"conv1", "conv2"}
    assert {one["precision"] for one in found["trials"]} == {"fp32", "int8"}
    assert set(found["front"]) <= {one["name"] for one in found["trials"]}
    times = {one["name"]: one["latency_ms"] for one in found["trials"]}
    assert found["best"]["latency_ms"] <= times["onnxruntime-fp32"]
    recipe = qcompile.read_recipe(found["recipe"])
    assert [one.name for one in recipe.artifact] == [found["best"]["name"]]


def test_quiet_prints_nothing_but_warnings(qc: Qc, arguments: list[object]) -> None:
    said = qc(*arguments, "--max-drop", 5, "--exclude", "gemm", "--samples", 10, "-q")
    assert (said.code, said.out) == (0, "")
    assert all(line.startswith("warning: ") for line in said.err.splitlines() if line), said.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-drop", -1], "--max-drop -1: at least 0 is required"),
        (["--max-drop", "x"], "'x' is not a valid float"),
        ([], "Missing option '--max-drop'"),
        (
            ["--max-drop", 1, "--metric", "f2"],
            "--metric 'f2': auto, top1, top5, f1[:AVERAGE], miou, map[:50], wer, cer, ndcg[:K], ",
        ),
        (["--max-drop", 1, "--metric", "neighbors"], "did you mean 'neighbours'?"),
        (["--max-drop", 1, "--target", "onnx"], "target 'onnx' is unknown"),
    ],
)
def test_wrong_options_are_usage_errors(
    options: list[object], said: str, qc: Qc, arguments: list[object], tmp_path: Path
) -> None:
    found = qc(*arguments, *options)
    assert found.code == 2
    assert said in found.err
    assert not (tmp_path / "out").exists()
