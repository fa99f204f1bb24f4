"""`bench --rate` and `--p99-below`: from the options to every form of the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from commands import Qc

import qcompile
from qcompile.bench.measuring import largest_rate, under_load
from qcompile.bench.results.results import SCHEMA, load_results
from qcompile.errors import InvalidOption


def test_load_is_printed_and_written_in_every_form(
    qc: Qc, tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_load, "POINT_S", 0.1)
    monkeypatch.setattr(under_load, "_SEARCH_POINT_S", 0.1)
    monkeypatch.setattr(largest_rate, "RESOLUTION", 1.0)
    monkeypatch.setattr(largest_rate, "_STEPS", 0)
    model = tiny_file("mlp")
    words = ["bench", model, "--baseline", model, "--threads", 1, "--max-time", 0.1, "--rate", "3000"]
    words += ["--p99-below", 5000, "-o", tmp_path / "r.json"]
    words += ["--csv", tmp_path / "r.csv", "--markdown", tmp_path / "r.md"]
    code, out, _ = qc(*words)
    assert code == 0
    assert "under load" in out
    assert "3,000" in out
    assert "p99 below 5000 ms" in out
    results = load_results(tmp_path / "r.json")
    assert results.settings["rates"] == [3000]
    assert results.settings["p99_below_ms"] == 5000
    assert results.settings["arrivals_seed"] == 20261122
    [entry] = results.rows
    assert entry.largest_rate is not None
    assert {3000.0} < {point.rate_per_s for point in entry.arrivals}
    for point in entry.arrivals:
        if point.keeps_up:  # the machine's to say
            assert 0 < (point.median_ms or 0) <= (point.p90_ms or 0) <= (point.p99_ms or 0)
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text()), json.loads(SCHEMA.read_text()))
    text = (tmp_path / "r.md").read_text()
    assert "| under load | requests/s |" in text
    assert "| p99 below 5000 ms | largest rate, requests/s |" in text
    header, row = (tmp_path / "r.csv").read_text().splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert cells["largest_rate_p99_below_ms"] == "5000.0"
    assert float(cells["largest_rate_per_s"]) > 0


@pytest.mark.parametrize("value", ["0", "20,20", "-5", "20,fast", "nan"])
def test_rates_that_are_none_are_refused(qc: Qc, tiny_file: Callable[..., Path], value: str) -> None:
    model = tiny_file("mlp")
    code, _, err = qc("bench", model, "--baseline", model, "--rate", value)
    assert code == 2
    assert "rate" in err
    assert "Traceback" not in err


def test_python_refuses_them_too(tiny_file: Callable[..., Path]) -> None:
    model, wrongs = str(tiny_file("mlp")), [{"rates": [5.0, 5.0]}, {"rates": [0.0]}, {"p99_below_ms": -1.0}]
    for wrong in wrongs:
        with pytest.raises(InvalidOption, match=f"`{next(iter(wrong))}`: .* above 0"):
            qcompile.benchmark([model], baseline=model, **wrong)
