"""The ranges file: what is written is read, equal ranges are equal bytes, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from qcompile.artifact import Artifact, commit, load_artifact, writing
from qcompile.calibration import Method, Ranges, load_ranges, save_ranges
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.manifest import ranges_manifest
from qcompile.calibration.merge import merge_files
from qcompile.calibration.ranges import Portion
from qcompile.calibration.ranges_file import FORMAT_VERSION
from qcompile.calibration.thresholds import METHODS
from qcompile.errors import ArtifactError, CalibrationError, InvalidOption, MissingFile

Values = NDArray[np.float32]
NONE = np.zeros(0, np.float32)


def make(tensors: Mapping[str, Values], **options: Any) -> Ranges:
    options = {"model": "sha256:aa", "portions": {"sha256:dd": Portion(8)}} | options
    ranges = Ranges(**options)
    for name, values in tensors.items():
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(values)
    return ranges


def tensors(seed: int = 0) -> dict[str, Values]:
    generator = np.random.default_rng(seed)
    return {
        "x": generator.standard_normal((8, 100)).astype(np.float32),
        "conv1/out:0": np.maximum(generator.standard_normal((8, 50)), 0).astype(np.float32),
    }


def full(seed: int = 0) -> Ranges:
    """Ranges with everything that a file can hold."""
    return make(
        tensors(seed) | {"empty": NONE, "ënde": np.zeros(3, np.float32)},
        portions={"sha256:dd": Portion(5, 4, (1, 3)), "sha256:cc": Portion(3)},
        method=Method("percentile", 99.5),
        shared={"concat": ("x", "empty"), "flat": ("x",)},
        skipped={"ids": "it is int64", "a": "its type cannot be inferred"},
    )


def saved(ranges: Ranges, path: Path) -> Path:
    save_ranges(ranges, path)
    return path


def test_a_file_reads_back(tmp_path: Path) -> None:
    ranges = full()
    found = load_ranges(saved(ranges, tmp_path / "a.ranges"))
    for name in ("model", "portions", "method", "shared", "skipped", "fixed", "samples", "data"):
        assert getattr(found, name) == getattr(ranges, name), name
    assert sorted(found.names()) == sorted(ranges.names())
    assert found.histograms.keys() == ranges.histograms.keys()
    for name, histogram in ranges.histograms.items():
        again = found.histograms[name]
        assert (again.exponent, again.min, again.max) == (histogram.exponent, histogram.min, histogram.max)
        np.testing.assert_array_equal(again.counts, histogram.counts)
    for name in ranges.names():
        for method in METHODS:
            assert found.amax(name, Method(method)) == ranges.amax(name, Method(method))


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


@pytest.mark.parametrize(
    "change",
    [
        {"model": "sha256:bb"},
        {"portions": {"sha256:dd": Portion(9)}},
        {"portions": {"sha256:dd": Portion(8, 2, (1,))}},
        {"method": Method("mse")},
        {"method": Method("percentile", 99.0)},
        {"shared": {"s": ("x",)}},
        {"skipped": {"ids": "it is int64"}},
    ],
)
def test_other_ranges_give_other_bytes(tmp_path: Path, change: dict[str, Any]) -> None:
    one, two = make(tensors()), make(tensors(), **change)
    assert saved(one, tmp_path / "1").read_bytes() != saved(two, tmp_path / "2").read_bytes()


def test_the_sign_of_a_zero_does_not_change_the_bytes(tmp_path: Path) -> None:
    one = make({"x": np.array([0.0, -0.0, 1.0], np.float32)})
    two = make({"x": np.array([-0.0, 0.0, 1.0], np.float32)})
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


# What is no ranges file.


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    saved(make(tensors()), tmp_path / "model.ranges")
    with pytest.raises(MissingFile) as caught:
        load_ranges(tmp_path / "modle.ranges")
    assert "model.ranges" in caught.value.hint
    with pytest.raises(MissingFile, match="is a folder"):
        load_ranges(tmp_path)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a ranges file."""
    return saved(full(), tmp_path_factory.mktemp("content") / "full.ranges").read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path to write damaged content to."""
    return tmp_path_factory.mktemp("damaged") / "model.ranges"


@settings(deadline=None)
@given(data=st.data())
def test_a_truncated_file_is_named(content: bytes, file: Path, data: st.DataObject) -> None:
    header = 8 + int.from_bytes(content[:8], "little")
    size = data.draw(st.integers(0, header) | st.integers(0, len(content) - 1))
    file.write_bytes(content[:size])
    with pytest.raises(CalibrationError, match="not a ranges file, or cut off") as caught:
        load_ranges(file)
    assert caught.value.message.startswith(f"{file}: ")
    assert caught.value.data["file"] == file


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_flipped_bytes_are_named_or_leave_ranges(content: bytes, file: Path, data: st.DataObject) -> None:
    header = 8 + int.from_bytes(content[:8], "little")
    where = st.integers(0, header - 1) | st.integers(0, len(content) - 1)
    damaged = bytearray(content)
    for place in data.draw(st.lists(where, min_size=1, max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(damaged)
    refused = ""
    try:
        load_ranges(file)
    except CalibrationError as error:
        refused = error.message
    assert not refused or refused.startswith(f"{file}: ")


@settings(deadline=None)
@given(garbage=st.binary(max_size=300))
def test_what_is_no_safetensors_file_is_named(file: Path, garbage: bytes) -> None:
    file.write_bytes(garbage)
    with pytest.raises(CalibrationError, match="not a ranges file") as caught:
        load_ranges(file)
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "garbage", [b"not safetensors at all", b"PK\x03\x04" + bytes(100), b"TRT-8503-EntropyCalibration2\n"]
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "model.ranges"
    path.write_bytes(garbage)
    with pytest.raises(CalibrationError, match="not a ranges file") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message
    assert "qcompile calibrate" in caught.value.hint


TENSOR = {"exponent": 0, "min": 0.0, "max": 1.0}
HEADER: dict[str, object] = {
    "version": FORMAT_VERSION,
    "bins": BINS,
    "model": "m",
    "data": {"d": {"samples": 1, "shards": 1, "parts": [1]}},
    "method": "entropy",
    "percentile": 99.99,
    "tensors": {"x": TENSOR},
    "empty": [],
    "shared": {},
    "skipped": {},
}


def write(path: Path, counts: NDArray[np.int64], header: dict[str, object] | str | None) -> Path:
    """A safetensors file with another header or other counts than qcompile would write."""
    text = header if isinstance(header, str) else json.dumps(header)
    save_file({"x": counts}, path, metadata=None if header is None else {"qcompile": text})
    return path


def test_the_handmade_file_of_these_tests_is_a_ranges_file(tmp_path: Path) -> None:
    found = load_ranges(write(tmp_path / "a.ranges", np.zeros(2 * BINS, np.int64), HEADER))
    assert list(found.histograms) == ["x"]
    assert (found.model, found.samples) == ("m", 1)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "{",
        "[]",
        "null",
        *({key: value for key, value in HEADER.items() if key != gone} for gone in HEADER if gone != "bins"),
        HEADER | {"tensors": {"y": TENSOR}},
        HEADER | {"tensors": {"x": {"min": 0.0, "max": 1.0}}},
        HEADER | {"tensors": []},
        HEADER | {"shared": {"s": ["nowhere"]}},
        HEADER | {"shared": ["s"]},
        HEADER | {"data": "sha256:dd"},
        HEADER | {"data": {"d": {"samples": 1}}},
        HEADER | {"method": "kl"},
    ],
)
def test_a_safetensors_file_of_something_else_is_named(
    tmp_path: Path, header: dict[str, object] | str | None
) -> None:
    path = write(tmp_path / "weights.safetensors", np.zeros(2 * BINS, np.int64), header)
    with pytest.raises(CalibrationError, match="not a ranges file") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("version", [1, 99])
def test_another_version_is_named(tmp_path: Path, version: int) -> None:
    header: dict[str, object] = {"version": version, "tensors": {"x": TENSOR}}
    path = write(tmp_path / "a.ranges", np.zeros(2 * BINS, np.int64), header)
    words = f"version {version}; this qcompile reads {FORMAT_VERSION}"
    with pytest.raises(CalibrationError, match=words) as caught:
        load_ranges(path)
    assert str(path) in caught.value.message
    assert caught.value.hint == "calibrate again"


def test_counts_of_another_number_of_bins_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ranges", np.zeros(1024, np.int64), HEADER | {"bins": 512})
    with pytest.raises(CalibrationError, match=rf"not of {2 * BINS} integers") as caught:
        load_ranges(path)
    assert str(path) in caught.value.message


# Files of shards become the file of the whole.


def artifact(ranges: Ranges, path: Path) -> Artifact:
    """A ranges file with its manifest."""
    with writing(path) as temporary:
        save_ranges(ranges, temporary)
        manifest = commit(temporary, ranges_manifest(ranges, "calibrate"))
    return Artifact(path, manifest)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32), st.data())
def test_merged_files_of_shards_have_the_bytes_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, samples: int, shards: int, seed: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    generator = np.random.default_rng(seed)
    spread = 10.0 ** generator.integers(-6, 6, (samples, 1))
    x = (generator.standard_normal((samples, 7)) * spread).astype(np.float32)

    def observed(part: slice, portion: Portion) -> Ranges:
        some = {"x": x[part], "relu": np.maximum(x[part], 0), "never": NONE}
        return make(some, portions={"d": portion}, shared={"s": ("x", "never")}, skipped={"i": "it is int8"})

    files = []
    for part in data.draw(st.permutations(range(shards))):
        portion = Portion(len(x[part::shards]), shards, (part + 1,))
        files.append(saved(observed(slice(part, None, shards), portion), folder / f"{part}.ranges"))
    merged = merge_files(files, folder / "merged.ranges")
    whole = saved(observed(slice(None), Portion(samples)), folder / "whole.ranges")
    assert merged.path.read_bytes() == whole.read_bytes()


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


def test_the_output_may_be_one_of_the_files(tmp_path: Path) -> None:
    one, two = tmp_path / "1.ranges", tmp_path / "2.ranges"
    artifact(make(tensors(), portions={"a": Portion(1)}), one)
    artifact(make(tensors(1), portions={"b": Portion(2)}), two)
    apart = merge_files([one, two], tmp_path / "apart.ranges").path.read_bytes()
    merged = merge_files([one, two], one)
    assert one.read_bytes() == apart
    assert load_artifact(one) == merged


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
    with pytest.raises(CalibrationError, match=r"2\.ranges: not a ranges file"):
        merge_files([one, two], output)
    with pytest.raises(MissingFile):
        merge_files([one, tmp_path / "3.ranges"], output)
    with pytest.raises(InvalidOption, match="at least one"):
        merge_files([], output)
    assert not output.exists()


def test_a_file_that_was_changed_after_it_was_made_is_not_merged(tmp_path: Path) -> None:
    path = artifact(make(tensors()), tmp_path / "1.ranges").path
    content = bytearray(path.read_bytes())
    content[-8] += 1  # one more value in the last bin: a ranges file still
    path.write_bytes(content)
    load_ranges(path)
    with pytest.raises(ArtifactError, match="differs from its manifest"):
        merge_files([path], tmp_path / "merged.ranges")


@pytest.mark.parametrize(
    "change", [{"exponent": 2000}, {"exponent": 1.5}, {"max": 1e30}, {"max": None}, {"min": 5.0, "max": 1.0}]
)
def test_a_histogram_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    histogram = Histogram()
    histogram.add(np.array([0.5, -0.25], np.float32))
    save_ranges(Ranges("m", {"d": Portion(1)}, histograms={"x": histogram}), tmp_path / "a.ranges")
    with safe_open(tmp_path / "a.ranges", framework="np") as file:
        header, counts = json.loads(file.metadata()["qcompile"]), file.get_tensor("x")
    header["tensors"]["x"].update(change)
    save_file({"x": counts}, tmp_path / "b.ranges", metadata={"qcompile": json.dumps(header)})
    with pytest.raises(CalibrationError, match=r"b\.ranges: not a ranges file"):
        load_ranges(tmp_path / "b.ranges")
