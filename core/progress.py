"""Progress of long stages, reported through one callable, and suppression of other libraries' output.

Library code never prints: a long stage calls its `progress` instead.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from typing import Protocol


class Progress(Protocol):
    """Callback for the progress of a stage."""

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """Report that `done` of `total` steps of `text` are finished; `total` is None if unknown."""


def silent(text: str, done: int = 0, total: int | None = None, /) -> None:
    """Ignore progress; the default."""


class _Silence:
    """Context manager that silences the process's streams, warnings and logging while any thread is inside.

    If each thread restored the streams by itself, overlapping threads could restore the silenced ones.
    """

    def __init__(self) -> None:
        self._lock, self._depth = threading.Lock(), 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            self._undo.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
            self._undo.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            dropped = io.StringIO()
            self._undo.enter_context(contextlib.redirect_stdout(dropped))
            self._undo.enter_context(contextlib.redirect_stderr(dropped))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._undo.close()


_SILENCE = _Silence()


def quiet() -> contextlib.AbstractContextManager[None]:
    """Drop prints, warnings and logs of libraries in the block; their failures arrive as exceptions."""
    return _SILENCE
