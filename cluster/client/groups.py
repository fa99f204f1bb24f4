"""Keeps a Dask scheduler from remembering every task of a long session (distributed 2026.8).

Dask puts tasks of one name into a `TaskGroup`, and groups into a `Span`. Both are to be looked at afterwards:
when the last task of a group is forgotten, the next one begins a new group, and the former stays with its
span for as long as the scheduler lives (`spans.py`), some kilobytes each. One task that does nothing and is
not forgotten keeps its group, so there is one group for each kind of step.

Two more are cleared now and then: a span notes `{"type": "Future"}` for each task that was ever submitted,
some 300 bytes; and `dask.utils.key_split` caches what it makes of the last 100,000 keys, some 40 MB.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

NUMBER = "0" * 32
"""Ends the key of a task that does nothing."""
_CLEARED_EVERY = 1000


class Groups:
    """The groups of one client.

    Args:
        client: A synchronous `distributed.Client`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._kept: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._tasks = 0

    def keep(self, kind: str) -> None:
        """Have the group of a kind of step stay; called for each task."""
        with self._lock:
            if kind not in self._kept:
                self._kept[kind] = self._client.submit(bool, key=f"qcompile-{kind}-{NUMBER}", pure=False)
            self._tasks += 1
            clear = self._tasks % _CLEARED_EVERY == 0
        if clear:
            with contextlib.suppress(Exception):  # a scheduler that runs nothing for others only grows
                self._client.run_on_scheduler(_clearing())

    def close(self) -> None:
        """Let them go."""
        with self._lock:
            for future in self._kept.values():
                with contextlib.suppress(Exception):  # the scheduler is gone
                    future.release()
            self._kept.clear()


def _clearing() -> Callable[[Any], None]:
    """Return what clears them, which refers to nothing of qcompile: a scheduler need not have it."""

    def clear(dask_scheduler: Any) -> None:
        from dask.utils import key_split

        key_split.cache_clear()
        for span in list(getattr(dask_scheduler.extensions.get("spans"), "spans", {}).values()):
            noted = (getattr(span, "_metadata", None) or {}).get("collections")
            if isinstance(noted, list):  # what it notes of others stays
                noted[:] = [one for one in noted if one != {"type": "Future"}]

    return clear
