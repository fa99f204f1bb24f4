"""What a shell offers for the value of an option: its words, or files."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ..spec.option import COMMA, Option
from ..spec.words import AUTO, METHOD, METHODS, METRIC, METRICS, TARGETS

_WORDS = {METRIC: (AUTO, *METRICS), METHOD: METHODS, "TARGET": TARGETS}


class Text(click.types.StringParamType):
    """The text of an option. A shell completes its words, or the last one between commas, else files."""

    def __init__(self, option: Option) -> None:
        self._option = option

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that continue what is typed."""
        spelling = self._option.spelling
        words = self._option.choices or _WORDS.get(spelling.metavar, ())
        if not words:
            return [CompletionItem(incomplete, type="file")]
        before, comma, last = incomplete.rpartition(",") if spelling.split == COMMA else ("", "", incomplete)
        return [
            CompletionItem(f"{before}{comma}{word}")
            for word in words
            if word.startswith(last) and word not in before.split(",")
        ]
