r"""Text of strangers, made plain: names in a model, a manifest, an error message of another package.

A terminal obeys escape sequences, and bidirectional marks show a line in another order than it is written.
What is not printed is shown as Python spells it, so that a reader sees that it is there:

    conv\x1b[2J      a name that would clear the screen
    gnp.\u202eexe    a name that would be shown backwards
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

_INDENT = "    "
_WIDTH = 100
_SEEN = re.compile(r"[^\x20-\x7e]")
"""What must be looked at: all but plain ASCII, which most texts are."""


def plain(text: object) -> str:
    """Return one line in which every character is seen: escapes in place of controls, marks and line ends."""
    return _escaped(str(text), lambda sign: repr(sign)[1:-1])


def plain_lines(text: object) -> str:
    """Return text of several lines, each of them plain.

    Lines after the first are indented by four or more, so that no line end in a name begins what looks like
    another message. Tabs stay.
    """
    lines = str(text).split("\n")
    for index, line in enumerate(lines[1:], 1):
        lines[index] = line if not line or line.startswith(_INDENT) else _INDENT + line
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in lines)


def plain_json(text: str) -> str:
    """Return JSON in which what is not printed is escaped; `json.dumps` leaves all above 0x1f as it is."""
    return "\n".join(_escaped(line, _in_json) for line in text.split("\n"))


def plain_toml(text: str) -> str:
    """Return a text as TOML spells it: JSON's escapes are among TOML's, but for pairs."""
    return _escaped(json.dumps(text, ensure_ascii=False), lambda sign: f"\\U{ord(sign):08x}")


def toml_value(value: object) -> str:
    """Return a value as TOML spells it; a list of more than a line has a line for each item."""
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
    """Yield the lines of a TOML table: an empty one, the header, and `key = value  # why` of each line."""
    yield ""
    if header:
        yield header
    for key, value, why in lines:
        yield f"{key} = {toml_value(value)}{f'  # {plain(why)}' if why else ''}"


NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Where the name of a file has bytes that are not UTF-8: as Python spells them."""


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return _SEEN.sub(lambda match: match[0] if _is_printed(match[0]) else escape(match[0]), text)


def _in_json(sign: str) -> str:
    digits = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def _is_printed(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) == "Zs"  # spaces of other widths
