"""Values, drops, agreement and classes, against counts made by hand or by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from numpy.typing import NDArray
from scipy.stats import binomtest
from scoring import scored, top_k

from qcompile.bench.metrics.accuracy import (
    MOST_CLASSES_LISTED,
    ScoreSums,
    accuracy,
    read_metric,
)
from qcompile.bench.metrics.metric import Metric, Truth
from qcompile.bench.results.row import unit_of
from qcompile.core.figures import finite
from qcompile.errors import DataError, InvalidOption, MissingFile, ModelError, RecipeError
from qcompile.pipeline.recipe.recipe import read_recipe
from qcompile.spec.words import METRICS

SPELLINGS = (
    "auto", *METRICS, "f1:micro", "f1:entities", "map:50", "map:small", "ndcg:10", "neighbours:3",
    "perplexity:masked", "own.py:f", "package.module:f",
)  # fmt: skip
NO_SPELLINGS = ("f", ":f", "own.py:", "top3", "f1:makro", "map:60", "ndcg:0", "ndcg:ten", "top1:")
SCORES = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]], np.float32)


def compare(
    metric: Metric | str,
    baseline: NDArray[Any],
    found: NDArray[Any],
    labels: NDArray[Any] | None,
    cuts: list[int] | None = None,
) -> dict[str, Any]:
    """The `accuracy` of an artifact whose one output is given, cut into batches."""
    value: dict[str, Any] = finite(to_builtins(scored(metric, baseline, found, labels, cuts or ())))
    return value


def scores_of(rng: np.random.Generator, count: int, classes: int = 6) -> NDArray[np.float32]:
    """Scores with many ties."""
    return rng.integers(0, 8, (count, classes)).astype(np.float32)


def test_the_baseline_has_a_value_and_nothing_to_be_compared_with() -> None:
    metric = read_metric("top1")
    summed = ScoreSums(metric)
    batch = metric.score({"y": SCORES}, {"y": SCORES}, Truth(np.array([1, 0, 0]), 3, "data"))
    summed.add(batch, batch, 3)
    found = to_builtins(accuracy(summed, summed))
    assert found["value"] == pytest.approx(2 / 3)
    assert found["drop_points"] == 0.0
    assert [found[key] for key in ("low", "high", "agreement", "per_class")] == [None] * 4


@pytest.mark.parametrize("metric", ["top1", "top5", "cosine", "mse"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(10, 40), data=st.data())
def test_neither_batches_nor_the_order_of_samples_change_anything(
    metric: str, seed: int, count: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    baseline, found = scores_of(rng, count), scores_of(rng, count)
    labels = rng.integers(0, 6, count)
    whole = compare(metric, baseline, found, labels)
    cuts = data.draw(st.lists(st.integers(1, count - 1), max_size=5))
    in_batches = compare(metric, baseline, found, labels, cuts)
    assert in_batches == whole
    order = rng.permutation(count)
    moved = compare(metric, baseline[order], found[order], labels[order])
    for key in ("value", "drop_points", "agreement"):
        assert moved[key] == pytest.approx(whole[key])
    assert moved["per_class"] == whole["per_class"]


def data_of(metric: str, rng: np.random.Generator, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Outputs that a metric takes, and labels."""
    labels: dict[str, Any] = {
        "miou": rng.integers(0, 4, (count, 3, 3)),
        "map": np.concatenate(
            [rng.integers(0, 3, (count, 2, 1)), np.sort(rng.random((count, 2, 4)), axis=2)], axis=2
        ),
        "wer": rng.choice(["a b", "b c d", "d"], count),
        "ndcg": rng.integers(0, 4, (count, 4)),
        "spearman": rng.standard_normal(count),
        "perplexity": rng.integers(0, 4, (count, 5)),
    }
    shapes = {"miou": (4, 3, 3), "spearman": (1,), "perplexity": (5, 4), "map": (7, 8)}
    outputs: NDArray[Any] = rng.standard_normal((count, *shapes.get(metric, (4,)))).astype(np.float32)
    if metric in ("wer", "cer"):
        return rng.choice(["a b", "b c", "d"], count), labels["wer"]
    return outputs, labels.get(metric, rng.integers(0, 4, count))


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(11, 30))
def test_identical_outputs_lose_nothing(metric: str, seed: int, count: int) -> None:
    outputs, labels = data_of(metric, np.random.default_rng(seed), count)
    found = compare(metric, outputs, outputs.copy(), labels)
    assert (found["drop_points"], found["changed"]) == (0.0, 0)
    if unit_of(metric) == "points":  # no samples exclude that another one loses all
        assert 100 * (1.0 - 0.05 ** (1 / count)) < found["high"] == pytest.approx(-found["low"])
        assert (
            f"{count} samples, none changed: at most {found['high']:.2f} points with 95% confidence"
            == found["statement"]
        )
    else:
        assert (found["low"], found["high"]) == (None, None)
        assert "no bound" in found["statement"]
    predicts = metric in ("top1", "top5", "f1", "miou", "wer", "cer")
    assert found["agreement"] == (1.0 if predicts else None)
    for row in found["per_class"] or []:
        assert row["value"] == row["baseline"]


def test_the_drop_is_counted_in_points_and_agreement_in_predictions() -> None:
    labels = np.arange(20) % 4
    right = np.eye(4, dtype=np.float32)[labels]
    found = right.copy()
    found[:5] = np.eye(4, dtype=np.float32)[(labels[:5] + 1) % 4]  # a quarter is wrong now
    result = compare("top1", right, found, labels)
    assert list(result) == [
        "metric", "value", "drop_points", "low", "high", "samples", "agreement", "per_class",
        "higher_is_better", "agreement_low", "units", "changed", "lost", "gained", "candidates", "statement",
        "suspicion",
    ]  # fmt: skip
    assert (result["metric"], result["samples"], result["higher_is_better"]) == ("top1", 20, True)
    assert (result["value"], result["agreement"]) == (0.75, 0.75)
    assert result["drop_points"] == pytest.approx(25.0)
    assert 4.5 < result["low"] < 25.0 < result["high"] < 50.0
    assert (result["changed"], result["lost"], result["gained"]) == (5, 5, 0)
    shown = (
        f"20 samples, 5 changed (5 lost, 0 gained): at most {result['high']:.2f} points with 95% confidence"
    )
    assert result["statement"] == shown
    assert result["agreement_low"] == pytest.approx(binomtest(15, 20).proportion_ci(0.95, "exact").low)
    better = compare("top1", found, right, labels)
    assert better["drop_points"] == pytest.approx(-25.0)
    assert (better["low"], better["high"]) == (-result["high"], -result["low"])


def test_classes_are_listed_by_how_much_they_changed() -> None:
    labels = np.array([0] * 4 + [1] * 4 + [3] * 4)  # class 2 never occurs
    right = np.eye(4, dtype=np.float32)[labels]
    found = right.copy()
    found[4:8] = np.eye(4, dtype=np.float32)[0]
    found[0] = np.eye(4, dtype=np.float32)[2]
    assert compare("top1", right, found, labels)["per_class"] == [
        {"label": 1, "baseline": 1.0, "value": 0.0, "samples": 4},
        {"label": 0, "baseline": 1.0, "value": 0.75, "samples": 4},
        {"label": 3, "baseline": 1.0, "value": 1.0, "samples": 4},
    ]


def test_of_many_classes_the_most_changed_are_listed() -> None:
    labels = np.repeat(np.arange(80), 2)
    right = np.eye(80, dtype=np.float32)[labels]
    found = np.roll(right, 1, axis=1)
    found[:120] = right[:120]  # only the classes from 60 on change
    rows = compare("top1", right, found, labels)["per_class"]
    assert [row["label"] for row in rows] == [*range(60, 80), *range(MOST_CLASSES_LISTED - 20)]


def test_less_error_is_better_and_its_drop_is_a_rise() -> None:
    targets = np.zeros((20, 2), np.float32)
    found = compare("mse", targets + 1, targets + 2, targets)
    assert found["value"] == 4.0
    assert found["drop_points"] == 3.0
    assert found["higher_is_better"] is False
    assert unit_of("mse") == "units"
    assert {unit_of(name) for name in METRICS} == {"points", "units"}


@pytest.mark.parametrize("metric", [*SPELLINGS, *NO_SPELLINGS])
def test_a_recipe_takes_the_same_spellings(metric: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'version = 1\nname = "net"\n[model]\nsource = "model.py:build"\n'
        '[[artifact]]\nname = "a"\ntarget = "onnxruntime"\n'
        f'[bench]\nmetric = "{metric}"\n'
    )
    if metric in SPELLINGS:
        assert read_recipe(path).bench.metric == metric
    else:
        with pytest.raises(RecipeError, match=r"'bench\.metric' is .*auto, top1, .*, mse or file"):
            read_recipe(path)


OWN = """
import numpy as np

def each(outputs, labels):
    return np.abs(outputs["y"][:, 0] - labels)
each.higher_is_better = False

def batch(outputs, labels):
    return float((outputs["y"].argmax(1) == labels).mean())

def spoils(outputs, labels):
    outputs["y"][:] = 0
    return 0.0

def three(outputs, labels):
    return [1.0, 2.0, 3.0]

def ragged(outputs, labels):
    return [[1.0], [2.0, 3.0]]

def nothing(outputs, labels):
    return None

def nan(outputs, labels):
    return np.where(np.arange(len(labels)) == 1, np.nan, 1.0)

def fails(outputs, labels):
    return outputs["logits"]

def odd(outputs, labels):
    return 1.0
odd.higher_is_better = "no"
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "metric.py"
    path.write_text(OWN)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        *((text, r"auto, top1, .* cosine, mse or file\.py:function", None) for text in ("top3", "", "Top1")),
        ("neighbors", "is unknown", "did you mean 'neighbours'?"),
        ("f1:makro", "followed by macro, micro, weighted, binary, entities", "did you mean 'f1:macro'?"),
        ("map:smal", "followed by 50, 75", "did you mean 'map:small'?"),
        ("ndcg:0", r"ndcg:K with K from 1", ""),
    ],
)
def test_a_misspelt_metric_names_those_known_and_the_nearest(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        read_metric(text)
    assert hint is None or caught.value.hint == hint


def test_a_function_of_ones_own_gives_a_value_per_sample_or_per_batch(own: str) -> None:
    rng = np.random.default_rng(1)
    baseline, found, labels = scores_of(rng, 23), scores_of(rng, 23), rng.integers(0, 6, 23)
    each = compare(f"{own}:each", baseline, found, labels, [7, 11])
    assert each["value"] == pytest.approx(np.abs(found[:, 0] - labels).mean())
    assert each["drop_points"] == pytest.approx(
        np.abs(found[:, 0] - labels).mean() - np.abs(baseline[:, 0] - labels).mean()
    )
    assert each["higher_is_better"] is False
    # Batches of different sizes: a batch counts as often as it has samples.
    batch = compare(f"{own}:batch", baseline, found, labels, [7, 11])
    assert batch["value"] == pytest.approx(top_k([found], [labels], 1))
    assert batch["low"] is None  # three batches are too few to be resampled
    many = compare(f"{own}:batch", baseline, found, labels, list(range(23)))
    assert "3 batches" in batch["statement"]
    exact = compare("top1", baseline, found, labels)
    assert 100 * many["low"] == pytest.approx(exact["low"])


def test_what_a_function_changes_in_place_stays_its_own(own: str) -> None:
    outputs = np.ones((4, 2), np.float32)
    compare(f"{own}:spoils", outputs, outputs, np.zeros(4))
    assert (outputs == 1).all()


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (
            "three",
            DataError,
            r"metric\.py:three: returned an array of shape \(3,\) for the 4 samples of data",
        ),
        ("ragged", DataError, r"metric\.py:ragged: returned list"),
        ("nothing", DataError, r"metric\.py:nothing: returned NoneType"),
        ("nan", DataError, r"metric\.py:nan: returned nan"),
        ("fails", ModelError, r"metric\.py:fails: raised KeyError: 'logits' \(metric\.py, line 28\)"),
        ("odd", InvalidOption, "higher_is_better is 'no'"),
        ("missing", ModelError, "no function 'missing'"),
        ("/none.py:f", MissingFile, r"none\.py"),
    ],
)
def test_a_function_that_fails_is_named(own: str, name: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        compare(f"{own}:{name}" if ":" not in name else name, np.ones((4, 2)), np.ones((4, 2)), np.zeros(4))


def suspected(metric: str, right: NDArray[np.bool_], labels: NDArray[np.int64]) -> str:
    """The suspicion about a baseline with ten classes that answers the samples of `right` rightly."""
    sums, predicted = ScoreSums(read_metric(metric)), np.where(right, labels, (labels + 1) % 10)
    scores = {"y": np.eye(10, dtype=np.float32)[predicted]}
    batch = sums.metric.score(scores, scores, Truth(labels, len(labels), "data"))
    sums.add(batch, batch, len(labels))
    return accuracy(sums, sums).suspicion


@pytest.mark.parametrize(
    ("samples", "most_frequent", "right", "expected"),
    [
        (100, 10, 10, "top1 of the baseline is 10.0%, and 10.0% without looking at the input"),
        (100, 10, 30, ""),
        (100, 91, 91, "top1 of the baseline is 91.0%, and 91.0% without looking at the input"),
        (100, 10, 0, "top1 of the baseline is 0.0%: the labels, their order or the preprocessing look wrong"),
        (40, 4, 4, ""),  # too few to judge
        (100, 100, 100, ""),  # one label alone
    ],
)
def test_a_baseline_that_a_guess_equals_is_warned_of(
    samples: int, most_frequent: int, right: int, expected: str
) -> None:
    others = 1 + np.arange(samples - most_frequent) % 9
    labels = np.concatenate([np.zeros(most_frequent, np.int64), others]).astype(np.int64)
    found = suspected("top1", np.arange(samples) < right, labels)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
    if expected and right:  # the exact test of another library agrees
        assert binomtest(right, samples, most_frequent / samples, "greater").pvalue > 0.025
