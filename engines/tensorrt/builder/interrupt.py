"""Keep Ctrl-C out of TensorRT's callbacks.

Python raises KeyboardInterrupt in whatever it runs next. While TensorRT builds, that is a callback: mostly
the logger, whose binding prints "[ERROR] Exception caught in log()" and drops the exception (`PyLogger::log`
in python/src/infer/pyCore.cpp, release/8.5 to 11.1). The build would go on as if nothing had been pressed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_deferred() -> Iterator[Callable[[], None]]:
    """Take note of Ctrl-C in the block, and raise it at its end; a second one ends the process at once.

    Yields:
        A function that raises KeyboardInterrupt where there was one: for a callback that can pass it on.
    """
    pressed = False

    def note(_: int, __: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def raise_if_pressed() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main one
        yield raise_if_pressed
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield raise_if_pressed
    finally:
        # None: a handler that was not installed from Python and cannot be put back from it.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    raise_if_pressed()
