"""Report a build's progress, and stop it on Ctrl-C, with `IProgressMonitor` where TensorRT has one."""

from __future__ import annotations

from collections.abc import Callable
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
