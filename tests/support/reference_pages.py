"""Write what is generated from `spec/`: a page of the reference, the JSON Schemas, the keyword types.

`make reference` runs it; a test compares. MkDocs makes the pages of commands and of Python itself.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from json_schemas import schemas
from keyword_types import keyword_types

from qcompile.cli.main import group
from qcompile.cli.verb import Verb
from qcompile.spec.option import Option, fields_of
from qcompile.spec.recipes import RecipeFile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs"
_NOTE = "<!-- Written by `make reference` from spec/. -->"
_SCHEMA = """\
[The recipe](../recipe.md) shows one. Editors that know JSON Schema complete and check the keys with
[recipe.schema.json](../recipe.schema.json), which `qcompile run --schema` prints: write
`#:schema recipe.schema.json` in the first line of the recipe."""
_KINDS = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.IntType: "whole number",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "true or false",
}


@functools.cache
def pages() -> dict[str, str]:
    """Return the name of each generated file to its text."""
    return {
        "reference/recipe.md": "\n".join(_recipe()) + "\n",
        **{name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()},
    }


def verbs(command: click.Command = group, name: str = "qcompile") -> Iterator[tuple[str, Verb]]:
    """Every command that is made from a spec, with the words that call it."""
    if isinstance(command, Verb):
        yield name, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for word in command.list_commands(context):
                inner = command.get_command(context, word)
                assert inner is not None, "it is listed"
                yield from verbs(inner, f"{name} {word}")


def _recipe() -> Iterator[str]:
    yield from (_NOTE, "# Keys of a recipe", "", _SCHEMA)
    yield from ("", "## The file", "", *_table([one for one in fields_of(RecipeFile) if one.table is None]))
    for one in fields_of(RecipeFile):
        if one.table is None:
            continue
        inner = fields_of(one.table)
        yield from ("", f"## `{_heading(one, one.name)}`", "", one.sentence, "")
        yield from _table([option for option in inner if option.table is None])
        for nested in inner:
            if nested.table is not None:
                sentence = (nested.table.__doc__ or "").partition("\n")[0]
                yield from ("", f"## `{_heading(nested, f'{one.name}.{nested.name}')}`", "", sentence, "")
                yield from _table(fields_of(nested.table))


def _heading(one: Option, path: str) -> str:
    return f"[[{path}]]" if one.repeated else f"[{path}]"


def _table(options: list[Option] | tuple[Option, ...]) -> Iterator[str]:
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for one in sorted(options, key=lambda one: not one.required):
        kind = ", ".join(f"`{choice}`" for choice in one.choices) or _value(one).strip()
        if one.spelling.split and not one.choices:
            kind = re.sub(r",[^,`]*(?:,\.\.\.)?`$", "`", kind)  # `N,N` on the command line
        kind = kind or _KINDS[type(one.kind)]
        limits = _limits(one)
        kind = f"list of {kind}" if one.repeated else kind
        default, sentence = _default(one), one.sentence
        if one.spelling.off:  # a flag; here the field itself
            default, sentence = "`true`", f"If false: {sentence[0].lower()}{sentence[1:]}"
        yield f"| `{one.name}` | {kind}{limits} | {default} | {_cell(sentence)} |"


def _limits(one: Option) -> str:
    limits = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    values = {word: getattr(one.kind, name, None) for name, word in limits.items()}
    said = [f"{word} {value}" for word, value in values.items() if value is not None]
    return f", {', '.join(said)}" if said else ""


def _value(one: Option) -> str:
    if isinstance(one.kind, msgspec.inspect.BoolType):
        return ""
    if one.choices:
        return " " + ", ".join(f"`{choice}`" for choice in one.choices)
    metavar = one.spelling.metavar
    return f" `{_cell(metavar)}`" if metavar and " " not in metavar else ""


def _default(one: Option) -> str:
    if one.required:
        return "required"
    if one.default in (None, "", ()):
        return ""
    if isinstance(one.default, bool):
        return "" if one.spelling.off else f"`{str(one.default).lower()}`"
    return f"`{one.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for file, content in pages().items():
        (FOLDER / file).write_text(content, encoding="utf-8")
    (ROOT / "spec/keywords.pyi").write_text(keyword_types(), encoding="utf-8")
