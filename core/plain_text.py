r"""Make untrusted text safe to print: names in a model or manifest, error messages of other packages.

Escape sequences control a terminal, and bidirectional marks reorder the displayed text. Characters that are
not printable are therefore shown as Python escapes:

    conv\x1b[2J      a name that would clear the screen
    gnp.\u202eexe    a name that would be displayed backwards
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

_INDENT = "    "
_WIDTH = 100
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
"""Characters to check: all except plain ASCII."""


def plain(text: object) -> str:
    """Return one line with escapes for control characters, bidirectional marks and line ends."""
    return _escaped(str(text), lambda sign: repr(sign)[1:-1])


def plain_lines(text: object) -> str:
    """Return text of several lines, each passed through `plain`; tabs remain.

    Lines after the first are indented by at least four spaces, so that a line end in a name cannot start a
    line that looks like another message.
    """
    lines = str(text).split("\n")
    for index, line in enumerate(lines[1:], 1):
        lines[index] = line if not line or line.startswith(_INDENT) else _INDENT + line
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in lines)


def plain_json(text: str) -> str:
    """Return JSON with escapes for all unprintable characters; `json.dumps` escapes those below 0x20."""
    return "\n".join(_escaped(line, _json_escape) for line in text.split("\n"))


def plain_toml(text: str) -> str:
    """Return a text as TOML, which has all escapes of JSON except surrogate pairs."""
    return _escaped(json.dumps(text, ensure_ascii=False), lambda sign: f"\\U{ord(sign):08x}")


def toml_value(value: object) -> str:
    """Return a value in TOML syntax; a list too long for a line has one item on each line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return plain_toml(value)
    if isinstance(value, Sequence):
        items = [toml_value(item) for item in value]
        text = f"[{', '.join(items)}]"
        return (
            text if len(text) <= _WIDTH else "\n".join(["[", *(f"{_INDENT}{item}," for item in items), "]"])
        )
    return str(value)


def toml_table(header: str, lines: Iterable[tuple[str, object, str]]) -> Iterator[str]:
    """Yield the lines of a TOML table: an empty line, the header, and `key = value  # why` for each entry."""
    yield ""
    if header:
        yield header
    for key, value, why in lines:
        yield f"{key} = {toml_value(value)}{f'  # {plain(why)}' if why else ''}"


NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Bytes of a file name that are not UTF-8, as Python decodes them (surrogates)."""


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return _NOT_ASCII.sub(lambda match: match[0] if _is_printed(match[0]) else escape(match[0]), text)


def _json_escape(character: str) -> str:
    digits = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{digits[start : start + 4]}" for start in range(0, len(digits), 4))


def _is_printed(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of all widths
