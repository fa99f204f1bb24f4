"""Generate commands: arguments, options and their help come from the fields of a spec.

A command gets a `Session` and the decoded spec. The library's errors name options by field; here the names
are replaced by their spelling on the command line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ..core.memory import out_of_memory
from ..errors import QCompileError, UsageError
from ..spec.artifacts import BuildCommand, QuantizeCommand
from ..spec.decode import decode
from ..spec.groups import GROUPS, group_of
from ..spec.measure import BenchCommand, DiffCommand
from ..spec.models import CalibrateCommand, ExportCommand
from ..spec.option import COMMA, Option, options_of
from ..spec.recipes import RunCommand, SweepCommand
from ..spec.words import AUTO, METHOD, METHODS, METRIC, METRICS, TARGETS
from .session import UNTRUSTED, Session, examples, run_untrusted_child, session_options

_WORDS = {METRIC: (AUTO, *METRICS), METHOD: METHODS, "TARGET": TARGETS}


class Text(click.types.StringParamType):
    """Type of a text option. A shell completes its choices (after the last comma, in a list), else files.

    A choice in capitals is accepted.
    """

    def __init__(self, option: Option) -> None:
        self._split = option.spelling.split == COMMA
        self._words = option.choices or _WORDS.get(option.spelling.metavar, ())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = str(value).split(",") if self._split else [str(value)]
        return ",".join(part.lower() if part.lower() in self._words else part for part in parts)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if not self._words:
            return [CompletionItem(incomplete, type="file")]
        before, comma, last = incomplete.rpartition(",") if self._split else ("", "", incomplete)
        return [
            CompletionItem(f"{before}{comma}{word}")
            for word in self._words
            if word.startswith(last) and word not in before.split(",")
        ]


class _Decoded(click.ParamType[Any]):
    """A type that passes wrong values on: decoding the spec refuses them in the words of a recipe."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            return value


class _Choice(_Decoded, click.Choice[str]):
    pass


class _Integer(_Decoded, click.types.IntParamType):
    pass


class _Float(_Decoded, click.types.FloatParamType):
    pass


Spec = TypeVar("Spec")


class Verb(click.Command):
    """A command generated from a spec; the fields are read when the command is called.

    Attributes:
        spec: The type that has the options as fields.
        files: Whether it reads files that may be untrusted.
    """

    spec: type
    files: bool

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of the spec, those of its tables last, and those of every command."""
        if not self.params:
            options = sorted(options_of(self.spec), key=lambda option: "." in option.key)
            self.params = [*map(parameter, options), *session_options(files=self.files), _short_help()]
        return super().get_params(ctx)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "Show all options and exit."
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, and the options by group; after `-h`, only the required and the usual ones."""
        declared = {
            option.name if option.spelling.argument else option.flag: option
            for option in options_of(self.spec)
        }
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in (_ARGUMENTS, *GROUPS, "")}
        omitted = 0
        for param in self.get_params(ctx):
            flag = max(param.opts, key=len)
            title, is_usual = group_of(flag, declared.get(flag))
            if isinstance(param, click.Argument):
                sections[_ARGUMENTS].append((param.human_readable_name, declared[flag].sentence))
            elif is_usual or param.required or _SHORT not in ctx.meta:
                sections[title].append(param.get_help_record(ctx) or (flag, ""))
            else:
                omitted += 1
        longest = max(len(name) for records in sections.values() for name, _ in records)
        width = min(longest, _NAMES_WIDTH)
        for title, records in sections.items():
            if records:
                with formatter.section(title or "Further options"):
                    formatter.write_dl([(name.ljust(width), text) for name, text in records], _NAMES_WIDTH)
        if omitted:
            formatter.write_paragraph()
            formatter.write_text(f"{omitted} more options: {ctx.command_path} --help")


_SHORT, _ARGUMENTS = f"{__name__}.short", "Arguments"
_NAMES_WIDTH = 30


def _short_help() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and not ctx.resilient_parsing:
            ctx.meta[_SHORT] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    about = "Show the usual options and exit."
    return click.Option(["-h"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=about)


def verb(
    spec: type[Spec], *shown: str, short_help: str | None = None, files: bool = True
) -> Callable[[Callable[[Session, Spec], int | None]], Verb]:
    """Return a decorator that turns a function into a command.

    Args:
        spec: Type of the options that the function gets; its docstring is the help.
        shown: Examples, as typed.
        short_help: Text in the list of commands.
        files: Whether it reads files that may be untrusted.
    """

    def decorate(function: Callable[[Session, Spec], int | None]) -> Verb:
        def called(*, verbose: bool, quiet: bool, as_json: bool, **typed: Any) -> int | None:
            if verbose and quiet:
                raise UsageError("-v and -q exclude each other")
            try:
                code = run_untrusted_child(typed, as_json=as_json)
            except QCompileError as error:
                spell_options_in(error, spec)
                raise
            if code is not None:
                return code
            session = Session(verbose=verbose, quiet=quiet, as_json=as_json)
            session.spelled = functools.partial(spell_options, spec=spec)
            with session.working():
                try:
                    options = read(spec, typed)
                    return function(session, options)
                except Exception as error:
                    if isinstance(error, QCompileError):
                        spell_options_in(error, spec)
                    shortage = out_of_memory(error, session.step)
                    if shortage is None or shortage is error:
                        raise
                    raise shortage from error

        command = Verb(
            function.__name__,
            callback=called,
            help=spec.__doc__,
            short_help=short_help,
            epilog=examples(*shown),
        )
        command.spec, command.files = spec, files
        return command

    return decorate


def parameter(option: Option) -> click.Parameter:
    """Return the argument or the option of the command line for a field."""
    name, spelling = option.key.replace(".", "__"), option.spelling
    default = None if option.required or option.default in (None, (), "") else option.default
    if spelling.argument:
        many = -1 if option.repeated else 1
        return click.Argument([name], type=_type(option), nargs=many, required=option.required)
    flags = [*filter(None, [spelling.short]), option.flag]
    about: dict[str, Any] = {"help": option.sentence}
    if isinstance(option.kind, msgspec.inspect.BoolType):
        if spelling.off:
            about |= {"is_flag": True, "flag_value": False, "default": True}
        elif option.default is not False:
            flags, about["default"] = [f"{option.flag}/--no-{option.flag[2:]}"], option.default
            about["help"] = option.sentence if option.default is None else f"{option.sentence} On by default."
        else:
            about |= {"is_flag": True}
        return click.Option([*flags, name], **about)
    if option.repeated:
        about["help"] = f"{option.sentence} May be repeated."
    if default is not None:  # click treats None as a default, too, so a required option would count as given
        about["default"] = default
    shows = default not in (None, 0, -1)
    # A metavar with a space is a requirement in words, not a placeholder.
    metavar = option.name.upper() if " " in spelling.metavar else spelling.metavar or None
    return click.Option(
        [*flags, name], type=_type(option), metavar=metavar, multiple=option.repeated,
        required=option.required, show_default=shows, **about,
    )  # fmt: skip


def _type(option: Option) -> click.ParamType[Any]:
    kind = option.kind
    if option.spelling.split or isinstance(kind, msgspec.inspect.StrType):
        return Text(option)
    if option.choices:
        return _Choice(option.choices, case_sensitive=False)
    if isinstance(kind, msgspec.inspect.IntType):
        return _Integer()
    if isinstance(kind, msgspec.inspect.FloatType):
        return _Float()
    return click.Path(path_type=Path)


_NEXT_STEPS = (BuildCommand, QuantizeCommand, ExportCommand, CalibrateCommand, BenchCommand, DiffCommand)
"""Commands that a message may refer to: after the typed command, options are looked up in this order."""


def read(spec: type[Spec], typed: Mapping[str, Any]) -> Spec:
    """Return the spec with the typed options as its fields."""
    values: dict[str, Any] = {}
    for option in options_of(spec):
        value = typed[option.key.replace(".", "__")]
        if value is None or value == ():
            continue
        if option.repeated and option.spelling.split:
            parts = [part.strip() for text in value for part in re.split(option.spelling.split, text)]
            value = [part for part in parts if part]
        table = values
        for step in option.key.split(".")[:-1]:
            table = table.setdefault(step, {})
        table[option.name] = list(value) if isinstance(value, tuple) else value
    return decode(spec, values, strict=False)


def spell_options(text: str, spec: type) -> str:
    """Replace option names between backticks by their spelling; for recipes, keys are spelled as fields."""
    kinds = () if spec in (RunCommand, SweepCommand) else _NEXT_STEPS
    flags = {name: f"--{name.replace('_', '-')}" for name in UNTRUSTED}
    for option in (option for kind in (spec, *kinds) for option in options_of(kind)):
        flag = option.name.upper() if option.spelling.argument else option.flag
        flags.setdefault(option.name, flag)
        flags.setdefault(option.key, flag)
    return re.sub(r"`([\w.]+)((?:\[\d+\])*)`", lambda match: flags.get(match[1], match[0]), text)


def spell_options_in(error: QCompileError, spec: type) -> None:
    """Replace the option names in an error by their spelling on the command line."""
    error.message, error.hint = spell_options(error.message, spec), spell_options(error.hint, spec)
    error.args = (error.message,)
    if "option" in error.data:
        error.data = {**error.data, "option": spell_options(f"`{error.data['option']}`", spec).strip("`")}
