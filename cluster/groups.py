"""Keeps a Dask scheduler from remembering every task of a long session.

Dask puts tasks of one name into a `TaskGroup`, and groups into a `Span`. Both are to be looked at afterwards:
when the last task of a group is forgotten, the next one begins a new group, and the former stays with its
span for as long as the scheduler lives (distributed 2026.8, `spans.py`), some kilobytes each. One task that
does nothing and is not forgotten keeps its group, so there is one group for each kind of step.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

NUMBER = "0" * 32
"""Ends the key of a task that does nothing."""


class Groups:
    """The groups of one client.

    Args:
        client: A synchronous `distributed.Client`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._kept: dict[str, Any] = {}
        self._lock = threading.Lock()

    def keep(self, kind: str) -> None:
        """Have the group of a kind of step stay."""
        with self._lock:
            if kind not in self._kept:
                self._kept[kind] = self._client.submit(bool, key=f"qcompile-{kind}-{NUMBER}", pure=False)

    def close(self) -> None:
        """Let them go."""
        with self._lock:
            for future in self._kept.values():
                with contextlib.suppress(Exception):  # the scheduler is gone
                    future.release()
            self._kept.clear()
