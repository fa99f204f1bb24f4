"""Dask's scheduler and worker without the web server that each of them opens, dashboard or not.

Its pages tell whoever asks what runs and where; `inproc://` itself opens no port.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, Worker


class PortlessScheduler(Scheduler):
    """A scheduler that no other process can reach, where its protocol is inproc."""

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Open nothing."""


class PortlessWorker(Worker):
    """A worker that no other process can reach, where its protocol is inproc."""

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Open nothing."""
