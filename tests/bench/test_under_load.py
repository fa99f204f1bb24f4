"""A bench under load: from the option to the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile
from qcompile.bench.measuring import largest_rate, under_load
from qcompile.bench.results.results import load_results
from qcompile.errors import InvalidOption


def test_requests_that_arrive_by_themselves_are_a_curve_and_a_largest_rate(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_load, "POINT_S", 0.1)
    monkeypatch.setattr(under_load, "_SEARCH_POINT_S", 0.1)
    monkeypatch.setattr(largest_rate, "RESOLUTION", 1.0)
    model, output = str(tiny_file("mlp")), tmp_path / "r.json"
    results = qcompile.benchmark(
        [model], baseline=model, rates=[3000, 1500], p99_below_ms=200.0, threads=1, max_time_s=0.2,
        output=output,
    )  # fmt: skip
    [row] = results.rows
    assert row.largest_rate is not None
    assert row.largest_rate.p99_below_ms == 200.0
    assert {1500.0, 3000.0} < {point.rate_per_s for point in row.arrivals}
    assert list(row.arrivals) == sorted(row.arrivals, key=lambda point: point.rate_per_s)
    for point in row.arrivals:
        if point.keeps_up:  # the machine's to say
            assert 0 < (point.median_ms or 0) <= (point.p90_ms or 0) <= (point.p99_ms or 0)
    assert results.settings["rates"] == [3000, 1500]
    assert results.settings["arrivals_seed"] == 20261122
    assert load_results(output).rows[0].arrivals == row.arrivals
    assert load_results(output).rows[0].largest_rate == row.largest_rate
    for wrong in ({"rates": [5.0, 5.0]}, {"rates": [0.0]}, {"p99_below_ms": -1.0}):
        with pytest.raises(InvalidOption, match=f"`{next(iter(wrong))}`: .* above 0"):
            qcompile.benchmark([model], baseline=model, **wrong)
