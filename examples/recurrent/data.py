"""Handwritten lines: scikit-learn's digits side by side, read column by column.

A sample is a line of one to eight real digits. Each of its columns is a time step of eight pixels, and its
label is the digit that the column belongs to, or BLANK in the gaps. So the length of a sequence varies.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

Columns = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Batch = tuple[Columns, Labels]

BLANK = 10
CLASSES = 11
ROWS = 8
DIGIT_COLUMNS = 8
MOST_DIGITS = 8
LONGEST_GAP = 3
TRAINING_DIGITS = 1297

_SPLIT_SEED = 0
_BRIGHTEST = 16.0
_NOISE = 0.15


@cache
def _digits() -> tuple[npt.NDArray[np.float32], Labels]:
    """All digits [1797,8,8] in 0..1 and their classes, in the order that the split is cut from."""
    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    return (digits.images[order] / _BRIGHTEST).astype(np.float32), digits.target[order].astype(np.int64)


def lines(count: int, digits: int, *, held_out: bool, seed: int) -> Batch:
    """Compose lines of so many digits each, with gaps of random width.

    Args:
        count: Number of lines.
        digits: Digits of each line; all lines of a batch have the same length.
        held_out: Whether the digits are those that training does not see.
        seed: Equal seeds make equal lines.

    Returns:
        Columns [count, length, 8] float32 from top to bottom, and labels [count, length] int64.
    """
    images, classes = _digits()
    first, end = (TRAINING_DIGITS, len(classes)) if held_out else (0, TRAINING_DIGITS)
    random = np.random.default_rng([seed, digits, held_out])
    length = digits * DIGIT_COLUMNS + (digits + 1) * LONGEST_GAP // 2
    columns = np.zeros((count, length, ROWS), np.float32)
    labels = np.full((count, length), BLANK, np.int64)
    for line in range(count):
        spare = length - digits * DIGIT_COLUMNS
        starts = np.sort(random.integers(0, spare + 1, digits)) + DIGIT_COLUMNS * np.arange(digits)
        for start, index in zip(starts, random.integers(first, end, digits), strict=True):
            columns[line, start : start + DIGIT_COLUMNS] = images[index].T
            labels[line, start : start + DIGIT_COLUMNS] = classes[index]
    columns += random.normal(0.0, _NOISE, columns.shape).astype(np.float32)
    return columns, labels


def calibration() -> Iterator[Batch]:
    """Yield a batch of 16 lines of the training digits for each length."""
    for digits in range(1, MOST_DIGITS + 1):
        yield lines(16, digits, held_out=False, seed=1)


def evaluation() -> Iterator[Batch]:
    """Yield 32 lines of held-out digits for each length, the longest first: that batch is timed."""
    for digits in range(MOST_DIGITS, 0, -1):
        yield lines(32, digits, held_out=True, seed=2)


def one_digit() -> Iterator[Batch]:
    """Yield 32 lines of one digit: short sequences, to be timed."""
    yield lines(32, 1, held_out=True, seed=3)


def three_digits() -> Iterator[Batch]:
    """Yield 32 lines of three digits: sequences of middle length, to be timed."""
    yield lines(32, 3, held_out=True, seed=3)
