"""A ranges file holds a checksum: what was changed is refused, with or without the manifest beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from written_ranges import full, make, saved, tensors

from qcompile.calibration import Ranges, load_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges_file import Checkpoint, load_checkpoint, save_checkpoint
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
