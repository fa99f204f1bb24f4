"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was finished is kept, and workers are ended.

Containers and Slurm send SIGTERM, a terminal that goes away sends SIGHUP. Either becomes an exception like
KeyboardInterrupt in the main thread. A second one, a second later or more, ends the process at once, also
while a native library does not return to Python: a thread reads the signals for that. `timeout` of coreutils
sends each signal twice within a moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType, TracebackType

_AGAIN_S = 1.0


class Stopped(KeyboardInterrupt):
    """A signal asks to end."""


class StopSignals:
    """Raises `Stopped` for SIGTERM and SIGHUP while it is entered. A signal that was ignored stays ignored.

    Attributes:
        received: The first of them that came; 0 before. Its exit code is 128 more.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1

    @property
    def exit_code(self) -> int:
        """130 where none came: it was Ctrl-C."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def words(self) -> str:
        """How the end is told."""
        return "interrupted" if not self.received else f"ended by {signal.Signals(self.received).name}"

    def __enter__(self) -> StopSignals:
        names = ("SIGTERM", "SIGHUP")
        numbers = [int(getattr(signal, name)) for name in names if hasattr(signal, name)]
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # Python handles signals in the main one
            return self
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._raise)
        if self._before and os.name == "posix":
            with contextlib.suppress(OSError):  # no descriptor is left: a second signal is not seen then
                self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._pipe[1])  # the thread ends with its pipe
            self._pipe = None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return  # it is on its way to the end; the thread decides about another
        self.received = number
        raise Stopped(signal.Signals(number).name)

    def _watch(self) -> None:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._read, args=(self._pipe[0],), name="signals", daemon=True).start()

    def _read(self, end: int) -> None:
        first_s = None
        handled = set(self._before)
        with os.fdopen(end, "rb", buffering=0) as signals:
            while byte := signals.read(1):
                if byte[0] not in handled:
                    continue
                now_s = time.monotonic()
                if first_s is None:
                    first_s = now_s
                elif now_s - first_s >= _AGAIN_S:
                    os._exit(128 + byte[0])
