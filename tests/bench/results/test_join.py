"""Results of several machines as one: every row keeps its own comparison, and is found by every reader."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
from report_results import recommendable, results_of, write
from rich.console import Console

from qcompile.bench.results.regress import compare_results
from qcompile.bench.results.render import markdown_table
from qcompile.bench.results.results import SCHEMA, Results, join_results, read_results, save_results
from qcompile.cli.tables import results_table
from qcompile.reporting import write_report
from qcompile.reporting.recommendation import recommend

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
    schema = json.loads(SCHEMA.read_text())
    machines = {"type": "object", "properties": {"machines": schema["properties"]["machines"]}}
    jsonschema.validate(value, machines)
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


def test_runs_of_the_same_machines_are_compared_row_by_row() -> None:
    changes = compare_results(both(), both(), relative=True).changes
    assert {change.name: change.speedup.verdict for change in changes if change.speedup} == dict.fromkeys(
        ["pytorch", "int8", "pytorch (sm90)", "engine"], "no difference"
    )
