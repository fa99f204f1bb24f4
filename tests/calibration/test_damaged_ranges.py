"""A ranges file holds a checksum: what was changed is refused, with or without the manifest beside it.

What is no ranges file is named.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from written_ranges import full, make, saved, tensors

from qcompile.calibration import load_ranges
from qcompile.calibration.histogram import BINS
from qcompile.calibration.ranges import Portion
from qcompile.calibration.ranges_file import (
    FORMAT_VERSION,
    Checkpoint,
    checksum,
    load_checkpoint,
    save_checkpoint,
)
from qcompile.errors import CalibrationError, MissingFile


def rewritten(path: Path, **header: Any) -> Path:
    """The file with other keys in its header; None removes one. Its checksum stays as it was."""
    counts = load_file(path)
    with safe_open(path, framework="np") as file:
        found = json.loads(file.metadata()["qcompile"])
    found = {key: value for key, value in (found | header).items() if value is not None}
    save_file(counts, path, metadata={"qcompile": json.dumps(found)})
    return path


def signed(path: Path, **header: Any) -> Path:
    """The file with other keys in its header, and the checksum of what it then holds."""
    with safe_open(rewritten(path, **header), framework="np") as file:
        found = json.loads(file.metadata()["qcompile"])
    return rewritten(path, checksum=checksum(found, load_file(path)))


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
    refused: list[str] = []
    for place, change in places(content, 300):
        broken = bytearray(content)
        broken[place] ^= change
        damaged.write_bytes(broken)
        try:
            ranges = load_ranges(damaged)
        except CalibrationError as error:
            refused.append(error.message)
            continue
        assert saved(ranges, again).read_bytes() == content, (place, change)
    assert len(refused) > 290
    assert all(message.startswith(f"{damaged}: ") for message in refused)
    assert any(
        re.search(r"its content has the checksum sha256:\w{12}…, its header sha256:\w{12}…", text)
        for text in refused
    )


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = rewritten(saved(full(), tmp_path / "a.ranges"), checksum=None)
    with pytest.raises(CalibrationError, match="its header holds no checksum"):
        load_ranges(path)


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


@pytest.mark.parametrize("text", [None, "{", "[]", "null", "[" * 100_000])
def test_a_safetensors_file_of_something_else_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"x": np.zeros(1)}, path, metadata=None if text is None else {"qcompile": text})
    with pytest.raises(CalibrationError, match=r"weights\.safetensors: not a ranges file"):
        load_ranges(path)


def entry(**values: Any) -> dict[str, Any]:
    """A header's table of tensors, which holds `x` alone."""
    return {"tensors": {"x": {"exponent": -9, "min": -1.0, "max": 1.0, **values}}}


NO_RANGES = "not a ranges file"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(({key: None}, NO_RANGES) for key in ("version", "model", "data", "method", "percentile", "tensors",
                                                "empty", "shared", "skipped")),
        *(({"version": version}, f"version {version}; this qcompile reads {FORMAT_VERSION}")
          for version in (1, 99, "2")),
        *(({"data": {"d": {"samples": 1, "shards": 1, "parts": [1]} | change}}, NO_RANGES)
          for change in ({"samples": "5"}, {"samples": -1}, {"shards": 0}, {"parts": None}, {"parts": [2]})),
        *((change, NO_RANGES) for change in (
            {"model": 5}, {"model": ["sha256:aa"]}, {"data": "sha256:dd"}, {"data": {"d": {"samples": 1}}},
            {"percentile": "99"}, {"percentile": 0}, {"method": ["mse"]}, {"method": "kl"},
            {"shared": {"s": "x"}}, {"shared": {"s": ["nowhere"]}}, {"shared": ["s"]}, {"skipped": {"a": 1}},
            {"skipped": []}, {"empty": "x"}, {"tensors": []},
            {"tensors": {"y": {"exponent": -9, "min": -1.0, "max": 1.0}}}, entry(exponent=True),
            entry(exponent=2000), entry(exponent=1.5), entry(max=1e30), entry(max=None), entry(min=2.0),
        )),
    ],
)  # fmt: skip
def test_a_wrong_header_with_its_checksum_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    values = {"x": np.array([-1.0, 1.0], np.float32)}
    path = saved(make(values, portions={"d": Portion(1)}), tmp_path / "a.ranges")
    assert list(load_ranges(signed(path)).names()) == ["x"]
    with pytest.raises(CalibrationError, match=words) as caught:
        load_ranges(signed(path, **change))
    assert caught.value.message.startswith(f"{path}: ")
    assert "calibrate" in caught.value.hint


def test_counts_of_another_number_of_bins_are_refused(tmp_path: Path) -> None:
    path = saved(full(), tmp_path / "a.ranges")
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    save_file({name: counts[:1024] for name, counts in load_file(path).items()}, path, metadata=metadata)
    signed(path)
    with pytest.raises(CalibrationError, match=rf"a\.ranges: .*not an array of {2 * BINS} int64 counts"):
        load_ranges(path)


# Checkpoints: what was counted until a kill is not taken from a file that was damaged since.

KEY = {"model": "sha256:aa"}


@pytest.mark.parametrize(
    "change",
    [
        {"units": -1}, {"units": "3"}, {"samples": 1.5}, {"samples": float("inf")}, {"tensors": []},
        {"tensors": {"a": [0, "low", 1.0]}}, {"tensors": {"a": [-(2**40), -3.0, 1.0]}},
        {"tensors": {"a": [5000, -3.0, 1.0]}}, {"tensors": {"a": [0.5, -3.0, 1.0]}},
        {"tensors": {"a": [-9, float("nan"), 1.0]}}, {"tensors": {"a": [-9, -1e30, 1.0]}},
        {"tensors": {"a": [-9, 10**400, 1.0]}}, {"tensors": {"b": [-9, -3.0, 1.0]}}, {"key": {"model": "b"}},
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its checksum holds."""
    path = tmp_path / "c"
    values = make({"a": np.array([1.0, -3.0], np.float32)})
    save_checkpoint(Checkpoint(KEY, 1, 2, values.histograms), path)
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["qcompile"])
    header |= change
    rewritten(path, **change, checksum=checksum(header, load_file(path)))
    assert load_checkpoint(path, KEY) is None
