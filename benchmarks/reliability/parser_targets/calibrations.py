"""Parsers of what calibration keeps: ranges, checkpoints, TensorRT's caches, merged histograms."""

from __future__ import annotations

import json
import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from target import Target, file_of, folder

from qcompile.calibration.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from qcompile.calibration.checksum import checksum
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion, Ranges
from qcompile.calibration.ranges_file import load_ranges, save_ranges
from qcompile.calibration.tensorrt_cache import parse_cache
from qcompile.calibration.thresholds import Method
from qcompile.engines.tensorrt.runner.runtime_cache import RuntimeCacheFile
from qcompile.errors import CalibrationError

_KEY = {"model": "m", "data": ["d", 1]}


def _example(seed: int = 0) -> Ranges:
    values = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    histograms = {"a": Histogram(), "b/c": Histogram(), "empty": Histogram()}
    histograms["a"].add(values)
    histograms["b/c"].add(values * 1e3)
    return Ranges(
        "sha256:" + "0" * 64, {"data": Portion(4, 3, (seed + 1,))}, Method("percentile", 99.9), histograms,
        {"d": ("a", "b/c")}, {"e": "it is a constant"},
    )  # fmt: skip


@cache
def _whole(kind: str) -> bytes:
    path = folder() / f"whole.{kind}"
    if kind == "checkpoint":
        save_checkpoint(Checkpoint(_KEY, 3, 4, _example().histograms), path)
    elif kind == "fixed":
        save_ranges(Ranges("sha256:0", {"cache": Portion(0)}, fixed={"a": 1.5, "b": 2.0**-149}), path)
    else:
        save_ranges(_example(int(kind)), path)
    return path.read_bytes()


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and its tensors."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _header(kind: str) -> bytes:
    """What we write into a file's metadata."""
    return str(_parts(_whole(kind))[0]["__metadata__"]["qcompile"]).encode()


def _around(ours: bytes, kind: str) -> bytes:
    """A file whose tensors are whole, and whose metadata are these."""
    outer, tensors = _parts(_whole(kind))
    outer["__metadata__"]["qcompile"] = _with_checksum(ours, kind).decode("utf-8", "replace")
    text = json.dumps(outer).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def _with_checksum(ours: bytes, kind: str) -> bytes:
    """A header with the checksum of itself and the counts: without it, nothing behind it would be reached."""
    try:
        header = json.loads(ours)
    except (ValueError, RecursionError):
        return ours
    if not isinstance(header, dict) or "checksum" not in header:
        return ours
    try:
        return json.dumps({**header, "checksum": checksum(header, _tensors(kind))}).encode()
    except (ValueError, TypeError, RecursionError):  # a number that JSON does not write, keys of two types
        return ours


@cache
def _tensors(kind: str) -> dict[str, Any]:
    return dict(safetensors.numpy.load(_whole(kind)))


def _used(ranges: Ranges) -> None:
    """What commands ask of ranges."""
    str(ranges.method), ranges.data, ranges.samples
    for name in ranges.names():
        for symmetric in (True, False):
            low, high = ranges.limits(name, symmetric=symmetric)
            assert -math.inf < low <= high < math.inf, (name, low, high)


def ranges_header(content: bytes) -> None:
    """Our header in a ranges file whose counts are whole; what is read is written and read as the same."""
    found = load_ranges(file_of(_around(content, "0"), "header.ranges"))
    _used(found)
    path = folder() / "again.ranges"
    save_ranges(found, path)
    again = load_ranges(path)
    assert (again.model, again.portions, again.method, again.shared) == (
        found.model, found.portions, found.method, found.shared,
    )  # fmt: skip


def ranges_file(content: bytes) -> None:
    """A ranges file of any bytes."""
    _used(load_ranges(file_of(content, "any.ranges")))


def ranges_merge(content: bytes) -> None:
    """Ranges of two shards, with headers from one JSON list, merged: no count is lost or made up."""
    try:
        first, second = json.loads(content)
    except (ValueError, TypeError, RecursionError):
        raise CalibrationError("no two headers") from None
    one = load_ranges(file_of(_around(json.dumps(first).encode(), "0"), "one.ranges"))
    other = load_ranges(file_of(_around(json.dumps(second).encode(), "1"), "other.ranges"))
    before = {name: one.histograms[name].total for name in one.histograms}
    one.merge(other)
    for name, histogram in one.histograms.items():
        assert histogram.total == before[name] + other.histograms[name].total, name
    _used(one)


def counts(content: bytes) -> None:
    """Counts in a ranges file: damaged values, such as negative ones or such that overflow when added."""
    outer, tensors = _parts(_whole("0"))
    words = np.frombuffer(tensors, np.int64).copy()
    for place, value in struct.iter_unpack("<Hq", content[: len(content) // 10 * 10]):
        words[place % len(words)] = value
    header = json.loads(outer["__metadata__"]["qcompile"])
    header.pop("checksum")  # as files of the former format
    outer["__metadata__"]["qcompile"] = json.dumps(header)
    text = json.dumps(outer).encode()
    path = file_of(struct.pack("<Q", len(text)) + text + words.tobytes(), "counts.ranges")
    found = load_ranges(path)
    _used(found)
    other = load_ranges(file_of(_whole("1"), "other.ranges"))
    found.merge(other)
    assert all((one.counts >= 0).all() for one in found.histograms.values())
    _used(found)


def checkpoint(content: bytes) -> None:
    """Our header in a checkpoint; one that is damaged is none."""
    found = load_checkpoint(file_of(_around(content, "checkpoint"), "header.checkpoint"), _KEY)
    if found is None:
        return
    assert {type(found.units), type(found.samples)} == {int}
    assert min(found.units, found.samples) >= 0
    for histogram in found.histograms.values():
        histogram.add(np.float32([1.0, -3e38]))
        assert histogram.total >= 2


def checkpoint_file(content: bytes) -> None:
    """A checkpoint of any bytes."""
    load_checkpoint(file_of(content, "any.checkpoint"), _KEY)


def tensorrt_cache(content: bytes) -> None:
    """TensorRT's calibration cache; a second reader agrees on every scale."""
    from qcompile.calibration.tensorrt_cache import parse_cache_bytes

    scales = parse_cache_bytes(content, Path("c.cache"))
    assert all(math.isfinite(scale) and scale > 0 for scale in scales.values())
    header = content.decode("utf-8").split("\n")[0]
    text = "".join(f"{name}: {struct.pack('>f', scale).hex()}\n" for name, scale in scales.items())
    assert parse_cache(f"{header}\n{text}", Path("c.cache")) == scales


def runtime_cache(content: bytes) -> None:
    """The header of a runtime cache, which vouches for the bytes behind it."""
    file = RuntimeCacheFile(Path("e.engine"), "1.7", "sha256:0")
    assert file._blob(b"qcompile runtime cache 1\n" + content) in (None, content.partition(b"\n")[2])


TARGETS = (
    Target("ranges_header", ranges_header, (_header("0"), _header("fixed")), is_json=True, longest=8192),
    Target("ranges_file", ranges_file, (_whole("fixed"), _whole("0")[:2000]), longest=4096),
    Target(
        "ranges_merge",
        ranges_merge,
        (b"[" + _header("0") + b"," + _header("1") + b"]",),
        is_json=True,
        longest=16384,
    ),
    Target(
        "ranges_counts",
        counts,
        (b"", struct.pack("<Hq", 2048, 2**62), struct.pack("<HqHq", 2047, -1, 9, 2**63 - 1)),
        longest=64,
    ),
    Target("checkpoint", checkpoint, (_header("checkpoint"),), is_json=True, longest=8192),
    Target("checkpoint_file", checkpoint_file, (_whole("fixed"), _whole("checkpoint")[:1000]), longest=4096),
    Target(
        "tensorrt_cache",
        tensorrt_cache,
        (
            b"TRT-8503-EntropyCalibration2\ninput: 3c010a14\nconv/x: 00000001\n",
            b"TRT-100100-MinMaxCalibration\n",
            b"TRT-8.5-E\r\na: 3f800000\r\n(Unnamed Layer* 1) [x]: 3f8\n",
        ),
        words=("7f800000", "7fc00000", "ff800000", "80000000", ": ", "\r\n", "TRT-", "\x85", "\u2028"),
        longest=512,
    ),
    Target(
        "runtime_cache",
        runtime_cache,
        (b'{"engine": "sha256:0", "tensorrt_rtx": "1.7", "sha256": "0"}\nblob',),
        is_json=True,
        longest=512,
    ),
)
