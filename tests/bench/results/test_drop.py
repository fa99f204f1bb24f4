"""What samples show of a drop, in words, and how many a budget needs."""

from __future__ import annotations

import pytest
from msgspec import structs

from qcompile.bench.metrics.bounds import fewest_samples
from qcompile.bench.results.drop import samples_for_budget, samples_needed, statement
from qcompile.bench.results.render import accuracy_lines, markdown
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Accuracy, Row


def accuracy(
    drop: float, high: float | None, *, changed: int, lost: int | None = None, gained: int | None = None,
    candidates: int = 1, metric: str = "top1", units: int = 500,
) -> Accuracy:  # fmt: skip
    return Accuracy(
        metric, 0.9, drop, None if high is None else -high, high, 500,
        units=units, changed=changed, lost=lost, gained=gained, candidates=candidates,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (accuracy(0.0, 0.7624, changed=0, lost=0, gained=0),
         "500 samples, none changed: at most 0.76 points with 95% confidence"),
        (accuracy(0.4, 1.7, changed=4, lost=3, gained=1, candidates=6),
         "500 samples, 4 changed (3 lost, 1 gained): at most 1.70 points with 95% confidence "
         "for 6 candidates together"),
        (accuracy(-2.0, -0.5, changed=10, lost=0, gained=10),
         "500 samples, 10 changed (0 lost, 10 gained): better by at least 0.50 points with 95% confidence"),
        (accuracy(0.1, 0.3, changed=88, metric="cosine"),
         "500 samples, 88 changed: at most 0.30 points with 95% confidence"),
        (accuracy(0.1, None, changed=3, metric="mse", units=4), "4 batches, 3 changed: too few for a bound"),
        (accuracy(0.0, None, changed=0, metric="mse"),
         "500 samples, none changed: no bound, as a sample may lose any amount"),
        (Accuracy("top1", 0.9), ""),
    ],
)  # fmt: skip
def test_a_statement_names_samples_changes_and_the_bound(measured: Accuracy, text: str) -> None:
    assert statement(measured) == text


def test_how_many_samples_would_prove_a_budget() -> None:
    unchanged = accuracy(0.0, 0.7624, changed=0, lost=0, gained=0)
    assert samples_needed(unchanged, 0.5) == 765 == fewest_samples(0.005)
    changed = samples_needed(accuracy(0.4, 1.7, changed=4, lost=3, gained=1), 0.5)
    assert changed is not None
    assert changed > 765
    assert samples_needed(accuracy(0.6, 1.7, changed=4, lost=3, gained=0), 0.5) is None  # none would


@pytest.mark.parametrize(
    ("max_drop", "samples", "is_met", "words"),
    [
        (0.5, 500, False, "proven by 765 samples or more; the evaluation has 500, which is too few"),
        (0.5, 765, True, "proven by 765 samples or more; the evaluation has 765"),
        (0.5, None, None, "a drop of at most 0.5 points is proven by 765 samples or more"),
        (0.0, 10_000, False, "no number of samples proves a drop of 0 points"),
    ],
)
def test_what_a_budget_needs_is_said_before_it_is_measured(
    max_drop: float, samples: int | None, is_met: bool | None, words: str
) -> None:
    need = samples_for_budget(max_drop, 1, samples)
    assert need.is_met is is_met
    assert words in need.text


def test_artifacts_of_which_the_samples_show_the_same_share_a_line() -> None:
    text = "500 samples, none changed: at most 0.76 points with 95% confidence"
    rows = [Row("pytorch", "m", "pytorch", accuracy=Accuracy("top1", 0.9))]
    measured = structs.replace(accuracy(0.0, 0.7624, changed=0, lost=0, gained=0), statement=text)
    rows += [Row(name, name, "onnxruntime", accuracy=measured) for name in ("fp32", "int8")]
    results = Results(baseline="pytorch", rows=rows, environment={}, settings={})
    assert accuracy_lines(results) == [f"fp32, int8: drop of top1: {text}"]
    assert f"- fp32, int8: drop of top1: {text}" in markdown(results)
