"""What docs/load.md shows: its recipe, its theory, and the defaults it tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qcompile.bench.measuring import enough, largest_rate, open_loop, under_load
from qcompile.engines.served.runner import ServedRunner
from qcompile.pipeline.recipe import read_recipe

TEXT = (Path(__file__).parents[1] / "docs/load.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())


def test_the_recipe_is_read(tmp_path: Path) -> None:
    shown = re.search(r"```toml\n(.*?)```", TEXT, re.S)
    assert shown
    rest = (
        'version = 1\nname = "load"\noutput = "out"\n[model]\nsource = "m.onnx"\n'
        '[[artifact]]\nname = "a"\ntarget = "onnxruntime"\nprecision = "fp32"\n'
    )
    (tmp_path / "recipe.toml").write_text(rest + shown[1])
    bench = read_recipe(tmp_path / "recipe.toml").bench
    assert bench is not None
    assert (bench.rates, bench.p99_below_ms) == ((20.0, 50.0, 100.0), 50.0)


def test_the_waits_are_those_of_the_theory() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+)% \| ([\d.]+) ms \|", TEXT, re.M)
    assert len(rows) == 4
    for rate, busy, wait in rows:
        load = float(rate) * 0.005
        assert float(busy) == pytest.approx(100 * load)
        assert float(wait) == pytest.approx(load * 5.0 / (2 * (1 - load)), rel=0.01)


def test_the_defaults_are_those_of_the_code() -> None:
    assert "ten seconds, with at least 600 and at most 10,000" in FLAT
    assert (under_load.POINT_S, enough.FEWEST, under_load.requests_at(1e9)) == (10.0, 600, 10_000)
    assert "within 5% of each other. From there it walks to both sides, in steps of 25%," in FLAT
    assert "A rate takes 30 s" in FLAT
    assert (largest_rate.RESOLUTION, under_load._SEARCH_POINT_S, largest_rate._STEP) == (0.05, 30.0, 1.25)
    assert "up to 16 requests at once" in FLAT
    assert ServedRunner.calls_at_once == 16
    assert "more than 100 requests wait" in FLAT
    assert open_loop._OVERLOAD_BACKLOG == 100
