from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.ranges import FORMAT_VERSION, Ranges, load_ranges, parse_method, save_ranges
from qcompile.calibration.thresholds import METHODS
from qcompile.errors import CalibrationError, InvalidOption, MissingFile

Tensors = dict[str, NDArray[np.float32]]


def make(tensors: Tensors, *, model: str = "sha256:aa", samples: int = 8, **options: object) -> Ranges:
    ranges = Ranges(model, "sha256:dd", samples, **options)  # type: ignore[arg-type]
    for name, values in tensors.items():
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(values)
    return ranges


def tensors(seed: int = 0) -> Tensors:
    generator = np.random.default_rng(seed)
    return {
        "x": generator.standard_normal((8, 100)).astype(np.float32),
        "conv1/out:0": np.maximum(generator.standard_normal((8, 50)), 0).astype(np.float32),
    }


def saved(ranges: Ranges, path: Path) -> Path:
    save_ranges(ranges, path)
    return path


def test_a_file_reads_back(tmp_path: Path) -> None:
    ranges = make(tensors(), method="percentile", percentile=99.5, skipped={"ids": "it is int64"})
    found = load_ranges(saved(ranges, tmp_path / "a.ranges"))
    assert (found.model, found.data, found.samples) == ("sha256:aa", "sha256:dd", 8)
    assert (found.method, found.percentile, found.skipped) == ("percentile", 99.5, {"ids": "it is int64"})
    assert found.histograms.keys() == ranges.histograms.keys()
    for name, histogram in ranges.histograms.items():
        again = found.histograms[name]
        assert (again.exponent, again.min, again.max) == (histogram.exponent, histogram.min, histogram.max)
        np.testing.assert_array_equal(again.counts, histogram.counts)
        for method in METHODS:
            assert found.amax(name, method) == ranges.amax(name, method)


def test_a_file_read_and_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    first = saved(make(tensors()), tmp_path / "a.ranges")
    second = saved(load_ranges(first), tmp_path / "b.ranges")
    assert first.read_bytes() == second.read_bytes()


def test_equal_ranges_give_equal_bytes(tmp_path: Path) -> None:
    values = tensors()
    one = make(values, skipped={"a": "1", "b": "2"})
    backwards = {name: values[name][::-1] for name in reversed(values)}
    two = make(backwards, skipped={"b": "2", "a": "1"})
    assert saved(one, tmp_path / "1").read_bytes() == saved(two, tmp_path / "2").read_bytes()


def test_the_sign_of_a_zero_does_not_change_the_bytes(tmp_path: Path) -> None:
    one = make({"x": np.array([0.0, -0.0, 1.0], np.float32)})
    two = make({"x": np.array([-0.0, 0.0, 1.0], np.float32)})
    assert saved(one, tmp_path / "1").read_bytes() == saved(two, tmp_path / "2").read_bytes()


def test_the_header_holds_what_other_tools_may_read(tmp_path: Path) -> None:
    path = saved(make(tensors()), tmp_path / "a.ranges")
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["qcompile"])
    assert (header["version"], header["bins"], header["method"]) == (FORMAT_VERSION, BINS, "entropy")
    assert list(header["tensors"]) == ["conv1/out:0", "x"]
    assert set(header["tensors"]["x"]) == {"exponent", "min", "max", "amax"}
    assert header["tensors"]["x"]["amax"]["minmax"] == make(tensors()).amax("x", "minmax")
    assert load_file(path)["x"].shape == (2 * BINS,)


def test_merged_shards_are_the_whole(tmp_path: Path) -> None:
    values = tensors()
    whole = make(values, samples=8)
    parts = [
        {name: array[start:stop] for name, array in values.items()}
        for start, stop in ((0, 1), (1, 4), (4, 8))
    ]
    shards = [make(part, samples=len(part["x"])) for part in parts]
    merged = shards[2]
    merged.merge(load_ranges(saved(shards[0], tmp_path / "0")))
    merged.merge(shards[1])
    assert saved(merged, tmp_path / "m").read_bytes() == saved(whole, tmp_path / "w").read_bytes()


def test_ranges_of_another_model_are_not_merged() -> None:
    ranges = make(tensors())
    with pytest.raises(CalibrationError, match="different models"):
        ranges.merge(make(tensors(), model="sha256:bb"))


def test_ranges_of_other_tensors_are_not_merged_in_part() -> None:
    ranges, other = make(tensors()), make(tensors(1) | {"extra": np.ones(3, np.float32)})
    before = ranges.histograms["x"].total
    with pytest.raises(CalibrationError, match="tensor 'extra' is in one ranges file only"):
        ranges.merge(other)
    assert (ranges.histograms["x"].total, ranges.samples) == (before, 8)


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    saved(make(tensors()), tmp_path / "model.ranges")
    with pytest.raises(MissingFile) as caught:
        load_ranges(tmp_path / "modle.ranges")
    assert "model.ranges" in caught.value.hint


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    path = saved(make(tensors()), tmp_path / "model.ranges")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CalibrationError, match="not a ranges file, or cut off") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message
    assert caught.value.data["file"] == path


@pytest.mark.parametrize("content", [b"not safetensors at all", b"PK\x03\x04" + bytes(100), b"\xff" * 64])
def test_what_is_no_ranges_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.ranges"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="not a ranges file") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


TENSOR = {"exponent": 0, "min": 0.0, "max": 1.0}
HEADER: dict[str, object] = {
    "version": FORMAT_VERSION,
    "bins": BINS,
    "model": "m",
    "data": "d",
    "samples": 1,
    "method": "entropy",
    "percentile": 99.99,
    "skipped": {},
    "tensors": {"x": TENSOR},
}


def write(path: Path, counts: NDArray[np.int64], header: dict[str, object] | str | None) -> Path:
    """A safetensors file with another header or other counts than qcompile would write."""
    text = header if isinstance(header, str) else json.dumps(header)
    save_file({"x": counts}, path, metadata=None if header is None else {"qcompile": text})
    return path


def test_the_handmade_file_of_these_tests_is_a_ranges_file(tmp_path: Path) -> None:
    found = load_ranges(write(tmp_path / "a.ranges", np.zeros(2 * BINS, np.int64), HEADER))
    assert list(found.histograms) == ["x"]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "{",
        "[]",
        {key: value for key, value in HEADER.items() if key != "tensors"},
        HEADER | {"tensors": {"y": TENSOR}},
        HEADER | {"tensors": {"x": {"min": 0.0, "max": 1.0}}},
    ],
)
def test_a_safetensors_file_of_something_else_is_named(
    tmp_path: Path, header: dict[str, object] | str | None
) -> None:
    path = write(tmp_path / "weights.safetensors", np.zeros(2 * BINS, np.int64), header)
    with pytest.raises(CalibrationError, match="not a ranges file") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


def test_another_version_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ranges", np.zeros(2 * BINS, np.int64), HEADER | {"version": 99})
    with pytest.raises(CalibrationError, match=f"version 99; this qcompile reads {FORMAT_VERSION}") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


def test_counts_of_another_number_of_bins_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ranges", np.zeros(1024, np.int64), HEADER | {"bins": 512})
    with pytest.raises(CalibrationError) as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


def test_a_tensor_that_was_not_observed_has_no_range() -> None:
    ranges = make(tensors(), skipped={"ids": "it is int64, not a float"})
    with pytest.raises(CalibrationError, match="tensor 'ids' has no range: it is int64, not a float"):
        ranges.amax("ids")
    with pytest.raises(CalibrationError, match="tensor 'y' has no range: it was not observed"):
        ranges.clipped("y")


def test_the_clipped_range_lies_within_both_the_values_and_the_threshold() -> None:
    ranges = make({"x": np.array([-10, *[0.5] * 9999, 4], np.float32)})
    assert ranges.clipped("x", "minmax") == (-10.0, 4.0)
    limit = ranges.amax("x", "percentile", 99.0)
    assert ranges.clipped("x", "percentile", 99.0) == (-limit, limit)
    assert limit < 4
    relu = make({"x": np.array([0.0, 1.0, 2.0], np.float32)})
    assert relu.clipped("x", "minmax") == (0.0, 2.0)


def test_the_method_and_percentile_of_the_file_hold_unless_another_is_asked_for() -> None:
    values = tensors()["x"]
    ranges = make({"x": values}, method="percentile", percentile=50.0)
    assert ranges.amax("x") == ranges.amax("x", "percentile", 50.0) < ranges.amax("x", percentile=90.0)
    assert ranges.amax("x", "minmax") == float(np.abs(values).max())
    with pytest.raises(InvalidOption, match="above 0"):
        ranges.amax("x", percentile=0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("minmax", ("minmax", 99.99)),
        ("entropy", ("entropy", 99.99)),
        ("percentile", ("percentile", 99.99)),
        ("percentile:99.9", ("percentile", 99.9)),
        ("percentile:100", ("percentile", 100.0)),
    ],
)
def test_methods_are_spelled_so(text: str, expected: tuple[str, float]) -> None:
    assert parse_method(text) == expected


WRONG = "kl Entropy entropy:3 minmax:1 percentile: percentile:x percentile:0 percentile:-1 percentile:101"


@pytest.mark.parametrize("text", ["", "percentile:nan", "percentile:inf", *WRONG.split()])
def test_a_wrong_method_is_refused_by_its_spelling(text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_method(text)
    assert caught.value.message.startswith(f"method {text!r}")
