"""The guide's table of metrics: every name is there and can be read, with the unit and resamples it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from scoring import inputs_of

import qcompile
from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.detection import MeanAveragePrecision
from qcompile.bench.results.row import unit_of
from qcompile.bench.statistics.bootstrap import CONFIDENCE, FEWEST_UNITS, RESAMPLES
from qcompile.cli.main import group
from qcompile.model.preprocessing import TextPreprocessing
from qcompile.spec.words import AUTO, F1_KINDS, MAP_KINDS, METRIC_PATTERN, METRICS

GUIDE = Path(qcompile.__file__).parent / "docs" / "measuring.md"
SECTION = GUIDE.read_text(encoding="utf-8").partition("## Metrics\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.partition("### Detectors")[0].splitlines()
    if line.startswith("| `") and not line.startswith("| `metric`")
]
DOCUMENTED = {name: row for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_metric_and_parameter_is_in_the_table() -> None:
    known = {name.partition(":")[0] for name in DOCUMENTED} - {"file.py"}
    assert known == {*METRICS, AUTO}
    for kind in F1_KINDS[1:]:
        assert f"f1:{kind}" in DOCUMENTED
    for kind in MAP_KINDS:
        assert f"map:{kind}" in DOCUMENTED


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in ("file.py:function", AUTO)])
def test_what_the_table_says_of_a_metric_holds(name: str) -> None:
    assert re.fullmatch(METRIC_PATTERN.strip("^$"), name)
    task = TextPreprocessing(tokenizer="t", inputs=("x",), task="token-classification", classes=("O", "B-X"))
    metric = read_metric(name, inputs=inputs_of(task))
    row = DOCUMENTED[name]
    assert metric.name == name
    assert metric.unit == unit_of(name)
    said = row[5].partition(";")[2 if name == "mse" else 0]
    assert ("own unit" in said) == (metric.unit == "units")
    assert ("less is better" in said) != metric.higher_is_better
    without = "none" in row[4]
    assert without != metric.needs_labels


def test_the_stated_interval_is_the_one_that_is_computed() -> None:
    text = " ".join(SECTION.split())
    assert f"The {CONFIDENCE:.0%} interval of a drop is a paired bootstrap: {RESAMPLES} resamples" in text
    assert f"({MeanAveragePrecision('map').resamples} for `map`)" in text
    assert FEWEST_UNITS == 10
    assert "Fewer than ten samples have no interval" in text


def test_the_examples_are_commands_that_exist() -> None:
    lines = [line.strip() for line in SECTION.splitlines() if line.startswith("    qcompile ")]
    assert len(lines) == 3
    for line in lines:
        name, *arguments = shlex.split(line)[1:]
        command = group.get_command(click.Context(group), name)
        assert command is not None
        command = getattr(command, "commands", {}).get("measure", command)
        parsed = command.make_context(name, list(arguments))
        assert re.fullmatch(METRIC_PATTERN.strip("^$"), parsed.params["metric"])
