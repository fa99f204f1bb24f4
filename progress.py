"""What is said while working: progress through one callable; other libraries' chatter is caught.

Library code never prints. A stage that takes long calls its `progress` with what it is doing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    """Receives the state of a piece of work."""

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """Say that `done` of `total` steps of `text` are finished; no total when it is unknown."""


def silent(text: str, done: int = 0, total: int | None = None, /) -> None:
    """Show nothing: the default."""


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Catch what libraries print, warn and log in the block; yields what they printed.

    Exporters and quantizers write progress and advice to both streams, in which our own words would
    drown. Failures are not affected: they arrive as exceptions.
    """
    said = io.StringIO()
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            warnings.simplefilter("ignore")
            yield said
    finally:
        logging.disable(previous)
