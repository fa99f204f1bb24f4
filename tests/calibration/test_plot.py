from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from qcompile.calibration.histogram import Histogram
from qcompile.calibration.plot import plot_ranges, summarize
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.thresholds import METHODS, Method
from qcompile.errors import InvalidOption
from qcompile.svg import COLOURS

MANY = 5

Values = np.ndarray


def ranges_of(tensors: dict[str, Values], method: Method | None = None) -> Ranges:
    histograms = {}
    for name, values in tensors.items():
        histograms[name] = Histogram()
        histograms[name].add(np.asarray(values, np.float32))
    return Ranges("m", method=method or Method(), histograms=histograms)


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


@pytest.mark.parametrize("number", [1, 2, 3, MANY])
def test_an_svg_has_the_title_and_the_methods_of_each_tensor_as_text(number: int, tmp_path: Path) -> None:
    ranges = normals(number)
    found = texts(drawn(ranges, tmp_path / "all.svg"))
    for one in summarize(ranges):
        assert f"{one.tensor}   {one.snr_db:.1f} dB, {one.clipped:.2%} clipped" in found
        for method in METHODS:
            assert f"{method} {one.amax[method]:.3g}" in found
    assert sum("clipped" in text for text in found) == number
    for method in METHODS:
        assert sum(text.startswith(f"{method} ") for text in found) == number


def test_equal_pictures_have_equal_bytes(tmp_path: Path) -> None:
    one = drawn(normals(3), tmp_path / "one.svg").read_bytes()
    other = drawn(normals(3), tmp_path / "other.svg").read_bytes()
    assert one == other
    assert drawn(normals(2), tmp_path / "less.svg").read_bytes() != one


def test_the_threshold_stands_on_the_negative_side_only_where_there_are_negative_values(
    tmp_path: Path,
) -> None:
    values = np.random.default_rng(0).standard_normal(3000)
    both = drawn(ranges_of({"x": values}), tmp_path / "both.svg").read_text()
    one = drawn(ranges_of({"x": np.abs(values)}), tmp_path / "one.svg").read_text()
    for method in ("entropy", "mse", "percentile", "auto"):  # once more each: the legend
        stroke = f"stroke:{COLOURS[method]}"
        assert (both.count(stroke), one.count(stroke)) == (3, 2)


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
