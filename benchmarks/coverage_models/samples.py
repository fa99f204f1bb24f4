"""The samples of every architecture of `catalogue`, as functions that --data can name by its key."""

from __future__ import annotations

from catalogue import ARCHITECTURES


def __getattr__(name: str) -> object:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].samples
    raise AttributeError(name)
