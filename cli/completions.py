"""What a shell offers for the value of an option: its choices, words that it knows, or files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
import msgspec
from click.shell_completion import CompletionItem

from ..spec.option import COMMA, Option
from ..spec.words import AUTO, METHOD, METHODS, METRIC, METRICS, TARGETS

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_FILES = (
    "DATA",
    "MODEL",
    "FILE",
    "RECIPE",
    "RANGES",
    "ARTIFACT",
    "ARTIFACTS",
    "REFERENCE",
    "BASELINE",
    "OLD",
    "NEW",
    "random|FILE",
)
"""Values that are texts, as they may be spelled otherwise too, and most often name a file."""


def completer(one: Option) -> Completer | None:
    """Return what completes an option's value; None where click knows it by its type."""
    words = _words(one)
    if words and one.spelling.split == COMMA:
        return lambda _, __, typed: _listed(words, typed)
    stands_for = one.name.upper() if one.spelling.argument else one.spelling.metavar
    names_files = isinstance(one.kind, msgspec.inspect.StrType) and stands_for in _FILES
    if words:
        return lambda _, __, typed: [CompletionItem(word) for word in words if word.startswith(typed)]
    if names_files:
        return lambda _, __, typed: [CompletionItem(typed, type="file")]
    return None


def _words(one: Option) -> Sequence[str]:
    """The words of an option whose type is a text."""
    if one.choices:
        return one.choices if one.spelling.split else ()  # click completes the others
    metavar = one.spelling.metavar
    known = {METRIC: (AUTO, *METRICS), METHOD: METHODS, "TARGET": TARGETS}
    return known.get(metavar, ())


def _listed(words: Sequence[str], typed: str) -> list[CompletionItem]:
    """Completions of the last of several values between commas; one is not offered twice."""
    before, comma, last = typed.rpartition(",")
    taken = before.split(",")
    return [
        CompletionItem(f"{before}{comma}{word}")
        for word in words
        if word.startswith(last) and word not in taken
    ]
