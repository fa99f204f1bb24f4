"""Calls of known lengths on a clock of their own."""

from __future__ import annotations

from collections.abc import Sequence

MS = 1_000_000


class Virtual:
    """A clock that stands still, but for waits and for calls of a known length."""

    def __init__(self, services: Sequence[int]) -> None:
        self.at, self.services = 12_345, iter(services)

    def now(self) -> int:
        return self.at

    def wait_until(self, at: int) -> None:
        self.at = max(self.at, at)

    def call(self) -> None:
        self.at += next(self.services)
