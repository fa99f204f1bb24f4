"""The error of a step that failed on a worker, as one process would raise it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import errors
from ...errors import QCompileError
from ..messages import OUTPUT, RECIPE, Result


def error_of(result: Result, *, output: Path, folder: Path) -> QCompileError:
    """Return the error that a worker told of.

    Args:
        result: Its answer.
        output: Folder that the artifacts are published to, here.
        folder: The recipe's.
    """
    told = result.error

    def here(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(OUTPUT, str(output)).replace(RECIPE, str(folder))
        if isinstance(value, dict):
            return {str(key): here(one) for key, one in value.items()}
        return [here(one) for one in value] if isinstance(value, list) else value

    kinds = {kind.__name__: kind for kind in _kinds(QCompileError)}
    kind = kinds.get(str(told.get("error", "")), QCompileError)
    data = told.get("data")
    values = {str(name): here(one) for name, one in data.items()} if isinstance(data, dict) else {}
    values = {name: one for name, one in values.items() if name not in ("message", "hint", "self")}
    error = kind(here(str(told.get("message", ""))), hint=here(str(told.get("hint", ""))), **values)
    error.data = {**error.data, "worker": result.worker}
    return error


def _kinds(kind: type[QCompileError]) -> Iterator[type[QCompileError]]:
    """The classes that errors.py declares."""
    if kind.__module__ == errors.__name__:
        yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)
