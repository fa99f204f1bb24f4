"""The help texts of Python (`pydoc_data.topics`, English that every CPython has) as characters.

Plain numpy, so that a tool that only calibrates or evaluates can read it without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

Characters = npt.NDArray[np.int64]
Batch = tuple[Characters, Characters]

WINDOW = 64
CALIBRATION_WINDOWS = 128
EVALUATION_WINDOWS = 384
_BATCH = 32
_HELD_OUT = 5  # every fifth paragraph
_UNKNOWN = 96


def encode(text: str) -> Characters:
    """Return a number per character: 0..94 printable ASCII, 95 the end of line, 96 everything else."""
    codes = np.array([ord(character) for character in text], np.int64)
    printable = (codes >= 32) & (codes < 127)
    return np.where(printable, codes - 32, np.where(codes == 10, 95, _UNKNOWN))


@cache
def training() -> Characters:
    """Return the text that the network learns."""
    return _joined(held_out=False)


def calibration() -> Iterator[Batch]:
    """Yield windows [32,64] of the training text, and the same as labels."""
    return _windows(training(), CALIBRATION_WINDOWS)


def evaluation() -> Iterator[Batch]:
    """Yield windows [32,64] of paragraphs that the network has never seen, and the same as labels.

    `perplexity` compares the scores at a place with the label at the next one.
    """
    return _windows(_joined(held_out=True), EVALUATION_WINDOWS)


def _joined(*, held_out: bool) -> Characters:
    """Join paragraphs, each once: topics repeat each other's."""
    texts = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = list(dict.fromkeys(part.strip("\n") for part in texts.split("\n\n")))
    chosen = [part for index, part in enumerate(paragraphs) if (index % _HELD_OUT == 0) == held_out]
    return encode("\n\n".join(chosen))


def _windows(text: Characters, count: int) -> Iterator[Batch]:
    """Cut windows at equal distances."""
    starts = np.linspace(0, len(text) - WINDOW, count).astype(np.int64)
    places = starts[:, None] + np.arange(WINDOW)
    for first in range(0, count, _BATCH):
        window = text[places[first : first + _BATCH]]
        yield window, window.copy()
