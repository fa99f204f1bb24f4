"""The reference pages and the JSON Schemas in `docs/`, from `spec/`, docstrings and types.

`python -m qcompile.cli.reference` writes them; a test compares them.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from ..deploy import TritonOptions
from ..pipeline.migrate.flags import TOOLS, dashed, flags_of
from ..spec.artifacts import BuildSpec, QuantizeSpec
from ..spec.measure import Budget
from ..spec.option import Option, fields_of, options_of
from ..spec.recipes import RecipeFile
from .format_reference import formats_page
from .main import group
from .python_reference import python_page
from .schemas import schemas
from .signatures import FILE, signatures
from .verb import Verb

FOLDER = Path(__file__).parents[1] / "docs"
_NOTE = "<!-- Written by python -m qcompile.cli.reference from spec/. -->"
_NOTE_OF_DOCSTRINGS = "<!-- Written by python -m qcompile.cli.reference from the docstrings. -->"
_NOTE_OF_TYPES = "<!-- Written by python -m qcompile.cli.reference from the types that read the files. -->"
_EVERY = """\
Every command takes `-v` (every step, and tracebacks), `-q` (no progress, no tables), `--json` and `-h`. A
*repeatable* option takes one value at a time; a *list* takes several, with commas, too. Commands that read
models, data or artifacts take `--untrusted`, `--memory-limit-gb` and `--time-limit-s`:
[files of strangers](../untrusted.md)."""
_SCHEMA = """\
[The recipe](../recipe.md) shows one. Editors that know JSON Schema complete and check the keys with
[recipe.schema.json](../recipe.schema.json), which `qcompile run --schema` prints: write
`#:schema recipe.schema.json` in the first line of the recipe."""
_MIGRATION = """\
[The guide](../migrate.md) shows how `qcompile migrate` uses them. Versions are the first and the last that
know the option: of TensorRT for trtexec, of Polygraphy itself."""
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
        "reference/commands.md": "\n".join(_commands()) + "\n",
        "reference/recipe.md": "\n".join(_recipe()) + "\n",
        "reference/migrate.md": "\n".join(_migration()) + "\n",
        "reference/python.md": "\n".join(_python()) + "\n",
        "reference/formats.md": "\n".join(formats_page(_NOTE_OF_TYPES)) + "\n",
        **{name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()},
    }


def verbs(command: click.Command = group, name: str = "qcompile") -> Iterator[tuple[str, Verb]]:
    """Every command that is made from a spec, with the words that call it."""
    if isinstance(command, Verb):
        yield name.removesuffix(" measure"), command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for word in command.list_commands(context):
                inner = command.get_command(context, word)
                assert inner is not None, "it is listed"
                yield from verbs(inner, f"{name} {word}")


def _commands() -> Iterator[str]:
    yield from (_NOTE, "# Commands", "")
    yield from (_EVERY, "")
    yield "The keys of recipes are on [their own page](recipe.md)."
    for name, made in verbs():
        options = options_of(made.spec)
        yield from ("", f"## `{_heading(name, made)}`", "", _unwrapped(made.spec.__doc__ or ""), "")
        flags = [one for one in made.params if isinstance(one, click.Option)]
        by_key = {one.key.replace(".", "__"): one for one in options}
        yield from (*_examples(made), "")
        rows = [(flag, by_key[flag.name or ""]) for flag in flags if flag.name in by_key]
        if rows:
            yield from ("| option | default | |", "|---|---|---|")
        for flag, one in rows:
            spelled = ", ".join(f"`{text}`" for text in [*flag.opts, *flag.secondary_opts])
            marks = " *List.*" if one.spelling.split else " *Repeatable.*" if one.repeated else ""
            yield f"| {spelled}{_value(one)} | {_default(one)} | {_cell(one.sentence)}{marks} |"


def _heading(name: str, made: Verb) -> str:
    arguments = [one for one in options_of(made.spec) if one.spelling.argument]
    return " ".join([name, *(one.name.upper() + ("..." if one.repeated else "") for one in arguments)])


def _examples(made: Verb) -> Iterator[str]:
    lines = (made.epilog or "").partition("Examples:\n")[2]
    if lines:
        yield from ("```console", textwrap.dedent(lines), "```")


def _recipe() -> Iterator[str]:
    yield from (_NOTE, "# Keys of a recipe", "", _SCHEMA)
    yield from ("", "## The file", "", *_table([one for one in fields_of(RecipeFile) if one.table is None]))
    for one in fields_of(RecipeFile):
        if one.table is None:
            continue
        heading = f"[[{one.name}]]" if one.repeated else f"[{one.name}]"
        inner = fields_of(one.table)
        yield from (
            "",
            f"## `{heading}`",
            "",
            one.sentence,
            "",
            *_table([f for f in inner if f.table is None]),
        )
        for nested in inner:
            if nested.table is not None:
                path = f"{one.name}.{nested.name}"
                yield from ("", f"## `[[{path}]]`" if nested.repeated else f"## `[{path}]`", "")
                yield from (
                    (nested.table.__doc__ or "").partition("\n")[0],
                    "",
                    *_table(fields_of(nested.table)),
                )


def _python() -> Iterator[str]:
    tables = {
        "build": list(_table([one for one in fields_of(BuildSpec) if one.table is None])),
        "quantize": list(_table([one for one in fields_of(QuantizeSpec) if one.name != "ranges"])),
        "Budget": list(_table(fields_of(Budget))),
        "TritonOptions": list(_table(fields_of(TritonOptions))),
    }
    anchors = {
        name.removeprefix("qcompile "): re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for name, made in verbs()
        for heading in [_heading(name, made)]
    }
    yield from python_page(_NOTE_OF_DOCSTRINGS, tables, anchors)


def _migration() -> Iterator[str]:
    yield from (
        "<!-- Written by python -m qcompile.cli.reference from pipeline/migrate/options.toml. -->",
        "",
    )
    yield from ("# Options of trtexec and Polygraphy", "", _MIGRATION)
    for tool in TOOLS:
        flags = list(dict.fromkeys(flags_of(tool).values()))
        yield from (
            "",
            f"## {tool}",
            "",
            f"From {flags[0].source.partition('/args')[0]}, {len(flags)} options.",
        )
        yield from ("", "| option | versions | becomes | note |", "|---|---|---|---|")
        for flag in flags:
            spelled = ", ".join(f"`{dashed(name)}`" for name in (flag.name, *flag.also))
            fate = {"kept": f"`{flag.to}`", "missing": "**no equal**", "unneeded": "not needed"}[flag.fate]
            note = f"{flag.note}. On TensorRT-RTX: {flag.rtx_note}" if flag.rtx_note else flag.note
            yield f"| {spelled} | {flag.versions} | {fate} | {_cell(note.removeprefix('. '))} |"


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
    said = [f"{word} {getattr(one.kind, name)}" for name, word in limits.items() if _limit(one, name)]
    return f", {', '.join(said)}" if said else ""


def _limit(one: Option, name: str) -> bool:
    return getattr(one.kind, name, None) is not None


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


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


if __name__ == "__main__":
    (FOLDER / "reference").mkdir(exist_ok=True)
    for file, content in pages().items():
        (FOLDER / file).write_text(content, encoding="utf-8")
    FILE.write_text(signatures(), encoding="utf-8")
