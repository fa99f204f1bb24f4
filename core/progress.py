"""What is said while working: progress through one callable; other libraries' chatter is caught.

Library code never prints. A stage that takes long calls its `progress` with what it is doing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from typing import Protocol


class Progress(Protocol):
    """Receives the state of a piece of work."""

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """Say that `done` of `total` steps of `text` are finished; no total when it is unknown."""


def silent(text: str, done: int = 0, total: int | None = None, /) -> None:
    """Show nothing: the default."""


class _Silence:
    """Streams, warnings and logging of the process, which are silent as long as a thread is inside.

    Each thread for itself would restore what it found: of two that overlap, the later one the silence.
    """

    def __init__(self) -> None:
        self._changing, self._inside = threading.Lock(), 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._changing:
            self._inside += 1
            if self._inside > 1:
                return
            self._undo.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
            self._undo.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            dropped = io.StringIO()
            self._undo.enter_context(contextlib.redirect_stdout(dropped))
            self._undo.enter_context(contextlib.redirect_stderr(dropped))

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._inside -= 1
            if not self._inside:
                self._undo.close()


_SILENCE = _Silence()


def quiet() -> contextlib.AbstractContextManager[None]:
    """Drop what libraries print, warn and log in the block.

    Exporters and quantizers write progress and advice to both streams. Failures arrive as exceptions.
    """
    return _SILENCE
