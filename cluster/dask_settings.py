"""Dask's settings that qcompile has other values for, where nobody has set one.

| setting                  | Dask's | here  | why                                                         |
|--------------------------|--------|-------|-------------------------------------------------------------|
| `comm.timeouts.connect`  | 30s    | 10s   | so long a worker that died is called by who wants its files |
| `worker.profile.enabled` | true   | false | stages run in other processes; a look 100 times a second    |
| `admin.tick.interval`    | 20ms   | 500ms | how late its loop is; a look 50 times a second              |

A value from Dask's own files or environment variables stays (`DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_SETTINGS: dict[str, tuple[object, object]] = {
    "distributed.comm.timeouts.connect": ("30s", "10s"),
    "distributed.worker.profile.enabled": (True, False),
    "distributed.admin.tick.interval": ("20ms", "500ms"),
}
"""Name to Dask's value and ours."""


@contextmanager
def own_settings() -> Iterator[None]:
    """Have Dask use our values in this process until the block ends."""
    import dask
    import distributed  # noqa: F401  # which declares them

    ours = {
        name: value
        for name, (default, value) in _SETTINGS.items()
        if dask.config.get(name, default) == default
    }
    with dask.config.set(ours):
        yield
