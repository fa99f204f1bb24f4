"""Report a build's progress, and stop it on Ctrl-C.

Python raises KeyboardInterrupt in whatever it runs next. While TensorRT builds, that is a callback: mostly
the logger, whose binding prints "[ERROR] Exception caught in log()" and drops the exception (`PyLogger::log`
in python/src/infer/pyCore.cpp, release/8.5 to 11.1). The build would go on as if nothing had been pressed.
So signals are kept out of callbacks, and `IProgressMonitor`, where TensorRT has one, cancels the build.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ....progress import Progress


def make_monitor(module: Any, progress: Progress) -> Any:
    """Return an `IProgressMonitor` that tells `progress` and keeps in `raised` what that raises.

    `before_each_step` may be set to what raises in place of it, such as a Ctrl-C that was deferred.
    """

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        """Passes the outermost phase on. What is raised meanwhile (Ctrl-C) must not cross TensorRT's
        C++: it is kept, the build is cancelled, and the caller raises it."""

        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}
            self.outermost = ""
            self.raised: BaseException | None = None
            self.before_each_step: Callable[[], None] = lambda: None

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if not parent:
                self.outermost = phase
                self.totals[phase] = steps

        def step_complete(self, phase: str, step: int) -> bool:
            try:
                self.before_each_step()
                if phase == self.outermost:
                    progress("build", step + 1, self.totals.get(phase))
            except BaseException as error:
                self.raised = error
            return self.raised is None

        def phase_finish(self, phase: str) -> None:
            self.totals.pop(phase, None)

    return Monitor()


_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def interrupt_deferred() -> Iterator[Callable[[], None]]:
    """Take note of Ctrl-C in the block, and handle it at its end; a second one ends the process at once.

    So with SIGTERM and SIGHUP, where Python code handles them. A signal that is ignored stays ignored.

    Yields:
        A function that handles it where there was one, which raises: for a callback that can pass it on.
    """
    came: list[int] = []
    before: dict[int, Callable[[int, FrameType | None], object]] = {}

    def note(number: int, __: FrameType | None) -> None:
        came.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    def handle() -> None:
        for number in list(came):
            before[number](number, None)

    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main one
        yield handle
        return
    for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
        handler = signal.getsignal(number)
        if callable(handler):  # neither ignored, nor the system's, nor installed from elsewhere
            before[number] = handler
            signal.signal(number, note)
    try:
        yield handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    handle()
