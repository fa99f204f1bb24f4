"""Packages that only some kinds of data need, and what to install where one is missing."""

from __future__ import annotations

import importlib

from ..errors import EngineUnavailable, first_line

EXTRA = "qcompile[data]"


def require_package(module: str, package: str, use: str) -> None:
    """Make sure that a package can be imported.

    Raises:
        EngineUnavailable: With what to install.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise EngineUnavailable(
            f"{package} {use}, and cannot be imported ({first_line(error)})",
            hint=f"pip install '{EXTRA}'",
            engine=package,
            reason=first_line(error),
        ) from error
