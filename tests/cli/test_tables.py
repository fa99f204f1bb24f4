"""Tables, reports and options of the terminal: of GPUs, of a sweep, of what is missing, of `doctor`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import MakePath, Qc
from msgspec.structs import replace
from reference_pages import verbs
from report_results import layers_json, results_json, write
from rich.console import Console
from sweeps import RECIPE, write_sweep

from qcompile.bench.results.results import Results
from qcompile.bench.results.row import CurvePoint, GpuLatency, Row
from qcompile.cli.main import missing_package
from qcompile.cli.session import Session, progress_text
from qcompile.cli.tables import curve_table, gpu_table, left_in_float_lines
from qcompile.cli.verb import spell_options, spell_options_in
from qcompile.core.installation import install_hint
from qcompile.errors import InvalidOption
from qcompile.spec.artifacts import BuildCommand
from qcompile.spec.looking import InspectCommand
from qcompile.spec.measure import BenchCommand
from qcompile.spec.models import MergeRangesCommand
from qcompile.spec.option import options_of
from qcompile.spec.recipes import RunCommand, TuneCommand

ROWS = [
    Row("net", "net.py:build", "pytorch", device="cuda:0", gpu_latency=GpuLatency(4.0, 5.0, 3.5)),
    Row("plan", "m.engine", "tensorrt", device="cuda:0", gpu_latency=GpuLatency(1.6, 2.0, 0.1)),
    Row("onnx", "m.onnx", "onnxruntime", device="cuda:0"),
]


def text(table: Any) -> str:
    """What a terminal shows."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def results(rows: list[Row]) -> Results:
    """Results of a run."""
    return Results(baseline="net", rows=rows, environment={}, settings={})


def test_compute_is_compared_with_compute() -> None:
    shown = text(gpu_table(results(ROWS))).splitlines()
    cells = [line.replace("│", " ").split() for line in shown]
    assert ["net", "4.00", "1.00×", "5.00", "3.50"] in cells
    assert ["plan", "1.60", "2.50×", "2.00", "0.100"] in cells
    assert not any(line[:1] == ["onnx"] for line in cells)


def test_a_baseline_without_a_gpus_clock_leaves_the_ratio_out() -> None:
    rows = [replace(ROWS[0], gpu_latency=None), *ROWS[1:]]
    assert "×" not in text(gpu_table(results(rows)))
    assert gpu_table(results([rows[0]])) is None


def test_inferences_in_flight_are_a_curve() -> None:
    rows = [
        replace(
            ROWS[1], in_flight=(CurvePoint(streams=4, median_ms=2.0, p99_ms=3.0, throughput_per_s=1234.0),)
        ),
        ROWS[0],
    ]
    shown = text(curve_table(results(rows), "in_flight"))
    assert "in flight" in shown
    assert ["plan", "4", "2.00", "3.00", "1,234"] in [
        line.replace("│", " ").split() for line in shown.splitlines()
    ]
    assert curve_table(results(rows), "concurrency") is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with results and layers."""
    write(tmp_path / "results.json", results_json(2))
    write(tmp_path / "layers.json", layers_json())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_report_is_written_and_its_size_said(done: Qc) -> None:
    said = done("report", "results.json", "-o", "out/report.html", "--layers", "layers.json").out
    assert said.startswith("out/report.html  ")
    assert "loads nothing" in said
    text = Path("out/report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "Errors of the layers" in text
    told = done("report", "results.json", "--json").json
    assert told == {"path": "report.html", "size_bytes": Path("report.html").stat().st_size}


def test_a_wrong_file_is_an_error_with_a_way_out(qc: Qc, folder: Path) -> None:
    for code, file, words in (
        (1, "layers.json", "qcompile.results"), (2, "resuls.json", "did you mean results.json?"),
    ):  # fmt: skip
        said = qc("report", file)
        assert (said.code, words in said.err) == (code, True), said
    assert not (folder / "report.html").exists()


HEAD, OWN = RECIPE.split("[[artifact]]")
FLOAT = HEAD + OWN[OWN.index("[sweep]") :].replace(', "int8"', "")


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file, FLOAT)


def test_a_failed_cell_says_why_and_the_exit_code_is_1(qc: Qc, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"no model")
    said = qc("sweep", recipe)
    assert said.code == 1
    assert "done  residual: build-openvino-fp32" in said.err
    assert "other-openvino-fp32: not built" in said.err
    assert "residual-openvino-fp32" in said.out
    again = qc("sweep", recipe, "--json")
    value = json.loads(again.out)
    assert again.code == 1
    assert [*value["artifacts"]] == ["residual-openvino-fp32", "mlp-openvino-fp32"]
    assert [*value["failures"]] == ["other-openvino-fp32"]
    assert set(value["stages"].values()) == {"skipped"}


def test_only_and_dry_run(qc: Qc, done: Qc, recipe: Path, tmp_path: Path) -> None:
    shown = done("sweep", recipe, "--dry-run", "--only", "mlp-*,other-*")
    assert "to do: 6 of 6 stages" in shown.out
    assert not (tmp_path / "out").exists()
    made = done("sweep", recipe, "--only", "mlp-*", "-o", tmp_path / "else", "--json")
    assert [*json.loads(made.out)["artifacts"]] == ["mlp-openvino-fp32"]
    value = json.loads(done("sweep", recipe, "--dry-run", "--json", "-o", tmp_path / "else").out)
    states = {stage["stage"]: stage["state"] for stage in value["stages"]}
    assert states["mlp: build-openvino-fp32"] == "done"
    assert states["other: build-openvino-fp32"] == "to do"
    run = qc("run", recipe)
    assert run.code == 2
    assert f"hint: qcompile sweep {recipe}" in run.err


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("onnxruntime.quantization", "cpu"),
        ("torch", "torch"),
        ("PIL.Image", "models"),
        ("tensorrt_rtx", "tensorrt-rtx"),
        ("pynvml", "cpu"),
        ("distributed", "cluster"),
        ("tritonclient.grpc", "triton"),
    ],
)
def test_a_package_of_an_extra_names_the_extra(module: str, extra: str) -> None:
    error = missing_package(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert error is not None
    assert error.hint == install_hint(extra)
    assert error.exit_code == 1


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ModuleNotFoundError("no name"),
        ImportError("cannot import name 'x' from 'torch'", name="torch"),
        ValueError("torch"),
    ],
)
def test_other_errors_are_left_as_they_are(error: Exception) -> None:
    assert missing_package(error) is None


OF_THE_NEXT_STEP = {
    MergeRangesCommand: ("targets", "--target"),
    TuneCommand: ("layers", "--layer"), InspectCommand: ("trust", "--trust"),
}  # fmt: skip
"""Options that a message names, and the typed command has not."""


def test_a_field_is_shown_as_the_flag_that_is_typed() -> None:
    for name, command in verbs():
        options = [option for option in options_of(command.spec) if not option.spelling.argument]
        flags = [(option.key, option.flag) for option in options]
        for field, flag in [*flags, *filter(None, [OF_THE_NEXT_STEP.get(command.spec)])]:
            error = InvalidOption(f"`{field}` 3: wrong", hint=f"leave `{field}` out", option=field)
            spell_options_in(error, command.spec)
            assert str(error) == f"{flag} 3: wrong\n  hint: leave {flag} out", name
            assert error.data["option"] == flag, name
    assert (
        spell_options("`gpus`, `tensorrt.workspace`, `rules`", BuildCommand) == "--gpu, --workspace, --judge"
    )
    assert (
        spell_options("give `again`, `layers`", RunCommand) == "give --again, `layers`"
    )  # a key of the recipe


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (10, 10), (12, 11)])
def test_ten_layers_in_float_are_listed(count: int, shown: int) -> None:
    proof = {"left_in_float": {f"conv{number}": "excluded" for number in range(count)}}
    lines = left_in_float_lines(proof, "the manifest")
    assert (len(lines), "left in float: 2 more, see the manifest" in lines) == (shown, count == 12)
    assert lines[:1] == ["left in float: conv0 (excluded)"][:shown]


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, None, 9.0, ""), (3, None, 0.5, "3"), (481, None, 10.0, "481, 48.1/s"), (0, 5, 9.0, "0%"),
        (20, 120, 2.0, "17%, 10 s left"), (1, 100, 60.0, "1%, 99 min left"), (5, 5, 9.0, "100%"),
    ],
)  # fmt: skip
def test_progress_shows_the_share_and_the_time_left(
    done: int, total: int | None, seconds: float, text: str
) -> None:
    assert progress_text(done, total, done, seconds) == text


def test_steps_that_continue_a_count_are_timed_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter((0.0, 0.0, 10.0, 30.0, 31.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    session = Session(verbose=True, quiet=False, as_json=False)
    for step in (("look",), ("load a", 0, 4), ("load b", 1, 4), ("load c", 3, 4), ("compare", 0, 4)):
        session.progress(*step)
    assert capsys.readouterr().err.splitlines() == [
        "look", "load a 0%", "load b 25%, 30 s left", "load c 75%, 10 s left", "compare 0%",
    ]  # fmt: skip


def test_a_word_that_is_no_option_stays_between_its_backticks() -> None:
    text = "put `labels` beside the arrays; `qcompile calibrate` writes them"
    assert spell_options(text, BenchCommand) == text


def test_doctor_prints_the_machine_the_precisions_and_the_extras(done: Qc) -> None:
    said = done("doctor").out
    for text in (
        "processor: ", " memory, ", "INT8 on ", "precisions on this machine", "emulated",
        "concluded from instruction sets and tables, not measured", "TensorFlow by ",
        install_hint("tensorflow"),
    ):  # fmt: skip
        assert text in said
    assert "--target" in said
    assert "`target`" not in said


def test_doctor_answers_for_gpus_that_are_not_here(done: Qc) -> None:
    said = done("doctor", "--gpu", "sm75,8.9").out
    assert "sm75 Turing: Tensor Cores take FP16, INT8, INT4" in said
    assert "sm89 Ada Lovelace: Tensor Cores take TF32, FP16, BF16, INT8, INT4, FP8" in said
    assert (
        "sm61 Pascal (not in the tables: as sm60): no Tensor Cores\n" in done("doctor", "--gpu", "sm61").out
    )


def test_the_json_holds_all_that_is_printed(done: Qc) -> None:
    found = json.loads(done("doctor", "--gpu", "sm86", "--json").out)
    assert found["types"][0]["types"] == ["TF32", "FP16", "BF16", "INT8", "INT4"]
    assert found["machine"]["features"] is not None
    assert {one["state"] for one in found["precisions"]} <= {"fast", "runs", "emulated", "builds", "no"}
    assert {one["extra"] for one in found["extras"]} >= {"models", "data", "metrics", "tensorflow"}
    assert found["tensorflow"]["python"] == sys.executable


def test_what_is_no_gpu_or_no_interpreter_is_refused(qc: Qc) -> None:
    said = qc("doctor", "--gpu", "4090")
    assert (said.code, "a compute capability from sm50 on is required" in said.err) == (2, True)
    said = qc("doctor", "--python", "tensorrt=/usr/bin/python3")
    assert (said.code, "tensorflow=INTERPRETER is required" in said.err) == (2, True)
