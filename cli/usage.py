"""Groups of commands, and errors of the command line itself in the form of all other errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

from ..errors import InvalidOption, UsageError


class OrderedGroup(click.Group):
    """Lists its commands in the order of their definition instead of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        hint = suggestion(name, self.list_commands(ctx)) or f"{ctx.command_path} -h lists the commands"
        raise UsageError(f"command {name!r} is unknown", hint=hint)


def suggestion(text: str, words: Iterable[str]) -> str:
    """Return "did you mean WORD?" for the word closest to a text; empty if none is close."""
    matches = difflib.get_close_matches(text.lower(), words, n=1, cutoff=0.7)
    return f"did you mean {matches[0]}?" if matches else ""


def translate_usage_error(error: click.ClickException) -> UsageError:
    """Return click's error as qcompile's: *subject: found; required*, and a hint."""
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help lists the options" if context is not None else ""
    if isinstance(error, click.NoSuchOption) and context is not None:
        options = (param for param in context.command.get_params(context) if isinstance(param, click.Option))
        flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
        name = error.option_name
        return InvalidOption(f"option {name} is unknown", hint=suggestion(name, flags) or hint, option=name)
    if isinstance(error, click.BadParameter) and error.param is not None:
        param = error.param
        name = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
        if isinstance(error, click.MissingParameter):
            return InvalidOption(f"{name} is missing", hint=hint, option=name)
        return InvalidOption(f"{name}: {_sentence(error.message)}", hint=hint, option=name)
    return UsageError(_sentence(error.format_message()), hint=hint)


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")
