"""Ranges in memory and in files: which tensors have one, how shards merge, equal ones are equal bytes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from distributions import histogram as count
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from written_ranges import NONE, full, make, saved, tensors

from qcompile.calibration import Method, Ranges, load_ranges, save_ranges
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.ranges import Portion
from qcompile.calibration.ranges_file import FORMAT_VERSION, merge_files, ranges_manifest
from qcompile.calibration.thresholds import METHODS
from qcompile.core.artifact import Artifact, commit, load_artifact
from qcompile.core.files import writing
from qcompile.errors import CalibrationError, InvalidOption, MissingFile


def assert_same_counts(found: Histogram, expected: Histogram) -> None:
    assert (found.exponent, found.min, found.max) == (expected.exponent, expected.min, expected.max)
    np.testing.assert_array_equal(found.counts, expected.counts)


def assert_same(found: Ranges, expected: Ranges) -> None:
    assert (found.model, found.portions) == (expected.model, expected.portions)
    assert found.histograms.keys() == expected.histograms.keys()
    for name, histogram in expected.histograms.items():
        assert_same_counts(found.histograms[name], histogram)


# Names and what they hold.


def test_a_shared_tensor_holds_the_values_of_all_its_sources() -> None:
    values = tensors()
    ranges = make(
        values | {"empty": np.zeros(0, np.float32)},
        shared={"concat": ("x", "empty", "conv1/out:0"), "flat": ("x",)},
    )
    together = np.concatenate([array.ravel() for array in values.values()])
    assert_same_counts(ranges.histogram("concat"), count(together))
    assert_same_counts(ranges.histogram("flat"), count(values["x"]))
    # What was put together for an answer leaves the counts themselves as they were.
    assert_same_counts(ranges.histogram("x"), count(values["x"]))


def test_a_tensor_that_was_not_observed_has_no_range() -> None:
    ranges = make(
        tensors() | {"empty": np.zeros(0, np.float32)},
        shared={"nothing": ("empty",)},
        skipped={"ids": "it is int64, not a float"},
    )
    for name, reason in (
        ("ids", "it is int64, not a float"),
        ("y", "it was not observed"),
        ("empty", "it was empty in every sample"),
        ("nothing", "it was empty in every sample"),
    ):
        for ask in (ranges.amax, ranges.limits, ranges.histogram):
            with pytest.raises(CalibrationError, match=f"tensor '{name}' has no range: {reason}") as caught:
                ask(name)
            assert caught.value.data["tensor"] == name
            assert caught.value.hint


# The method.


def test_the_method_of_the_file_holds_unless_another_is_asked_for() -> None:
    ranges = make(tensors(), method=Method("percentile", 50.0))
    assert ranges.amax("x") == ranges.amax("x", Method("percentile", 50.0))
    assert (
        ranges.amax("x") < ranges.amax("x", Method("percentile", 90.0)) < ranges.amax("x", Method("minmax"))
    )
    assert ranges.amax("x", Method("minmax")) == float(np.abs(tensors()["x"]).max())
    assert make(tensors()).amax("x") == ranges.amax("x", Method())
    with pytest.raises(InvalidOption, match="above 0"):
        ranges.amax("x", Method("percentile", 0.0))


# Merging.


def test_merged_ranges_hold_the_values_of_both_and_leave_the_other_as_it_was() -> None:
    first, second = tensors() | {"x": NONE}, tensors(1) | {"e": NONE}
    merged = make(first | {"e": NONE}, portions={"sha256:two": Portion(3)})
    other = make(second, portions={"sha256:one": Portion(5, 2, (1,))})
    merged.merge(other)
    assert (merged.samples, merged.data) == (8, "sha256:one (1 of 2 parts), sha256:two")
    for name in tensors():
        assert_same_counts(merged.histogram(name), count(first[name], second[name]))
    merged.merge(make(second, portions={"sha256:three": Portion(8)}))
    assert_same(other, make(second, portions={"sha256:one": Portion(5, 2, (1,))}))


def test_what_is_missing_can_be_read_from_the_ranges() -> None:
    first = make(tensors(), portions={"sha256:dd": Portion(3, 4, (4,))})
    first.merge(make(tensors(1), portions={"sha256:dd": Portion(5, 4, (2,))}))
    assert (first.samples, first.data) == (8, "sha256:dd (2, 4 of 4 parts)")
    first.merge(make(tensors(2), portions={"sha256:dd": Portion(7, 4, (1,))}))
    first.merge(make(tensors(3), portions={"sha256:dd": Portion(1, 4, (3,))}))
    assert (first.samples, first.data) == (16, "sha256:dd")


OTHER_TENSORS = tensors() | {"extra": np.ones(3, np.float32)}
CACHE = Ranges("sha256:aa", {"cache": Portion(0)}, fixed={"x": 3.5})
OF_RUNTIMES = Ranges("m", {"d": Portion(1, 2, (1,))}, histograms={"c": Histogram()}, shared={"y": ("c",)})
OF_TENSORRT = Ranges("m", {"d": Portion(1, 2, (2,))}, histograms={"c": Histogram()})
CUT = "cut into 3 parts in one ranges file and 2 parts in another.* count twice"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        *(
            (make(tensors(), portions={"d": one}), make(tensors(1), portions={"d": two}), words)
            for one, two, words in (
                (Portion(4, 3, (2,)), Portion(4, 3, (2,)), "part 2 of 3 is in both.* count twice"),
                (Portion(8, 3, (1, 2)), Portion(8, 3, (2, 3)), "part 2 of 3 is in both.* count twice"),
                (Portion(8), Portion(8), "the same data is in both.* count twice"),
                (Portion(4, 3, (1,)), Portion(4, 2, (2,)), CUT),
                (Portion(8), Portion(4, 2, (2,)), "in one ranges file and 2 parts in another.* count twice"),
            )
        ),
        (make(tensors()), make(tensors(), model="sha256:bb"), "different models"),
        *(
            (make(one), make(two, portions={"two": Portion(2)}), "tensor 'extra' is in one ranges file only")
            for one, two in ((tensors(), OTHER_TENSORS), (OTHER_TENSORS, tensors()))
        ),
        *(
            (one, two, "scales, not counts: it cannot be merged")
            for one, two in ((make(tensors()), CACHE), (CACHE, make(tensors())), (CACHE, CACHE))
        ),
        *(
            (one, two, "'y' shares other tensors' ranges in one ranges file only")
            for one, two in ((OF_RUNTIMES, OF_TENSORRT), (OF_TENSORRT, OF_RUNTIMES))
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_and_nothing_is(one: Ranges, other: Ranges, words: str) -> None:
    before = copy.deepcopy(one)
    with pytest.raises(CalibrationError, match=words) as caught:
        one.merge(other)
    assert (caught.value.data.get("tensor") == "extra") == ("extra" in words)
    assert_same(one, before)


# What is known from TensorRT's cache only.


def test_a_fixed_range_is_what_it_is() -> None:
    cache = Ranges("sha256:aa", fixed={"x": 3.5, "y": 1.0})
    assert sorted(cache.names()) == ["x", "y"]
    assert cache.amax("x") == 3.5
    for symmetric in (True, False):
        assert cache.limits("x", symmetric=symmetric) == (-3.5, 3.5)
    with pytest.raises(CalibrationError, match="one scale per tensor: mse cannot be chosen") as caught:
        cache.amax("x", Method("mse"))
    assert caught.value.data["tensor"] == "x"
    with pytest.raises(CalibrationError, match="tensor 'z' has no range: it was not observed"):
        cache.amax("z")


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.text(max_size=12).filter(lambda name: name != "__metadata__"),  # safetensors keeps it for itself
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=9),
        max_size=4,
    ),
    st.builds(Method, st.sampled_from(METHODS), st.floats(0, 100, exclude_min=True)),
)
def test_any_ranges_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, list[float]], method: Method
) -> None:
    ranges = make({name: np.array(v, np.float32) for name, v in values.items()}, method=method)
    folder = tmp_path_factory.mktemp("any")
    found = load_ranges(saved(ranges, folder / "a.ranges"))
    assert found.method == method
    assert found.histograms.keys() == values.keys()
    for name, array in values.items():
        if array:
            assert (found.histograms[name].min, found.histograms[name].max) == (min(array), max(array))
        assert found.histograms[name].total == len(array)
        np.testing.assert_array_equal(found.histograms[name].counts, ranges.histograms[name].counts)
    assert saved(found, folder / "b.ranges").read_bytes() == (folder / "a.ranges").read_bytes()


def test_equal_ranges_give_equal_bytes(tmp_path: Path) -> None:
    values = tensors() | {"empty": NONE}
    one = make(
        values,
        portions={"a": Portion(1), "b": Portion(2)},
        shared={"s": ("x",), "t": ("x",)},
        skipped={"a": "1", "b": "2"},
    )
    two = make(
        {name: values[name][::-1] for name in reversed(values)},
        portions={"b": Portion(2), "a": Portion(1)},
        shared={"t": ("x",), "s": ("x",)},
        skipped={"b": "2", "a": "1"},
    )
    assert saved(one, tmp_path / "1").read_bytes() == saved(two, tmp_path / "2").read_bytes()


def test_the_header_holds_what_other_tools_may_read(tmp_path: Path) -> None:
    path = saved(full(), tmp_path / "a.ranges")
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["qcompile"])
    assert (header["version"], header["bins"], header["method"]) == (FORMAT_VERSION, BINS, "percentile")
    assert header["data"]["sha256:dd"] == {"samples": 5, "shards": 4, "parts": [1, 3]}
    assert list(header["tensors"]) == ["conv1/out:0", "x", "ënde"]
    assert (header["empty"], header["shared"]["concat"]) == (["empty"], ["x", "empty"])
    assert set(header["tensors"]["x"]) == {"exponent", "min", "max", "amax"}
    amax = header["tensors"]["x"]["amax"]
    assert set(amax) == set(METHODS)
    assert amax["minmax"] == float(np.abs(tensors()["x"]).max())
    assert amax["percentile"] == full().amax("x", Method("percentile", 99.5))
    counts = load_file(path)
    assert set(counts) == {"conv1/out:0", "x", "ënde"}
    assert (counts["x"].shape, counts["x"].dtype, counts["x"].sum()) == ((2 * BINS,), np.int64, 800)


# Files of shards become the file of the whole.


def artifact(ranges: Ranges, path: Path) -> Artifact:
    """A ranges file with its manifest."""
    with writing(path) as temporary:
        save_ranges(ranges, temporary)
        manifest = commit(temporary, ranges_manifest(ranges, "calibrate"))
    return Artifact(path, manifest)


def test_the_artifact_of_merged_files_says_what_is_in_it(tmp_path: Path) -> None:
    files = []
    for part in (1, 2):
        files.append(tmp_path / f"{part}.ranges")
        artifact(make(tensors(part), portions={"d": Portion(part, 3, (part,))}), files[-1])
    said: list[tuple[str, int, int | None]] = []

    def progress(text: str, done: int = 0, total: int | None = None, /) -> None:
        said.append((text, done, total))

    merged = merge_files(files, tmp_path / "merged.ranges", progress=progress)
    assert load_artifact(merged.path) == merged
    assert merged.manifest.stage == "merge"
    assert merged.manifest.sources == {"model": "sha256:aa", "data": "d (1, 2 of 3 parts)"}
    assert merged.manifest.proof["samples"] == 3
    assert said == [("merge", 1, 2), ("merge", 2, 2)]
    assert merge_files(files, files[0]).path.read_bytes() == merged.path.read_bytes()  # one of them
    assert load_artifact(files[0]).manifest == merged.manifest


def test_what_cannot_be_merged_is_named_by_its_file(tmp_path: Path) -> None:
    one, two = saved(make(tensors()), tmp_path / "1.ranges"), tmp_path / "2.ranges"
    output = tmp_path / "merged.ranges"
    for other, words in (
        (make(tensors(), model="sha256:bb"), "different models"),
        (make(tensors()), "the same data is in both"),
        (make({"x": tensors()["x"]}, portions={"e": Portion(1)}), "'conv1/out:0' is in one ranges file only"),
    ):
        with pytest.raises(CalibrationError, match=words) as caught:
            merge_files([one, saved(other, two)], output)
        assert caught.value.message.startswith(f"{two}: ")
        assert not output.exists()
    two.write_bytes(two.read_bytes()[:-1])
    with pytest.raises(CalibrationError, match=r"2\.ranges: not a ranges file, or cut off"):
        merge_files([one, two], output)
    with pytest.raises(MissingFile):
        merge_files([one, tmp_path / "3.ranges"], output)
    with pytest.raises(InvalidOption, match="at least one"):
        merge_files([], output)
    assert not output.exists()
