"""The options of trtexec and Polygraphy, from `options.toml`: what becomes of each."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import InvalidOption

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Tool = Literal["trtexec", "polygraphy"]
TOOLS: tuple[Tool, ...] = ("trtexec", "polygraphy")
Fate = Literal["kept", "missing", "unneeded"]
"""What becomes of an option: it has an equal, it has none, or nothing depends on it."""

RTX = "tensorrt-rtx"
_FATES: dict[str, Fate] = {"to": "kept", "lacks": "missing", "idle": "unneeded"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Flag:
    """One option of another tool: a row of the table, whose head says what its keys mean.

    `note` says why it has no equal and what to do, why nothing depends on it, or what to know of its equal.
    """

    name: str
    source: str
    versions: str
    fate: Fate
    note: str
    rtx_fate: Fate | None
    rtx_note: str
    also: tuple[str, ...] = ()
    takes: str = ""
    to: str = ""
    by: str = ""
    sets: Any = None
    choices: Mapping[str, Any] | None = None
    only: Sequence[str] = ()
    otherwise: str = ""
    same: str = ""
    default: str = ""

    @property
    def typed(self) -> str:
        """As it is typed: one letter has one dash."""
        return dashed(self.name)

    def for_target(self, target: str) -> tuple[Fate, str]:
        """Return what becomes of it for a target, and why."""
        if target == RTX and self.rtx_fate is not None:
            return self.rtx_fate, self.rtx_note
        return self.fate, self.note


def dashed(name: str) -> str:
    """Return an option as it is typed."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


@functools.cache
def flags_of(tool: Tool) -> dict[str, Flag]:
    """Return every spelling of a tool's options, without dashes, to what is known of it."""
    table = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))[tool]
    spelled: dict[str, Flag] = {}
    for name, row in table["options"].items():
        flag = _flag(name, dict(row), table["source"])
        spelled |= dict.fromkeys((flag.name, *flag.also), flag)
    return spelled


def find_flag(tool: Tool, name: str, *, prefixes: bool = False) -> Flag:
    """Return an option by its name without dashes, or refuse it with the nearest one.

    With `prefixes` the beginning of a name will do, where only one begins so, as argparse allows.
    """
    known = flags_of(tool)
    if name in known:
        return known[name]
    begun = {known[spelling].name for spelling in known if spelling.startswith(name)}
    if prefixes and len(name) > 1 and len(begun) == 1:
        return known[begun.pop()]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    lower = {spelling.lower(): spelling for spelling in known}
    nearest = lower.get(name.lower()) or (near[0] if near else "")
    raise InvalidOption(
        f"{tool} has no option {dashed(name)}",
        hint=f"did you mean {dashed(nearest)}?" if nearest else "",
        flag=dashed(name),
    )


def _flag(name: str, row: dict[str, Any], source: str) -> Flag:
    kind = next(kind for kind in _FATES if kind in row)
    rtx, _, rtx_note = row.pop("rtx", "").partition(": ")
    file, versions = row.pop("file", ""), row.pop("in")
    note = row.pop("note", "") if kind == "to" else row.pop(kind)
    return Flag(
        name=name, source=f"{source}/{file}" if file else source, versions=versions, fate=_FATES[kind],
        note=note, rtx_fate=_FATES.get(rtx), rtx_note=rtx_note, also=tuple(row.pop("also", ())), **row,
    )  # fmt: skip
