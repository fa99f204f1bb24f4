"""A Dask worker that remembers why it ended."""

from __future__ import annotations

from distributed import Worker

_ENDED = ("scheduler-remove-worker", "scheduler-close-worker", "worker-close", "worker-close-gracefully")
"""Reasons of Dask's with which a worker is told to end; with others the scheduler was lost."""


class ReasonedWorker(Worker):
    """A worker, with the reason of its end.

    Attributes:
        reason: Dask's word for it; empty before.
    """

    reason = ""

    async def close(  # type: ignore[override]  # as Dask's own does
        self,
        timeout: float = 30,
        executor_wait: bool = True,
        nanny: bool = True,
        reason: str = "worker-close",
    ) -> str | None:
        """As Dask's; the first reason counts."""
        self.reason = self.reason or reason
        return await super().close(timeout, executor_wait, nanny, reason)

    @property
    def was_lost(self) -> bool:
        """Whether the scheduler went away, as at its restart: the worker may join again."""
        return self.reason not in ("", *_ENDED)
