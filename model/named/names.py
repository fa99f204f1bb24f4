"""Refuse a name that a package does not know, with the nearest one that it does."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ...errors import InvalidOption
from ..source import Source


def require_name(source: Source, name: str, names: Sequence[str], *, known: bool) -> None:
    """Raise unless a package knows a model.

    Args:
        source: What the user wrote.
        name: The name to compare with the others.
        names: All that there are.
        known: Whether it is among them.
    """
    if known:
        return
    near = difflib.get_close_matches(name, names, n=3)
    raise InvalidOption(
        f"model {source.spec}: {source.kind} has no model {source.name!r}; one of its {len(names)} is "
        "required",
        hint=f"did you mean {' or '.join(near)}?" if near else "",
    )
