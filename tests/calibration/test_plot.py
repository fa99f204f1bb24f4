"""What a summary says of each tensor, and the picture of it."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from distributions import histogram
from written_ranges import make

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.plot import LINES, TensorSummary, plot_ranges, summarize
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.thresholds import METHODS, Method, amax, amax_by_method, loss
from qcompile.errors import InvalidOption
from qcompile.svg import COLOURS

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


BOTH_WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
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
        lost = loss(counts, one.amax[method.name], symmetric=symmetric)
        assert (one.clipped, one.snr_db) == (lost.clipped, lost.snr_db)


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
