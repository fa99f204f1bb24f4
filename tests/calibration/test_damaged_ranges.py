"""A ranges file holds a checksum: what was changed is refused, with or without the manifest beside it.

What is no ranges file is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from written_ranges import full, make, saved, tensors

from qcompile.calibration import Ranges, load_ranges, save_ranges
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.ranges import Portion
from qcompile.calibration.ranges_file import FORMAT_VERSION, Checkpoint, load_checkpoint, save_checkpoint
from qcompile.errors import CalibrationError, MissingFile


def rewritten(path: Path, **header: Any) -> Path:
    """The file with other keys in its header; None removes one. Its checksum stays as it was."""
    counts = load_file(path)
    with safe_open(path, framework="np") as file:
        found = json.loads(file.metadata()["qcompile"])
    found = {key: value for key, value in (found | header).items() if value is not None}
    save_file(counts, path, metadata={"qcompile": json.dumps(found)})
    return path


def former(path: Path) -> Path:
    """The file as an earlier version wrote it."""
    return rewritten(saved(full(), path), checksum=None)


def places(content: bytes, count: int) -> list[tuple[int, int]]:
    """Random bytes, half of them in the header, and what each is changed by."""
    generator = np.random.default_rng(7)
    header = 8 + int.from_bytes(content[:8], "little")
    chosen = [*generator.integers(0, header, count // 2), *generator.integers(0, len(content), count // 2)]
    return [(int(place), int(generator.integers(1, 256))) for place in chosen]


def test_one_changed_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Nothing beside the file helps here; equal ranges are what gives equal bytes."""
    content = saved(full(), tmp_path / "a.ranges").read_bytes()
    damaged, again = tmp_path / "b.ranges", tmp_path / "c.ranges"
    refused = 0
    for place, change in places(content, 300):
        broken = bytearray(content)
        broken[place] ^= change
        damaged.write_bytes(broken)
        try:
            ranges = load_ranges(damaged)
        except (CalibrationError, MissingFile):
            refused += 1
            continue
        assert saved(ranges, again).read_bytes() == content, (place, change)
        assert ranges.is_verified
    assert refused > 290


def test_the_message_names_both_checksums_and_the_way_out(tmp_path: Path) -> None:
    path = saved(full(), tmp_path / "a.ranges")
    content = bytearray(path.read_bytes())
    content[-8] += 1  # one more value in the last bin
    path.write_bytes(content)
    with pytest.raises(
        CalibrationError, match=r"its checksum sha256:\w{12}… is not .* \(sha256:\w{12}…\)"
    ) as e:
        load_ranges(path)
    assert e.value.message.startswith(f"{path}: ")
    assert "calibrate again" in e.value.hint


@pytest.mark.parametrize(
    "change", [{"model": "sha256:bb"}, {"percentile": 99.0}, {"skipped": {}}, {"empty": []}, {"more": 1}]
)
def test_another_header_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = rewritten(saved(full(), tmp_path / "a.ranges"), **change)
    with pytest.raises(CalibrationError, match=r"checksum|not a ranges file"):
        load_ranges(path)


def test_a_file_of_the_former_format_is_read_and_says_so(tmp_path: Path) -> None:
    ranges = load_ranges(former(tmp_path / "a.ranges"))
    assert not ranges.is_verified
    assert "no checksum" in ranges.notes[0]
    new = load_ranges(saved(ranges, tmp_path / "b.ranges"))
    assert new.is_verified
    assert new.notes == ()
    assert (tmp_path / "b.ranges").read_bytes() == saved(full(), tmp_path / "c.ranges").read_bytes()


def test_a_checksum_under_a_damaged_name_is_no_former_format(tmp_path: Path) -> None:
    path = rewritten(saved(full(), tmp_path / "a.ranges"), checksum=None, chfcksum="sha256:aa")
    with pytest.raises(CalibrationError, match="'chfcksum', which is no key"):
        load_ranges(path)


@pytest.mark.parametrize(
    "change",
    [
        {"model": 5}, {"model": ["sha256:aa"]}, {"data": {"d": {"samples": "5", "shards": 1, "parts": [1]}}},
        {"data": {"d": {"samples": -1, "shards": 1, "parts": [1]}}}, {"percentile": "99"}, {"percentile": 0},
        {"data": {"d": {"samples": 1, "shards": 0, "parts": [1]}}}, {"shared": {"s": "x"}},
        {"skipped": {"a": 1}}, {"skipped": []}, {"empty": "x"}, {"fixed": {"f": "1"}}, {"method": ["mse"]},
        {"version": "2"}, {"version": None}, {"tensors": {"x": {"exponent": True, "min": 0, "max": 0}}},
    ],
)  # fmt: skip
def test_a_wrong_type_in_the_header_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = rewritten(former(tmp_path / "a.ranges"), **change)
    with pytest.raises(CalibrationError) as caught:
        load_ranges(path)
    assert caught.value.message.startswith(f"{path}: ")


def test_a_header_nested_deeply_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ranges"
    save_file({"x": np.zeros(1)}, path, metadata={"qcompile": "[" * 100_000})
    with pytest.raises(CalibrationError, match="not a ranges file"):
        load_ranges(path)


def test_a_changed_checkpoint_begins_anew(tmp_path: Path) -> None:
    """What was counted until a kill is not taken from a file that was damaged since."""
    path, key = tmp_path / "calibrate.checkpoint", {"model": "sha256:aa"}
    ranges: Ranges = make(tensors())
    checkpoint = Checkpoint(key, 3, 3, ranges.histograms | {"never": Histogram()})
    save_checkpoint(checkpoint, path)
    content = path.read_bytes()
    found = load_checkpoint(path, key)
    assert found is not None
    assert (found.units, found.samples) == (3, 3)
    for place, change in places(content, 60):
        broken = bytearray(content)
        broken[place] ^= change
        path.write_bytes(broken)
        found = load_checkpoint(path, key)
        if found is not None:
            save_checkpoint(found, path)
            assert path.read_bytes() == content, (place, change)


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


@pytest.mark.parametrize(
    "change", [{"exponent": 2000}, {"exponent": 1.5}, {"max": 1e30}, {"max": None}, {"min": 5.0, "max": 1.0}]
)
def test_a_histogram_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    from safetensors.numpy import save_file

    histogram = Histogram()
    histogram.add(np.array([0.5, -0.25], np.float32))
    save_ranges(Ranges("m", {"d": Portion(1)}, histograms={"x": histogram}), tmp_path / "a.ranges")
    with safe_open(tmp_path / "a.ranges", framework="np") as file:
        header, counts = json.loads(file.metadata()["qcompile"]), file.get_tensor("x")
    del header["checksum"]  # what is plausible is looked at where nothing else tells
    header["tensors"]["x"].update(change)
    save_file({"x": counts}, tmp_path / "b.ranges", metadata={"qcompile": json.dumps(header)})
    with pytest.raises(CalibrationError, match=r"b\.ranges: not a ranges file"):
        load_ranges(tmp_path / "b.ranges")
