from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from qcompile.calibration.histogram import Histogram
from qcompile.calibration.plot import plot_ranges
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.summary import summarize
from qcompile.calibration.thresholds import METHODS, Method
from qcompile.errors import InvalidOption

FILL = (0x9E, 0xCA, 0xE1)  # of the bars
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


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_equal_pictures_have_equal_bytes(suffix: str, tmp_path: Path) -> None:
    one = drawn(normals(3), tmp_path / f"one{suffix}").read_bytes()
    other = drawn(normals(3), tmp_path / f"other{suffix}").read_bytes()
    assert one == other
    assert drawn(normals(2), tmp_path / f"less{suffix}").read_bytes() != one


@pytest.mark.parametrize("number", [1, 2, MANY])
def test_a_png_opens_and_shows_the_bars_of_every_tensor(number: int, tmp_path: Path) -> None:
    pixels = (imread(drawn(normals(number), tmp_path / "all.png"))[..., :3] * 255).round().astype(int)
    height, width, _ = pixels.shape
    assert width > height / 3
    bars = (pixels == FILL).all(axis=-1)
    rows, columns = -(-number // 2), min(number, 2)
    for index in range(rows * columns):
        row, column = divmod(index, columns)
        place = np.s_[
            row * height // rows : (row + 1) * height // rows,
            column * width // columns : (column + 1) * width // columns,
        ]
        if index < number:
            assert bars[place].mean() > 0.05
        else:
            assert (pixels[place] == 255).all()


def test_the_threshold_stands_on_the_negative_side_only_where_there_are_negative_values(
    tmp_path: Path,
) -> None:
    values = np.random.default_rng(0).standard_normal(3000)
    both = drawn(ranges_of({"x": values}), tmp_path / "both.svg").read_text()
    one = drawn(ranges_of({"x": np.abs(values)}), tmp_path / "one.svg").read_text()
    for colour in ("#b2182b", "#2166ac", "#1b7837", "#762a83"):  # once more each: the legend
        assert (both.count(f"stroke: {colour}"), one.count(f"stroke: {colour}")) == (3, 2)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 9, [3.7] * 9, [-3.7] * 9, [1e-45], [1e-45, -1e-45], [3.4e38, -3.4e38], [0.0, 3.4e38],
        np.random.default_rng(0).uniform(5, 6, 999), np.random.default_rng(0).uniform(-6, -5, 999),
        np.arange(-2048, 2048), np.append(np.zeros(10**6), 1.0),
    ],
    ids=lambda values: f"{len(values)} of {min(values):.2g} to {max(values):.2g}",
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_odd_tensors_are_drawn_without_a_warning(values: Values, suffix: str, tmp_path: Path) -> None:
    path = drawn(ranges_of({"x": values}), tmp_path / f"x{suffix}")
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("name", ["a.pdf", "a.jpg", "a", "a.svg.txt", "svg", "a.SVG"])
def test_another_suffix_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    ranges = normals(1)
    with pytest.raises(InvalidOption, match=r"\.svg or \.png is required") as caught:
        drawn(ranges, tmp_path / name)
    assert name in caught.value.message
    assert caught.value.data["option"] == "plot"
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_way_to_install_it_is_said(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from pathlib import Path
import numpy as np
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.plot import plot_ranges
from qcompile.calibration.ranges import Ranges
from qcompile.calibration.summary import summarize
from qcompile.errors import EngineUnavailable
made = Histogram()
made.add(np.ones(3, np.float32))
ranges = Ranges("m", histograms={"x": made})
try:
    plot_ranges(ranges, summarize(ranges), Path(sys.argv[1]))
except EngineUnavailable as error:
    print(error.message)
    print(error.hint)
"""
    path = tmp_path / "x.svg"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.splitlines()
    assert message.startswith("matplotlib cannot be imported (")
    assert hint == "pip install 'qcompile[report]'"
    assert not path.exists()


def test_matplotlib_is_imported_only_to_draw() -> None:
    program = "import sys, qcompile.calibration.plot; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("name", ["a$x$b", r"a$\foo$b", "层/输出", "tab\tand\x07bell", "<b>&amp;"])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    ranges = ranges_of({name: np.arange(-3.0, 4.0)})
    (title,) = [text for text in texts(drawn(ranges, tmp_path / "n.svg")) if "clipped" in text]
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert title.startswith(shown)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="`plot`: no tensor has values to draw"):
        plot_ranges(ranges_of({}), [], tmp_path / "none.svg")
