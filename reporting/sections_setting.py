"""Sections of where and how: what was not measured, the environment, what repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..bench.results.render import warning_lines
from ..figures import DASH, bytes_text, number, words
from .parts import Block, Cell, Section, Table
from .source import Source

_OF_THE_RUN = ("before", "after", "noise")
_ELSEWHERE = ("command", "recipe")
_UNITS = {
    "_bytes": "", "_mhz": ", MHz", "_ms": ", ms", "_us": ", µs", "_s": ", s", "_1min": ", 1 minute",
    "_c": ", °C", "_w": ", W",
}  # fmt: skip


def failures_section(source: Source) -> Section:
    """Artifacts without numbers, each with the reason, and what users should know of the others."""
    title = "Not measured, and warnings"
    rows, blocks = [], []
    for subject in source.subjects:
        if subject.is_measured:
            continue
        row = subject.row
        status = "no latency" if row.status == "measured" else row.status
        rows.append([Cell(subject.label, subject=subject), Cell(status), Cell(words(row.reason))])
        if row.output_tail:
            blocks.append(Block(f"Last output of {subject.label}", row.output_tail, folded=True))
    items = warning_lines(source.results)
    if not rows and not items:
        return Section("failures", title, missing="every artifact was measured, and none has a warning")
    table = Table("Artifacts without numbers.", ("artifact", "status", "reason"), rows, words=(0, 1, 2))
    return Section("failures", title, tables=[table] if rows else [], blocks=blocks, items=items)


def environment_section(source: Source) -> Section:
    """The machine, and what changed on it while it was measured."""
    environment = source.results.environment
    noise = environment.get("noise")
    if isinstance(noise, Mapping):
        lead = "The run was quiet." if not noise.get("noisy") else "The run was noisy:"
        items = [str(reason) for reason in noise.get("reasons") or ()]
    else:
        lead, items = "Whether the run was quiet was not recorded.", []
    fixed = {key: value for key, value in environment.items() if key not in _OF_THE_RUN and not _empty(value)}
    tables = []
    if fixed:
        rows = [[Cell(_name(key)), Cell(_value(key, value))] for key, value in fixed.items()]
        tables.append(Table("The machine and the versions.", ("", "value"), rows, words=(0, 1), narrow=True))
    before, after = (_flat(_mapping(environment.get(key))) for key in ("before", "after"))
    keys = list(dict.fromkeys([*before, *after]))
    if keys:
        rows = [
            [Cell(_name(key)), Cell(_value(key, before.get(key))), Cell(_value(key, after.get(key)))]
            for key in keys
            if not (before.get(key) is None and after.get(key) is None)
        ]
        if rows:
            tables.append(Table("Before and after measuring.", ("", "before", "after"), rows, narrow=True))
    if not tables:
        return Section("environment", "Environment", missing="the results hold none")
    return Section("environment", "Environment", lead, tables=tables, items=items)


def reproduce_section(source: Source) -> Section:
    """The command, the recipe and the settings."""
    settings = source.results.settings
    command = settings.get("command")
    blocks = []
    if isinstance(command, list) and command:
        blocks.append(Block("Command", shlex.join(map(str, command))))
    if source.recipe:
        blocks.append(Block("Recipe", source.recipe))
    fixed = {key: value for key, value in settings.items() if key not in _ELSEWHERE and not _empty(value)}
    rows = [[Cell(_name(key)), Cell(_value(key, value))] for key, value in fixed.items()]
    tables = (
        [Table("Settings of the measuring.", ("", "value"), rows, words=(0, 1), narrow=True)] if rows else []
    )
    if not blocks and not tables:
        return Section("reproduce", "To repeat it", missing="the results hold no settings")
    lead = "" if blocks else "The results hold neither the command nor a recipe (`recipe` adds one)."
    return Section("reproduce", "To repeat it", lead, tables=tables, blocks=blocks)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings become dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _empty(value: object) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _name(key: str) -> str:
    """`memory_bytes` is read "memory": its unit stands at the value; `frequency_mhz` is "frequency, MHz"."""
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def _value(key: str, value: object) -> str:
    if key.endswith("_bytes"):
        return bytes_text(number(value))
    return words(value) if value is not None else DASH
