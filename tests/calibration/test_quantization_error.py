"""What eight bits lose, against quantizing bin by bin and value by value; summaries and pictures of it."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from distributions import DISTRIBUTIONS, Draw, histogram
from distributions import draw as draw_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from written_ranges import make

from qcompile.bench.report.range_plots import LINES, TensorSummary, plot_ranges, summarize
from qcompile.bench.report.svg import COLOURS
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.thresholds import (
    METHODS,
    Method,
    amax,
    amax_by_method,
    amax_mse,
    limits,
    squared_errors,
    threshold_error,
)
from qcompile.errors import InvalidOption

Floats = NDArray[np.float64]
BOTH_WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
MIDDLES = np.arange(-BINS, BINS) + 0.5
MIDDLES[BINS] = 0.0  # the bin that begins at zero stands there
DRAWS: dict[str, Draw] = {
    "sparse": lambda generator, size: np.maximum(generator.standard_normal(size) - 1.3, 0),
    "normal": lambda generator, size: generator.standard_normal(size),
    "laplace": lambda generator, size: generator.laplace(size=size),
    "relu": lambda generator, size: np.maximum(generator.standard_normal(size), 0),
    "minus relu": lambda generator, size: np.minimum(generator.standard_normal(size), 0),
    "uniform": lambda generator, size: generator.uniform(-3, 3, size),
    "5 to 6": lambda generator, size: generator.uniform(5, 6, size),
    "-6 to -5": lambda generator, size: generator.uniform(-6, -5, size),
    "mostly positive": lambda generator, size: generator.standard_normal(size) + 2.5,
    "mostly negative": lambda generator, size: generator.laplace(size=size) - 4,
    "heavy tail": lambda generator, size: generator.standard_t(2, size),
    "outlier": lambda generator, size: np.append(generator.standard_normal(size - 1), 60.0),
    "two outliers": lambda generator, size: np.append(generator.standard_normal(size - 2), [-80.0, 31.0]),
}


def draw(name: str, size: int, seed: int = 0) -> NDArray[np.float32]:
    return DRAWS[name](np.random.default_rng([seed, *name.encode()]), size).astype(np.float32)


def scattered(generator: np.random.Generator) -> Histogram:
    """A histogram of counts put anywhere: few or many bins, on one side or both, near zero or far."""
    exponent, width = int(generator.integers(-40, 40)), int(generator.integers(130, 700))
    start = int(generator.choice([0, -width, -width // 2, generator.integers(-1000, 400)]))
    counts = np.zeros(2 * BINS, np.int64)
    share = generator.choice([0.02, 0.3, 1.0])
    drawn = generator.geometric(10.0 ** -generator.uniform(0, 4), width) * (generator.random(width) < share)
    counts[BINS + start : BINS + start + width] = drawn
    counts[BINS + start + int(generator.integers(width))] += 1
    used = np.flatnonzero(counts) - BINS
    inside = generator.uniform(0.01, 0.99)
    low, high = (float(used[0]) + inside) * 2.0**exponent, (float(used[-1]) + inside) * 2.0**exponent
    return Histogram(exponent, counts, low, high)


def errors_by_hand(made: Histogram, candidates: Floats, symmetric: bool) -> Floats:
    """Squared errors in squared bins: every middle of a bin is quantized, for each candidate."""
    used = np.flatnonzero(made.counts)
    middles, counts = MIDDLES[used], made.counts[used].astype(np.float64)
    found = []
    for candidate in candidates:
        if symmetric:
            scale, zero_point, lowest, highest = candidate / 127, 0.0, -127, 127
        else:
            low = min(max(made.min / made.width, -candidate), 0.0)
            high = max(min(made.max / made.width, candidate), 0.0)
            scale, lowest, highest = (high - low) / 255, 0, 255
            zero_point = float(np.rint(-low / scale))
        levels = np.clip(np.rint(middles / scale) + zero_point, lowest, highest)
        found.append((counts * (middles - (levels - zero_point) * scale) ** 2).sum())
    return np.array(found)


def rounding(made: Histogram) -> float:
    """What sums of this many squares may be off by, in squared bins."""
    middles = MIDDLES
    return float((made.counts * middles**2).sum()) * 1e-12


def quantized(values: Floats, low: float, high: float, symmetric: bool) -> Floats:
    """Values through int8 or uint8 and back."""
    if symmetric:
        scale = high / 127
        return np.clip(np.rint(values / scale), -127, 127) * scale
    scale = (high - low) / 255
    zero_point = np.rint(-low / scale)
    return (np.clip(np.rint(values / scale) + zero_point, 0, 255) - zero_point) * scale


def snr_db(values: Floats, again: Floats) -> float:
    return float(10 * np.log10((values**2).sum() / ((values - again) ** 2).sum()))


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30).filter(any),
    st.lists(st.floats(0.5, 2 * BINS), min_size=1, max_size=5),
    st.booleans(),
)
def test_squared_errors_are_those_of_every_bin_by_itself(
    values: list[float], candidates: list[float], symmetric: bool
) -> None:
    made = histogram(np.array(values, np.float32))
    found = squared_errors(made, np.array(candidates), symmetric=symmetric)
    expected = errors_by_hand(made, np.array(candidates), symmetric)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=rounding(made))


@BOTH_WAYS
@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9, 99.99])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_auto_clips_least_of_those_near_the_least_error(
    name: str, percentile: float, symmetric: bool
) -> None:
    methods = (Method("minmax"), Method("percentile", percentile), Method("entropy"), Method("mse"))
    for size in (300, 5000, 200_000):
        made = histogram(draw_of(name, size, seed=size))
        singles = {method.name: amax(made, method, symmetric=symmetric) for method in methods}
        candidates = np.array([*singles.values()])
        errors = errors_by_hand(made, candidates / made.width, symmetric)
        expected = float(candidates[errors <= errors.min() * 1.02].max())
        assert amax(made, Method("auto", percentile), symmetric=symmetric) == expected
        found = amax_by_method(made, percentile, symmetric=symmetric)
        assert found.items() >= {**singles, "auto": expected}.items()


def assert_least_of_all(made: Histogram, symmetric: bool) -> None:
    largest = max(abs(made.min), abs(made.max)) / made.width
    candidates = np.append(np.arange(128.0, math.ceil(largest)), largest)
    errors = errors_by_hand(made, candidates, symmetric)
    chosen = amax_mse(made, symmetric=symmetric) / made.width
    at = int(np.flatnonzero(candidates == chosen)[0])
    assert errors[at] <= errors.min() * (1 + 1e-9) + rounding(made), (chosen, candidates[np.argmin(errors)])


@BOTH_WAYS
def test_mse_is_the_least_of_all_candidates_on_scattered_counts(symmetric: bool) -> None:
    generator = np.random.default_rng(1)
    tried = 0
    while tried < 100:
        made = scattered(generator)
        if max(abs(made.min), abs(made.max)) > 128 * made.width:
            assert_least_of_all(made, symmetric)
            tried += 1


@BOTH_WAYS
@pytest.mark.parametrize("name", DRAWS)
def test_mse_is_the_least_of_all_candidates(name: str, symmetric: bool) -> None:
    for size in (60, 4000, 200_000):
        assert_least_of_all(histogram(draw(name, size, size)), symmetric)


@BOTH_WAYS
def test_where_as_many_bins_as_levels_hold_everything_nothing_is_clipped(symmetric: bool) -> None:
    counts = np.zeros(2 * BINS, np.int64)
    counts[BINS - 100 : BINS + 128] = 5
    made = Histogram(-4, counts, -99.5 / 16, 127.5 / 16)
    assert amax_mse(made, symmetric=symmetric) == 127.5 / 16


@BOTH_WAYS
@pytest.mark.parametrize(
    "name", [name for name in DRAWS if name not in ("mostly negative", "heavy tail", "two outliers")]
)
def test_the_estimated_ratio_is_that_of_really_quantizing(name: str, symmetric: bool) -> None:
    for size in (2000, 100_000):
        values = draw(name, size)
        made = histogram(values)
        exact = values.astype(np.float64)
        for limit in amax_by_method(made, 99.9, symmetric=symmetric).values():
            again = quantized(exact, *limits(made, limit, symmetric=symmetric), symmetric)
            found, _ = threshold_error(made, limit, symmetric=symmetric)
            assert found == pytest.approx(snr_db(exact, again), abs=0.3)


@pytest.mark.parametrize("name", DRAWS)
def test_the_share_clipped_is_that_of_the_values_to_one_bin(name: str) -> None:
    values = draw(name, 50_000)
    made = histogram(values)
    magnitudes = np.abs(values.astype(np.float64))
    for limit in (*amax_by_method(made, 99.0).values(), *np.quantile(magnitudes, [0.2, 0.5, 0.9])):
        surely = (magnitudes > limit + made.width).mean()
        perhaps = (magnitudes > limit - made.width).mean()
        for symmetric in (True, False):
            assert surely <= threshold_error(made, float(limit), symmetric=symmetric)[1] <= perhaps


RANGES = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=20)


@settings(deadline=None)
@given(RANGES, st.floats(0, 1))
def test_asymmetric_limits_hold_zero_and_are_within_the_values_and_the_threshold(
    values: list[float], share: float
) -> None:
    made = histogram(np.array(values, np.float32))
    limit = max(abs(made.min), abs(made.max)) * share
    low, high = limits(made, limit, symmetric=False)
    # Nothing is given away: each end is a value's or the threshold.
    assert low == max(min(made.min, 0), -limit) <= 0
    assert high == min(max(made.max, 0), limit) >= 0
    assert limits(made, limit, symmetric=True) == (-limit, limit)


@BOTH_WAYS
@pytest.mark.parametrize("value", [0.1, 1.3, 5.9, 123.4])
@pytest.mark.parametrize("times", [10**8, 10**9, 10**12])
def test_mse_of_one_value_seen_very_often_still_has_a_candidate(
    value: float, times: int, symmetric: bool
) -> None:
    made = histogram(np.array([value], np.float32))
    made.counts *= times
    assert 0 < amax_mse(made, symmetric=symmetric) <= made.max


Values = np.ndarray


def ranges_of(tensors: dict[str, Values]) -> Ranges:
    return make({name: np.asarray(values, np.float32) for name, values in tensors.items()})


def normals(number: int) -> Ranges:
    return ranges_of({
        f"/block.{index}/conv/Conv_output_0": np.random.default_rng(index).standard_normal(2000) * 4.0**index
        for index in range(number)
    })  # fmt: skip


def drawn(ranges: Ranges, path: Path, tensors: list[str] | None = None) -> Path:
    """The picture of the named tensors in that order, or of all."""
    found = {one.tensor: one for one in summarize(ranges)}
    plot_ranges(ranges, [found[name] for name in tensors or found], path)
    return path


def texts(path: Path) -> list[str]:
    """The texts of an SVG, in the order of the file."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_svg_has_the_title_and_the_methods_of_each_tensor_as_text(number: int, tmp_path: Path) -> None:
    ranges = normals(number)
    found = texts(drawn(ranges, tmp_path / "all.svg"))
    assert drawn(normals(number), tmp_path / "again.svg").read_bytes() == (tmp_path / "all.svg").read_bytes()
    for one in summarize(ranges):
        assert f"{one.tensor}   {one.snr_db:.1f} dB, {one.clipped:.2%} clipped" in found
        for method in METHODS:
            assert f"{method} {one.amax[method]:.3g}" in found
    assert sum("clipped" in text for text in found) == number
    for method in METHODS:
        assert sum(text.startswith(f"{method} ") for text in found) == number


def test_the_threshold_stands_on_the_negative_side_only_where_there_are_negative_values(
    tmp_path: Path,
) -> None:
    values = np.random.default_rng(0).standard_normal(3000)
    both = drawn(ranges_of({"x": values}), tmp_path / "both.svg").read_text()
    one = drawn(ranges_of({"x": np.abs(values)}), tmp_path / "one.svg").read_text()
    for method in ("entropy", "mse", "percentile", "auto"):  # once more each: the legend
        colour, dashes = LINES[method]
        dashes = f";stroke-dasharray:{dashes}" if dashes else ""
        stroke = re.compile(rf"stroke:{COLOURS[colour]};stroke-width:[\d.]+{dashes}\"")
        assert (len(stroke.findall(both)), len(stroke.findall(one))) == (3, 2)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 9, [3.7] * 9, [-3.7] * 9, [1e-45], [1e-45, -1e-45], [3.4e38, -3.4e38], [0.0, 3.4e38],
        np.random.default_rng(0).uniform(5, 6, 999), np.random.default_rng(0).uniform(-6, -5, 999),
        np.arange(-2048, 2048), np.append(np.zeros(10**6), 1.0),
    ],
    ids=lambda values: f"{len(values)} of {min(values):.2g} to {max(values):.2g}",
)  # fmt: skip
def test_odd_tensors_are_drawn_without_a_warning(values: Values, tmp_path: Path) -> None:
    path = drawn(ranges_of({"x": values}), tmp_path / "x.svg")
    assert len(texts(path)) > 8
    assert "nan" not in path.read_text()


@pytest.mark.parametrize("name", ["a.pdf", "a.jpg", "a", "a.svg.txt", "svg", "a.SVG"])
def test_another_suffix_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    ranges = normals(1)
    with pytest.raises(InvalidOption, match=r"\.svg is required") as caught:
        drawn(ranges, tmp_path / name)
    assert name in caught.value.message
    assert caught.value.data["option"] == "plot"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a$x$b", r"a$\foo$b", "层/输出", "tab\tand\x07bell", "<b>&amp;"])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    ranges = ranges_of({name: np.arange(-3.0, 4.0)})
    (title,) = [text for text in texts(drawn(ranges, tmp_path / "n.svg")) if "clipped" in text]
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert title.startswith(shown)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="`plot`: no tensor has values to draw"):
        plot_ranges(ranges_of({}), [], tmp_path / "none.svg")


BY_EVERY_METHOD = pytest.mark.parametrize("method", [Method(name, 99.0) for name in METHODS], ids=str)


@pytest.fixture
def ranges() -> Ranges:
    """Tensors of several distributions, one of them observed without values."""
    generator = np.random.default_rng(0)
    histograms = {
        "uniform": histogram(generator.uniform(-1, 1, 5000)),
        "outlier": histogram(np.append(generator.standard_normal(5000), 500.0)),
        "normal": histogram(generator.standard_normal(5000) * 20),
        "relu": histogram(np.maximum(generator.standard_normal(5000), 0)),
        "laplace": histogram(generator.laplace(size=5000) * 1e-3),
        "negative": histogram(generator.uniform(-6, -5, 5000)),
        "empty": Histogram(),
    }
    return Ranges("fingerprint", histograms=histograms, shared={"moved": ("relu",)}, skipped={"odd": "int64"})


@BOTH_WAYS
@BY_EVERY_METHOD
def test_a_summary_says_what_the_single_functions_say(
    ranges: Ranges, method: Method, symmetric: bool
) -> None:
    found = summarize(ranges, method=method, symmetric=symmetric)
    ratios = [one.snr_db for one in found]
    assert ratios == sorted(ratios)
    assert ratios[0] < ratios[-1]
    assert {one.tensor for one in found} == set(ranges.histograms) - {"empty"}
    for one in found:
        counts = ranges.histograms[one.tensor]
        assert (one.min, one.max) == (counts.min, counts.max)
        assert one.amax == amax_by_method(counts, 99.0, symmetric=symmetric)
        for name in METHODS:
            assert one.amax[name] == amax(counts, Method(name, 99.0), symmetric=symmetric)
        assert (one.snr_db, one.clipped) == threshold_error(
            counts, one.amax[method.name], symmetric=symmetric
        )


def test_the_method_of_the_ranges_is_the_default(ranges: Ranges) -> None:
    for name in METHODS:
        ranges.method = Method(name, 99.5)
        assert summarize(ranges) == summarize(ranges, method=Method(name, 99.5), symmetric=True)
    assert summarize(ranges, method=Method("minmax")) != summarize(ranges, method=Method("percentile", 90.0))


def test_a_ratio_without_bound_is_null_in_json() -> None:
    one = TensorSummary("x", 0.0, 1.0, {"minmax": 1.0}, 0.0, math.inf)
    assert json.loads(json.dumps(one.as_json(), allow_nan=False)) == {
        "tensor": "x", "min": 0.0, "max": 1.0, "amax": {"minmax": 1.0}, "clipped": 0.0, "snr_db": None,
    }  # fmt: skip


def test_a_tensor_that_loses_nothing_is_last(ranges: Ranges) -> None:
    counts = np.zeros(2 * BINS, np.int64)
    counts[BINS - 60 : BINS + 60] = 9
    # The levels of the largest magnitude are half a bin apart, and every middle of a bin is a level.
    ranges.histograms["exact"] = Histogram(0, counts, -63.5, 59.5)
    found = summarize(ranges, method=Method("minmax"), symmetric=True)
    assert (found[-1].tensor, found[-1].snr_db) == ("exact", math.inf)
