"""The verbs as `qcompile` exports them: with a signature of all options, and a progress bar in notebooks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..spec.signatures import signature_of
from .notebook import ProgressBar, in_notebook


@functools.cache
def public(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under its public name.

    `help` and editors read its signature. In a notebook, a call without `progress` shows a bar.
    """
    signature = signature_of(name, function)
    has_progress = "progress" in signature.parameters

    @functools.wraps(function)
    def verb(*args: Any, **options: Any) -> Any:
        if not has_progress or "progress" in options or not in_notebook():
            return function(*args, **options)
        with ProgressBar() as progress:
            return function(*args, progress=progress, **options)

    verb.__module__, verb.__qualname__ = __package__.partition(".")[0], name  # pickle finds it there
    verb.__signature__ = signature  # type: ignore[attr-defined]
    return verb
