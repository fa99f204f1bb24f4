"""The page of trained networks is what its results say."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scoreboard_networks.page")


def test_the_page_is_what_the_results_say(page: Any) -> None:
    assert page.text() == (ROOT / "docs/reference/scoreboard.md").read_text(encoding="utf-8")


def test_the_interval_of_a_mean_is_students(page: Any) -> None:
    values = np.random.default_rng(0).standard_normal(page.GROUPS)
    left_out = [float(np.delete(values, i).mean()) for i in range(page.GROUPS)]
    low, high = stats.t.interval(0.95, page.GROUPS - 1, values.mean(), stats.sem(values))
    found = page.half_width({"left_out": left_out}, {"left_out": [0.0] * page.GROUPS})
    assert found == pytest.approx((high - low) / 2, rel=1e-3)


def test_what_is_behind_is_marked(page: Any) -> None:
    """Nothing for what rounds to the same, and the interval of the difference, not of the metric."""

    def row(metric: float, noise: float) -> dict[str, Any]:
        signs = np.where(np.arange(page.GROUPS) % 2, 1.0, -1.0)
        return {"metric": metric, "left_out": list(metric + noise * signs)}

    base = row(95.0, 0.0)
    assert page.mark(row(90.0, 0.0), row(90.04, 0.0), base) == ""
    assert page.mark(row(90.0, 0.1), row(91.0, 0.1), base) == " **!**"
    assert page.mark(row(90.0, 0.1), row(91.0, -0.1), base) == " (!)"
    assert page.mark(row(95.0, 0.1), row(96.0, 0.1), base) == ""
    assert page.mark({"failed": "why"}, row(90.0, 0.0), base) == " **!**"
    assert page.mark(row(90.0, 0.0), None, base) == ""
