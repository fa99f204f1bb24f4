"""The options of trtexec and Polygraphy, from the two tables beside this file: what becomes of each.

A row says which versions know an option, where it is declared, and one of three things: what it becomes here
(`to`), that it has no equal and what to do (`lacks`), or that nothing depends on it (`idle`).
"""

from __future__ import annotations

import difflib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import InvalidOption

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Tool = Literal["trtexec", "polygraphy"]
Fate = Literal["kept", "missing", "unneeded"]
"""What becomes of an option: it has an equal, it has none, or nothing depends on it."""

RTX = "tensorrt-rtx"
_KINDS: dict[str, Fate] = {"lacks": "missing", "idle": "unneeded"}


@dataclass(frozen=True)
class Flag:
    """One option of another tool.

    Attributes:
        name: Without its dashes.
        also: Other spellings, without dashes.
        versions: First and last that know it, as "8.5-11.1".
        source: File that declares it.
        takes: Values, as argparse counts them: "", "1", "+", "*" or "?". trtexec has one after "=", or none.
        to: What it becomes: a key of a recipe, or a command; empty where it becomes nothing.
        fate: What becomes of it.
        note: Why it has no equal and what to do, or why nothing depends on it.
        same: The option that it is another spelling of, with a row of its own.
        default: Its value where it is not given.
        rtx_fate: For TensorRT-RTX, where that differs.
        rtx_note: The reason.
    """

    name: str
    also: tuple[str, ...]
    versions: str
    source: str
    takes: str
    to: str
    fate: Fate
    note: str
    same: str
    default: str
    rtx_fate: Fate | None
    rtx_note: str

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
    table = tomllib.loads((Path(__file__).parent / f"{tool}.toml").read_text(encoding="utf-8"))
    spelled: dict[str, Flag] = {}
    for name, row in table["flags"].items():
        one = _read(name, row, table["source"])
        spelled |= dict.fromkeys((one.name, *one.also), one)
    return spelled


def find_flag(tool: Tool, name: str, *, prefixes: bool = False) -> Flag:
    """Return an option by its name without dashes.

    Args:
        tool: Whose.
        name: As it is typed.
        prefixes: Whether the beginning of a name will do, where only one begins so, as argparse allows.

    Raises:
        InvalidOption: If there is none; with the nearest one.
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


def has_key(key: str) -> bool:
    """Whether recipes have a key such as "artifact.tensorrt.workspace"; commands and sections always are."""
    from ...spec.option import fields_of
    from ...spec.recipes import RecipeFile

    kind: Any = RecipeFile
    for step in key.split(".") if "." in key else ():
        one = next((one for one in fields_of(kind) if one.name == step), None)
        if one is None:
            return False
        kind = one.table
    return True


def _read(name: str, row: dict[str, Any], source: str) -> Flag:
    to = row.get("to", "")
    kind = next(kind for kind in ("to", "lacks", "idle") if kind in row)
    rtx, _, rtx_note = row.get("rtx", "").partition(": ")
    return Flag(
        name,
        tuple(row.get("also", ())),
        row["in"],
        f"{source}/{row['file']}" if "file" in row else source,
        row.get("takes", ""),
        to,
        _KINDS.get(kind, "kept"),
        row.get(kind, "") if kind != "to" else "",
        row.get("same", ""),
        row.get("default", ""),
        _KINDS.get(rtx),
        rtx_note,
    )
