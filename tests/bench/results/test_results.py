"""Files of results: damaged ones are refused by the key that is wrong; several joined."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import workers_here
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from report_results import recommendable, results_of, write
from rich.console import Console

import qcompile
from qcompile.bench.report import write_report
from qcompile.bench.report.recommendation import recommend
from qcompile.bench.results.render import markdown_table
from qcompile.bench.results.results import (
    SCHEMA,
    Results,
    join_results,
    load_results,
    parse_results,
    read_results,
    save_results,
)
from qcompile.bench.results.row import Accuracy, ClassChange, Row, WarmUp
from qcompile.cli.tables import results_table
from qcompile.errors import ArtifactError

DATA = Path(__file__).parents[2] / "samples/bench/results.json"
SAMPLE = json.loads(DATA.read_text())
"""One model, a worse one, the same again, one whose outputs are NaN."""


def entry_of(row: Row) -> dict[str, Any]:
    """The entry of a row in the file."""
    [entry] = Results(baseline="a", settings={}, environment={}, rows=[row]).as_json()["artifacts"]
    return dict(entry)


def test_every_field_of_an_entry_is_in_the_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    row = Row("a", "a", "a", calls_ms=(1.0,), gpu_memory_rounds_bytes=(1,))
    assert list(schema["$defs"]["Row"]["properties"]) == list(entry_of(row))


def test_a_file_is_read_and_written_again_byte_for_byte(tmp_path: Path) -> None:
    """Infinite and NaN figures too, which JSON holds as null."""
    results = load_results(DATA)
    worse, same, wrong = (results.row(name).difference for name in ("off.onnx", "plain.onnx (2)", "nan.onnx"))
    assert worse.snr_db == pytest.approx(34.0, abs=0.1)
    assert (same.passed, same.snr_db) == (True, math.inf)
    assert (wrong.passed, wrong.snr_db) == (False, -math.inf)
    save_results(results, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == DATA.read_bytes()
    jsonschema.validate(results.as_json(), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_a_group_whose_figure_was_not_finite_was_not_measured(figure: float, tmp_path: Path) -> None:
    results = load_results(DATA)
    row = replace(
        results.rows[1],
        accuracy=Accuracy("perplexity", figure, drop_points=figure),
        warm_up=WarmUp(3, 0.1, True),
    )
    save_results(replace(results, rows=[results.rows[0], row]), tmp_path / "r.json")
    again = load_results(tmp_path / "r.json").rows[1]
    assert (again.accuracy, again.warm_up) == (None, WarmUp(3, 0.1, True))
    kept = Accuracy("top1", 0.5, drop_points=figure, per_class=(ClassChange(1, 0.5, figure, 2),))
    save_results(replace(results, rows=[replace(row, accuracy=kept)]), tmp_path / "r.json")
    (again,) = load_results(tmp_path / "r.json").rows
    assert again.accuracy == Accuracy("top1", 0.5)


def changed(place: str, value: object) -> dict[str, Any]:
    """The sample with another value at a path such as `artifacts.0.name`."""
    whole = copy.deepcopy(SAMPLE)
    *steps, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    table: Any = whole
    for step in steps:
        table = table[step]
    table[last] = value
    return whole


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        ("settings", [], "settings"),
        ("settings.inputs", 3, "settings.inputs"),
        ("settings.confidence", float("nan"), "settings.confidence"),
        ("settings.threads", "two", "settings.threads"),
        ("environment.noise", {"reasons": 4}, "environment.noise.reasons"),
        ("artifacts", {}, "artifacts"),
        ("artifacts.0", "plain", "artifacts[0]"),
        ("artifacts.1.name", None, "artifacts[1].name"),
        ("artifacts.1.size_bytes", "many", "artifacts[1].size_bytes"),
        ("artifacts.1.size_bytes", 10**400, "artifacts[1].size_bytes"),
        ("artifacts.1.latency_ms", [1], "artifacts[1].latency_ms"),
        ("artifacts.1.warnings", [5], "artifacts[1].warnings[0]"),
        ("artifacts.1.packages", ["a"], "artifacts[1].packages"),
        ("artifacts.1.speedup", 2.0, "artifacts[1].speedup"),
        ("artifacts.1.status", "well", "artifacts[1].status"),
        ("artifacts.1.launch_rounds", [True], "artifacts[1].launch_rounds[0]"),
        ("artifacts.1.launch_rounds", None, "artifacts[1].launch_rounds"),
        ("artifacts.1.launch_rounds", [50, -10], "artifacts[1].launch_rounds[1]"),
        ("artifacts.1.round_medians_ms", None, "artifacts[1].round_medians_ms"),
        ("artifacts.1.round_medians_ms", [1.0, 0.0], "artifacts[1].round_medians_ms[1]"),
        ("artifacts.1.round_medians_ms", [float("nan")], "artifacts[1].round_medians_ms[0]"),
        ("history", 5, "history"),
        ("history", [{"artifacts": {"a": 3}}], "history[0].artifacts[...]"),
        ("interrupted", "no", "interrupted"),
        ("created", 7, "created"),
    ],
)
def test_a_wrong_type_is_refused_with_file_and_key(
    tmp_path: Path, place: str, value: object, key: str
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(changed(place, value)))
    with pytest.raises(ArtifactError) as caught:
        load_results(path)
    assert caught.value.message.startswith(f"{path}: not a results file (key '{key}': ")
    assert caught.value.data["file"] == path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((content, "not a results file") for content in (
            b"", b"{", b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"null", b"7" * 5000,
            b'{"kind": "x", "schema_version": 1}',
        )),
        (json.dumps({**SAMPLE, "schema_version": 3}).encode(), "of version 3; .* of version 2 is"),
    ],
)  # fmt: skip
def test_what_is_no_results_file_of_a_known_version_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ArtifactError, match=rf"r\.json: .*{words}"):
        parse_results(content, Path("r.json"))


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_any_value_is_read_or_refused(value: object) -> None:
    for whole in (value, *({**SAMPLE, key: value} for key in SAMPLE)):
        with contextlib.suppress(ArtifactError):
            parse_results(json.dumps(whole).encode(), Path("r.json"))


HISTORY = [{"created": "2026-11-01T00:00:00+00:00", "machine": "m", "artifacts": {}}]


def part(processor: str, *rows: tuple[str, float], noisy: str = "", **options: object) -> Results:
    """What one machine measured: the first row is the baseline."""
    noise = {"noisy": bool(noisy), "reasons": [noisy] if noisy else []}
    environment = {"processor": processor, "cores": 2, "features": [], "before": {}, "noise": noise}
    entries = [recommendable(name, ms, precision="fp32", **options) for name, ms in rows]
    return read_results(results_of(*entries, environment=environment))


def both() -> Results:
    cpu = part("EPYC", ("pytorch", 30.0), ("int8", 10.0))
    gpu = part("Xeon", ("pytorch", 50.0), ("engine", 2.0), noisy="the clock fell")
    return join_results({"cpu": cpu, "sm90": gpu}, history=HISTORY)


def test_each_row_is_compared_with_the_baseline_of_its_machine() -> None:
    joined = both()
    assert [(row.name, row.machine, joined.baseline_of(row)) for row in joined.rows] == [
        ("pytorch", "cpu", "pytorch"),
        ("int8", "cpu", "pytorch"),
        ("pytorch (sm90)", "sm90", "pytorch (sm90)"),
        ("engine", "sm90", "pytorch (sm90)"),
    ]
    speedups = {row.name: row.speedup.value for row in joined.rows if row.speedup}
    assert round(speedups["int8"]) == 3  # 30 / 10, not 50 / 10
    assert round(speedups["engine"]) == 25
    assert joined.environment["noise"] == {"noisy": True, "reasons": ["sm90: the clock fell"]}
    assert joined.history == HISTORY


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    joined = both()
    save_results(joined, tmp_path / "results.json")
    value = json.loads((tmp_path / "results.json").read_text())
    jsonschema.validate(value, json.loads(SCHEMA.read_text()))
    assert read_results(value).as_json() == joined.as_json()
    assert read_results(value).machines["sm90"].environment["processor"] == "Xeon"


def test_one_machine_is_what_it_measured() -> None:
    alone = part("EPYC", ("pytorch", 30.0), ("int8", 10.0))
    joined = join_results({"cpu": alone}, history=alone.history)
    assert joined.as_json() == alone.as_json()
    assert "machines" not in joined.as_json()


def test_machines_with_several_gpus_are_told_apart() -> None:
    gpus = {f"cuda:{n}": part("Xeon", ("pytorch", 50.0), ("engine", 2.0 + n)) for n in (0, 1)}
    joined = join_results({"cpu": part("EPYC", ("pytorch", 30.0)), "sm90": join_results(gpus)})
    assert list(joined.machines) == ["cpu", "sm90 cuda:0", "sm90 cuda:1"]
    names = [row.name for row in joined.rows]
    assert len(set(names)) == len(names) == 5
    for row in joined.rows:
        base = joined.row(joined.baseline_of(row))
        assert base.machine == row.machine
        assert (base is row) == (row.speedup is None)


def test_tables_and_report_show_the_machine(tmp_path: Path) -> None:
    joined = both()
    told = io.StringIO()
    Console(file=told, width=200).print(results_table(joined, width=200))
    text = told.getvalue()
    assert "measurement" in text
    assert text.count("(baseline)") == 2
    header, _, *rows = markdown_table(joined).splitlines()
    assert header.startswith("| method | machine | latency ms")
    assert [row.split(" | ")[1] for row in rows] == ["cpu", "cpu", "sm90", "sm90"]
    path = write(tmp_path / "results.json", joined.as_json())
    found = recommend(path)
    assert found.artifact == "engine"
    assert "as fast as pytorch (sm90)" in found.sentence
    assert any("cpu and sm90" in text for text in found.caveats)
    write_report(path, tmp_path / "report.html")
    assert "sm90" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("short_blocks")
def test_runs_written_to_one_file_are_its_history(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers_here.install(monkeypatch)
    model, output = str(tiny_file("mlp")), tmp_path / "r.json"
    runs = [
        qcompile.benchmark({"a": model, "b": model}, baseline="a", output=output, threads=1, max_time_s=0.1)
        for _ in range(3)
    ]
    history = load_results(output).history
    assert [run["created"] for run in history] == [run.created for run in runs[:2]]
    b = runs[1].row("b")
    assert history[1]["artifacts"]["b"] == {
        "median_ms": b.latency.median_ms, "speedup": b.speedup.value, "low": b.speedup.low,
        "high": b.speedup.high, "accuracy": None,
    }  # fmt: skip
