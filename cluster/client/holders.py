"""Which worker holds which files, and the way of the others to one of them.

The client sends a file to one worker; from there it goes to those that need it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import transfer

_MOST = 8192


class Holders:
    """Digest to the workers that hold it, as far as the client knows; of the last few thousand files."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._held: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, address: str, digests: Iterable[str]) -> None:
        """Remember that a worker holds files."""
        with self._lock:
            for digest in digests:
                self._held[digest] = self._held.get(digest, frozenset()) | {address}
                self._held.move_to_end(digest)
            while len(self._held) > _MOST:
                self._held.popitem(last=False)

    def forget(self, digests: Iterable[str]) -> None:
        """Nobody is known to hold these."""
        with self._lock:
            for digest in digests:
                self._held.pop(digest, None)

    def holding(self, digests: Collection[str], alive: Collection[str]) -> tuple[str, ...]:
        """Return those of some workers that hold all of these files."""
        with self._lock:
            each = [self._held.get(digest, frozenset()) for digest in digests]
        return tuple(sorted(frozenset(alive).intersection(*each))) if each else ()

    def bring(
        self,
        files: Mapping[str, Path],
        alive: Collection[str],
        candidates: Sequence[str],
        *,
        list_of_all: str = "",
    ) -> tuple[str, ...]:
        """Have some worker hold all of these files; those that it has are not sent.

        Args:
            files: Digest to where it lies here.
            alive: Workers that may be asked for them.
            candidates: Workers that one is chosen of, the best first.
            list_of_all: Digest of the one that lists the others: who holds it holds all. There may be
                millions of the others, so they are not remembered one by one.

        Returns:
            Those that hold all of them.

        Raises:
            OSError: If the worker is lost, or its disk is full.
        """
        marks = [list_of_all] if list_of_all else list(files)
        there = self.holding(marks, alive)
        if there or not files:
            return there
        with self._lock:
            known = {digest: self._held.get(digest, frozenset()) for digest in marks}
        chosen = max(candidates, key=lambda one: sum(one in held for held in known.values()))
        self.push(chosen, files)
        self.note(chosen, marks)
        return (chosen,)

    def push(self, address: str, files: Mapping[str, Path]) -> None:
        """Bring files to one worker, which is not remembered."""
        self._client.sync(transfer.push, self._client.rpc(address), files)
