"""What earlier versions had, and what to use instead: a sentence each, said until 0.4.0.

The tag v0.2.0 has the code. docs/compatibility.md and CHANGELOG.md list the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.3.0"
"""The version that took them out."""

COMMANDS: Mapping[str, str] = {}
"""Command, or name of the Python package, to what to use instead."""

OPTIONS: Mapping[str, str] = {
    "memory": "leave it out; `--slots` of `worker` says how many stages run at a time.",
    "written": "leave it out; the text of a recipe is that of its `path`.",
}
"""Option, as its key in a recipe, to what to use instead; "TABLE.KEY" where another table keeps it."""

SOURCES: Mapping[str, str] = {}
"""Prefix of a model, artifact or reader ("kserve") to what to use instead."""


def removed_command(name: str) -> str:
    """Return what to say of a command or a Python name that went; empty where there was none."""
    return _sentence(name, COMMANDS.get(name))


def removed_option(name: str) -> str:
    """Return what to say of an option that went, by its flag or its key ("bench.rate"); else nothing."""
    key = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    return _sentence(name, OPTIONS.get(key) or OPTIONS.get(key.rpartition(".")[2]))


def removed_source(text: str) -> str:
    """Return what to say of `PREFIX:...` whose prefix went; empty where none did."""
    prefix = text.partition(":")[0]
    return _sentence(f"{prefix}:", SOURCES.get(prefix)) if ":" in text else ""


def _sentence(name: str, instead: str | None) -> str:
    return f"{name} went with {VERSION}: {instead}" if instead else ""
