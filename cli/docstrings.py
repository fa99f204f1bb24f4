"""Docstrings in Google's form: paragraphs, and the sections `Args`, `Returns`, `Raises`, `Attributes`."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example):\n", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Yields": "Returns"}
_ENTRY = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): ", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """What a section says of one name, or of several together."""

    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a docstring with a title; `entries` where it goes by names, else `text`."""

    title: str
    text: str
    entries: tuple[Entry, ...] = ()


def sections_of(doc: str) -> tuple[str, list[Section]]:
    """Return what a docstring says first, and its sections in order.

    Args:
        doc: Without the indentation of the source.
    """
    body, *parts = _SECTION.split(doc)
    return body.strip(), [
        _section(title, textwrap.dedent(text)) for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def _section(title: str, text: str) -> Section:
    shown = _TITLES.get(title, title)
    if title in ("Returns", "Yields", "Example"):
        return Section(shown, "\n\n".join(paragraphs(text)))
    start, *rest = _ENTRY.split(text)
    if start.strip():
        return Section(shown, "\n\n".join(paragraphs(text)))
    entries = [
        Entry(tuple(names.replace("*", "").split(", ")), " ".join(said.split()))
        for names, said in zip(rest[::2], rest[1::2], strict=True)
    ]
    return Section(shown, "", tuple(entries))


def paragraphs(text: str) -> list[str]:
    """Return paragraphs on one line each; lists, tables and code stay as they are."""
    return [
        part.rstrip() if re.match(r" {4}|\||[-*] |\d+\. ", part.strip("\n")) else " ".join(part.split())
        for part in text.strip("\n").split("\n\n")
    ]
