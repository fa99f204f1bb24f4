"""`qcompile bench` and `qcompile bench compare`, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcompile.bench.results.results import Results, load_results, save_results
from qcompile.bench.results.row import Latency, Row
from qcompile.cli import main

pytestmark = pytest.mark.usefixtures("short_blocks")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qc(capsys: pytest.CaptureFixture[str]) -> Run:
    """`qc("bench", ...)` returns exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(done.value.code or 0), said.out, said.err

    return call


def results_file(path: Path, level: float, **environment: Any) -> Path:
    medians = [level * (1.0 + 0.001 * (i * 7 % 5)) for i in range(20)]
    row = Row("a", "a.onnx", "onnxruntime", latency=Latency(level), round_medians_ms=tuple(medians),
              launch_rounds=(5,) * 4, size_bytes=10)  # fmt: skip
    where = {"processor": "some", "architecture": "x86_64", "features": [], "cores_usable": 2, "gpu": None}
    save_results(Results("a", [row], where | environment, {"threads": 1, "inputs": {"x": "1x4"}}), path)
    return path


def test_one_command_writes_every_form_and_says_how_to_repeat_it(
    qc: Run, tiny_file: Callable[..., Path], tmp_path: Path
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
    same = tmp_path / "r.json"
    code, out, _ = qc("bench", "compare", same, same, "--fail-if", "slower:50%")
    assert code == 0


def test_help_of_the_default_command_shows_what_is_typed(qc: Run) -> None:
    code, out, _ = qc("bench", "--help")
    assert code == 0
    assert out.startswith("Usage: qcompile bench [OPTIONS] ARTIFACTS...")
    assert "--precision-target" in out
    assert "qcompile bench compare old.json new.json" in out
    code, out, _ = qc("bench", "compare", "--help")
    assert out.startswith("Usage: qcompile bench compare [OPTIONS] OLD NEW")


def test_compare_has_the_exit_codes_of_a_gate(qc: Run, tmp_path: Path) -> None:
    old = results_file(tmp_path / "old.json", 10.0)
    new = results_file(tmp_path / "new.json", 10.8)
    assert qc("bench", "compare", old, new)[0] == 0
    assert qc("bench", "compare", old, new, "--fail-if", "slower:10%")[0] == 0
    code, out, err = qc("bench", "compare", old, new, "--fail-if", "slower:5%")
    assert code == 1
    assert "slower" in out
    assert "a: fails slower:5%" in err
    code, _, err = qc("bench", "compare", old, new, "--fail-if", "slow")
    assert code == 2
    assert "hint: write for instance slower:5%" in err
    assert qc("bench", "compare", old, tmp_path / "none.json")[0] == 2


def test_compare_writes_and_prints_its_json(qc: Run, tmp_path: Path) -> None:
    old = results_file(tmp_path / "old.json", 10.0)
    new = results_file(tmp_path / "new.json", 9.0)
    words = ("bench", "compare", old, new, "--json", "-o", tmp_path / "c.json")
    code, out, _ = qc(*words)
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "c.json").read_text())
    [change] = json.loads(out)["artifacts"]
    assert change["speedup"]["verdict"] == "faster"
    assert change["speedup"]["value"] == pytest.approx(10.0 / 9.0, rel=0.01)


def test_results_of_different_machines_are_refused_or_only_shown(qc: Run, tmp_path: Path) -> None:
    old = results_file(tmp_path / "old.json", 10.0)
    new = results_file(tmp_path / "new.json", 9.0, processor="another")
    code, _, err = qc("bench", "compare", old, new)
    assert code == 2
    assert "different machines" in err
    assert "--across-machines" in err
    code, out, _ = qc("bench", "compare", old, new, "--across-machines")
    assert code == 0
    assert "some, 2 cores | another, 2 cores" in out
    assert "faster" not in out


def test_wrong_lists_are_refused(qc: Run, tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("mlp")
    for option, value in (
        ("--batch-sizes", "1,x"),
        ("--clients", "0"),
        ("--streams", "0"),
        ("--python", "onnxruntime"),
    ):
        code, _, err = qc("bench", model, "--baseline", model, option, value)
        assert code == 2
        assert option in err
    assert qc("bench", "--baseline", model)[0] == 2


def test_a_device_of_another_spelling_is_refused(qc: Run, tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("mlp")
    code, _, err = qc("bench", model, "--baseline", model, "--device", "gpu")
    assert code == 2
    assert "device 'gpu': cpu, cuda or cuda:NUMBER is required" in err
