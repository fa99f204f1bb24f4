"""Docstrings of installed packages: which of four wrote this text?

The texts are those of the Python standard library, NumPy, SciPy and scikit-learn, read from their source
files and never imported. The names of the packages are left out, or the task would be to find a name. Whole
files are held out, not single texts. Another version of a package has other texts, so the accuracy varies a
little with it.
"""

from __future__ import annotations

import os
import re
import sysconfig
import zlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Batch = tuple[Ids, Ids, Ids]  # ids [N,length], mask [N,length], labels [N]

CLASSES = ("standard library", "numpy", "scipy", "sklearn")
BUCKETS = 1024
LONGEST = 128
SHORTEST = 8
PADDING = 0

_FILES = 300  # of each package at most
_MOST = (700, 120)  # texts of each package at most: for training, for evaluation
_HELD_OUT = 5  # every so many files, by the checksum of its name
_BUCKET = 32
_LEFT_OUT = re.compile(r"numpy|np|scipy|sklearn|scikit|learn|python")
_SKIPPED = {"tests", "test", "site-packages", "_vendor", "externals", "idlelib", "lib2to3", "encodings"}
_DOCSTRING = re.compile(r':\n\s+[rRuU]?"""(.*?)"""', re.S)
_WORD = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")


def encode(text: str) -> list[int]:
    """Return the token ids of a text, at most 128: each word's checksum, no vocabulary file is needed."""
    words = [word for word in _WORD.findall(text.lower()) if not _LEFT_OUT.fullmatch(word)]
    return [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words[:LONGEST]]


@cache
def texts() -> tuple[list[tuple[list[int], int]], list[tuple[list[int], int]]]:
    """Return (token ids, class) of the training files and of the held-out files, in one fixed order."""
    parts: tuple[list[tuple[list[int], int]], ...] = ([], [])
    for label, package in enumerate(CLASSES):
        known: set[str] = set()
        counts = [0, 0]
        for path in _files(package):
            held_out = zlib.crc32(path.name.encode()) % _HELD_OUT == 0
            for text in _docstrings(path):
                ids = encode(text)
                is_new = len(ids) >= SHORTEST and text not in known
                if is_new and counts[held_out] < _MOST[held_out]:
                    known.add(text)
                    counts[held_out] += 1
                    parts[held_out].append((ids, label))
    shuffled = [[part[i] for i in np.random.default_rng(0).permutation(len(part))] for part in parts]
    return shuffled[0], shuffled[1]


def padded(samples: list[tuple[list[int], int]], length: int | None = None) -> Batch:
    """Return a batch: ids [N,length] padded with 0, mask [N,length] (1 for a token), labels [N]; all int64.

    Args:
        samples: Token ids and class of each.
        length: Extent of the second axis; the longest sample by default.
    """
    length = length or max(len(ids) for ids, _ in samples)
    ids = np.full((len(samples), length), PADDING, np.int64)
    mask = np.zeros((len(samples), length), np.int64)
    for row, (tokens, _) in enumerate(samples):
        kept = tokens[:length]
        ids[row, : len(kept)], mask[row, : len(kept)] = kept, 1
    return ids, mask, np.array([label for _, label in samples], np.int64)


def bucketed(samples: list[tuple[list[int], int]], size: int) -> Iterator[Batch]:
    """Yield batches of texts of similar length, the longest first; each is padded to its own longest."""
    by_length = sorted(samples, key=lambda sample: -len(sample[0]))
    for start in range(0, len(by_length), size):
        yield padded(by_length[start : start + size])


def calibration() -> Iterator[Batch]:
    """Yield 8 batches of 16 training texts, of 8 lengths."""
    return bucketed(texts()[0][:128], 16)


def evaluation() -> Iterator[Batch]:
    """Yield up to 480 texts of held-out files in 15 batches, the longest first: that batch is timed."""
    return bucketed(texts()[1], _BUCKET)


def _of_length(length: int) -> Iterator[Batch]:
    """Yield one batch of 8 texts that fill exactly `length` tokens, to be timed."""
    yield padded([sample for sample in texts()[1] if len(sample[0]) >= length][:8], length)


def tokens_16() -> Iterator[Batch]:
    """Yield 8 texts of 16 tokens."""
    return _of_length(16)


def tokens_32() -> Iterator[Batch]:
    """Yield 8 texts of 32 tokens."""
    return _of_length(32)


def tokens_64() -> Iterator[Batch]:
    """Yield 8 texts of 64 tokens."""
    return _of_length(64)


def tokens_128() -> Iterator[Batch]:
    """Yield 8 texts of 128 tokens."""
    return _of_length(128)


def _files(package: str) -> list[Path]:
    """Source files of a package, without tests: the same ones for the same version."""
    if package == CLASSES[0]:
        root = Path(sysconfig.get_paths()["stdlib"])
    else:
        found = find_spec(package)
        if found is None or found.origin is None:
            raise ImportError(f"package {package}: not installed; pip install scikit-learn brings it")
        root = Path(found.origin).parent
    paths: list[Path] = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _SKIPPED]  # os.walk enters what is left
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    # By checksum, not by name: the first files of the alphabet would be of few topics.
    paths.sort(key=lambda path: zlib.crc32(path.relative_to(root).as_posix().encode()))
    return paths[:_FILES]


def _docstrings(path: Path) -> Iterator[str]:
    """Texts in triple quotes behind the head of a class or function; parsing the file would be slower."""
    for found in _DOCSTRING.finditer(path.read_text(encoding="utf-8", errors="replace")):
        yield found[1]
