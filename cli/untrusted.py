"""`--untrusted`: the verb runs in a process of its own, with limits on memory and time."""

from __future__ import annotations

from typing import Any

import click

from ..errors import QCompileError
from ..untrusted.child import MEMORY_GB, TIME_S, Limits

_FLAG, _MEMORY, _TIME = "untrusted", "memory_limit_gb", "time_limit_s"


def untrusted_options() -> list[click.Option]:
    """Return `--untrusted` and its limits."""
    return [
        click.Option(
            ["--untrusted"],
            is_flag=True,
            help="Files may come from strangers: work in another process, with limits.",
        ),
        click.Option(
            ["--memory-limit-gb"],
            type=click.FLOAT,
            help=f"With --untrusted: memory that all its processes may hold. [default: {MEMORY_GB:g}]",
        ),
        click.Option(
            ["--time-limit-s"],
            type=click.FLOAT,
            help=f"With --untrusted: seconds that the command may take. [default: {TIME_S:g}]",
        ),
    ]


def watched(options: dict[str, Any], *, as_json: bool) -> int | None:
    """Carry out the command that was typed in a process of its own, if `--untrusted` was typed.

    Args:
        options: Of the command; those of `untrusted_options` are taken out.
        as_json: Whether standard output gets one JSON object, of a verb that came to its end or of the error.

    Returns:
        The exit code; None where this process carries it out.
    """
    untrusted = options.pop(_FLAG, False)
    given = {"memory_gb": options.pop(_MEMORY, None), "time_s": options.pop(_TIME, None)}
    given = {name: value for name, value in given.items() if value is not None}
    from ..untrusted.child import is_child, limit_self

    if is_child():
        limit_self()
        return None
    if not untrusted:
        if given:
            raise click.UsageError("--memory-limit-gb and --time-limit-s need --untrusted")
        return None
    if options.get("trust"):
        refuse_trust("--trust")
    try:
        limits = Limits(**given)
        from ..untrusted.run import run_untrusted

        finished = run_untrusted(click.get_current_context().find_root().obj, limits, capture=as_json)
    except QCompileError as error:
        _spell(error)
        raise
    if finished.output:
        click.echo(finished.output, nl=False)
    return finished.code


def refuse_trust(name: str) -> None:
    """Refuse what lets a file run code."""
    raise click.UsageError(
        f"--untrusted and {name} exclude each other: with it a file may run code, and limits on memory and "
        "time are no sandbox"
    )


def _spell(error: QCompileError) -> None:
    """Spell the options as they are typed."""
    for name in (_FLAG, _MEMORY, _TIME):
        typed = f"--{name.replace('_', '-')}"
        error.message = error.message.replace(f"`{name}`", typed)
        error.hint = error.hint.replace(f"`{name}`", typed)
        if error.data.get("option") == name:
            error.data = {**error.data, "option": typed}
    error.args = (error.message,)
