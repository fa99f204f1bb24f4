"""Parsers of what goes from machine to machine: scores of a part of the data, lists of a recipe's files."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import cache
from typing import Any

import numpy as np
import safetensors.numpy
from target import Target, file_of, folder

from qcompile.bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from qcompile.bench.metrics.evaluated import Answers, Evaluated, merge
from qcompile.bench.metrics.metric import Metric, Truth
from qcompile.bench.metrics.running_difference import RunningDifference
from qcompile.bench.metrics.scores_file import load_scores, save_scores
from qcompile.calibration.checksum import checksum
from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import read_parcel
from qcompile.cluster.messages import FileRef, Parcel, encode

_METRICS = ("top1", "spearman")
"""One that keeps statistics, and one that keeps records."""
_DIGEST = "sha256:" + "0" * 64


@cache
def _metric(name: str) -> Metric:
    return read_metric(name)


def _example(name: str) -> Evaluated:
    """Two batches of four samples; the artifact is near the baseline."""
    rng, metric = np.random.default_rng(0), _metric(name)
    base, own = ScoreSums(metric), ScoreSums(metric)
    difference = RunningDifference("int8", keep=True)
    shape = (4, 6) if name == "top1" else (4,)
    for number in range(2):
        reference = {"y": rng.standard_normal(shape).astype(np.float32)}
        outputs = {"y": reference["y"] + np.float32(0.5) * rng.standard_normal(shape).astype(np.float32)}
        truth = Truth(rng.integers(0, 6, 4), 4, f"batch {number}")
        scored = metric.score(reference, reference, truth)
        base.add(scored, scored, 4)
        own.add(metric.score(outputs, reference, truth), scored, 4)
        difference.add(reference, outputs)
    answers = {"base": Answers("fp32", base), "own": Answers("int8", own, difference)}
    return Evaluated("base", batches=[0, 1], answers=answers)


@cache
def _whole(name: str) -> bytes:
    path = folder() / f"whole.{name}.scores"
    save_scores(_example(name), {"metric": name}, path)
    return path.read_bytes()


@cache
def _arrays(name: str) -> dict[str, Any]:
    return dict(safetensors.numpy.load(_whole(name)))


def _header(name: str) -> bytes:
    """What we write into a file's metadata."""
    content = _whole(name)
    outer = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return str(outer["__metadata__"]["qcompile"]).encode()


def _sealed(ours: bytes, arrays: dict[str, Any]) -> str:
    """A header with the checksum of itself and the arrays: without it, nothing behind it would be reached."""
    try:
        header = json.loads(ours)
        return json.dumps({**header, "checksum": checksum(header, arrays)})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ours.decode("utf-8", "replace")


def _used(content: bytes, name: str) -> None:
    """What `bench` asks of scores; what is read is written and read as the same."""
    found = load_scores(file_of(content, "any.scores"), _metric(name))
    again = folder() / "again.scores"
    save_scores(found, {"metric": name}, again)
    reread = load_scores(again, _metric(name))
    assert list(reread.answers) == list(found.answers)
    assert reread.batches == found.batches
    merged = merge([found], _metric(name))
    base = merged.answers.get(found.base)
    for answers in merged.answers.values():
        if base is not None and base.sums is not None and answers.sums is not None and found.batches:
            with np.errstate(divide="ignore", invalid="ignore"):  # counts of no sample
                accuracy(answers.sums, base.sums)
        if answers.difference is not None:
            answers.difference.result()


def scores_header(content: bytes) -> None:
    """Our header in files of scores whose arrays are whole."""
    for name in _METRICS:
        text = _sealed(content, _arrays(name))
        _used(safetensors.numpy.save(_arrays(name), metadata={"qcompile": text}), name)


def scores_arrays(content: bytes) -> None:
    """Arrays in a file of scores: other counts, and one row more or less."""
    for name in _METRICS:
        arrays = {key: one.copy() for key, one in _arrays(name).items()}
        names = sorted(arrays)
        for which, place, value in struct.iter_unpack("<BBq", content[: len(content) // 10 * 10]):
            key = names[which % len(names)]
            flat = arrays[key].reshape(-1)
            if which >= 128 or not flat.size:
                arrays[key] = np.resize(arrays[key], (place % 4, *arrays[key].shape[1:]))
            else:
                flat[place % flat.size] = value
        text = _sealed(_header(name), arrays)
        _used(safetensors.numpy.save(arrays, metadata={"qcompile": text}), name)


def scores_file(content: bytes) -> None:
    """A file of scores of any bytes."""
    load_scores(file_of(content, "any.scores"), _metric("top1"))


def parcel(content: bytes) -> None:
    """The list of a recipe's files: each name of it lies below its folder, and none is another's folder."""
    store = ContentStore(folder() / "worker")
    try:
        path = file_of(content, "parcel.json")
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        store.adopt(path, digest)
        found = read_parcel(store, FileRef("parcel.json", digest, len(content)))
        top = folder() / "worker/recipes/top"
        places = {one.name: (top / one.name).resolve() for one in found.files}
        assert all(place.is_relative_to(top.resolve()) and place != top for place in places.values())
        assert top / found.recipe in places.values()
        assert len({*places.values()}) == len(found.files)
    finally:
        store.close()


_FILES = (FileRef("ann/recipe.toml", _DIGEST, 10), FileRef("data/images/1.jpg", _DIGEST[:-1] + "1", 0))
TARGETS = (
    Target("scores_header", scores_header, tuple(map(_header, _METRICS)), is_json=True, longest=4096),
    Target(
        "scores_arrays",
        scores_arrays,
        (b"", struct.pack("<BBq", 0, 1, -1), struct.pack("<BBqBBq", 3, 1, 2**62, 130, 1, 0)),
        longest=60,
    ),
    Target("scores_file", scores_file, (_whole("top1"), _whole("top1")[:600]), longest=8192),
    Target(
        "parcel",
        parcel,
        (
            encode(Parcel("ann/recipe.toml", _FILES, "/home")),
            encode(Parcel("r", (FileRef("r", _DIGEST, 1),))),
        ),
        is_json=True,
        words=("..", "/", "\\\\", "\\u0000", "sha256:"),
        longest=1024,
    ),
)
