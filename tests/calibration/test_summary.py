from __future__ import annotations

import json
import math

import numpy as np
import pytest

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.plot import TensorSummary, summarize
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.thresholds import METHODS, Method, amax, amax_by_method, loss

BOTH_WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
BY_EVERY_METHOD = pytest.mark.parametrize("method", [Method(name, 99.0) for name in METHODS], ids=str)


def made_of(values: np.ndarray) -> Histogram:
    made = Histogram()
    made.add(values.astype(np.float32))
    return made


@pytest.fixture
def ranges() -> Ranges:
    """Tensors of several distributions, one of them observed without values."""
    generator = np.random.default_rng(0)
    histograms = {
        "uniform": made_of(generator.uniform(-1, 1, 5000)),
        "outlier": made_of(np.append(generator.standard_normal(5000), 500.0)),
        "normal": made_of(generator.standard_normal(5000) * 20),
        "relu": made_of(np.maximum(generator.standard_normal(5000), 0)),
        "laplace": made_of(generator.laplace(size=5000) * 1e-3),
        "negative": made_of(generator.uniform(-6, -5, 5000)),
        "empty": Histogram(),
    }
    return Ranges("fingerprint", histograms=histograms, shared={"moved": ("relu",)}, skipped={"odd": "int64"})


@BOTH_WAYS
@BY_EVERY_METHOD
def test_the_worst_ratio_is_first(ranges: Ranges, method: Method, symmetric: bool) -> None:
    ratios = [one.snr_db for one in summarize(ranges, method=method, symmetric=symmetric)]
    assert ratios == sorted(ratios)
    assert ratios[0] < ratios[-1]


def test_an_outlier_that_is_kept_is_the_worst_and_values_on_the_whole_range_the_best(ranges: Ranges) -> None:
    found = [one.tensor for one in summarize(ranges, method=Method("minmax"), symmetric=True)]
    assert found[0] == "outlier"
    assert set(found[-2:]) == {"uniform", "negative"}


@BOTH_WAYS
@BY_EVERY_METHOD
def test_a_summary_says_what_the_single_functions_say(
    ranges: Ranges, method: Method, symmetric: bool
) -> None:
    found = summarize(ranges, method=method, symmetric=symmetric)
    assert {one.tensor for one in found} == set(ranges.histograms) - {"empty"}
    for one in found:
        histogram = ranges.histograms[one.tensor]
        assert (one.min, one.max) == (histogram.min, histogram.max)
        assert one.amax == amax_by_method(histogram, 99.0, symmetric=symmetric)
        for name in METHODS:
            assert one.amax[name] == amax(histogram, Method(name, 99.0), symmetric=symmetric)
        lost = loss(histogram, one.amax[method.name], symmetric=symmetric)
        assert (one.clipped, one.snr_db) == (lost.clipped, lost.snr_db)


def test_the_method_of_the_ranges_is_the_default(ranges: Ranges) -> None:
    for name in METHODS:
        ranges.method = Method(name, 99.5)
        assert summarize(ranges) == summarize(ranges, method=Method(name, 99.5), symmetric=True)
    assert summarize(ranges, method=Method("minmax")) != summarize(ranges, method=Method("percentile", 90.0))


def test_the_percentile_of_the_method_is_the_one_listed(ranges: Ranges) -> None:
    low = summarize(ranges, method=Method("entropy", 50.0))
    high = {one.tensor: one for one in summarize(ranges, method=Method("entropy", 100.0))}
    for one in low:
        assert one.amax["percentile"] < high[one.tensor].amax["percentile"]
        assert high[one.tensor].amax["percentile"] == one.amax["minmax"]


def test_the_json_form_holds_every_value_and_is_plain(ranges: Ranges) -> None:
    one = summarize(ranges)[0]
    found = json.loads(json.dumps(one.as_json(), allow_nan=False))
    assert found == {
        "tensor": one.tensor, "min": one.min, "max": one.max, "amax": one.amax, "clipped": one.clipped,
        "snr_db": one.snr_db,
    }  # fmt: skip


def test_a_ratio_without_bound_is_null_in_json() -> None:
    one = TensorSummary("x", 0.0, 1.0, {"minmax": 1.0}, 0.0, math.inf)
    assert one.as_json()["snr_db"] is None
    assert json.loads(json.dumps(one.as_json(), allow_nan=False))["snr_db"] is None


def test_a_tensor_that_loses_nothing_is_last(ranges: Ranges) -> None:
    counts = np.zeros(2 * BINS, np.int64)
    counts[BINS - 60 : BINS + 60] = 9
    # The levels of the largest magnitude are half a bin apart, and every middle of a bin is a level.
    ranges.histograms["exact"] = Histogram(0, counts, -63.5, 59.5)
    found = summarize(ranges, method=Method("minmax"), symmetric=True)
    assert (found[-1].tensor, found[-1].snr_db) == ("exact", math.inf)
