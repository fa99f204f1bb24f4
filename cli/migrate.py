"""`qcompile migrate`."""

from __future__ import annotations

import click

from ..spec.recipes import MigrateCommand
from .session import Session
from .tables import DASH, add_row, make_table
from .verb import Verb, verb

_WORDS = {"kept": "becomes", "missing": "NO EQUAL", "unneeded": "not needed"}


class _OneText(Verb):
    """A command whose COMMAND holds options of another tool, which are no options here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say that COMMAND is one text, where its words came apart."""
        tools = ("trtexec", "polygraphy")
        if args and args[0].rpartition("/")[2] in tools:
            raise click.UsageError(
                f"{args[0]} and its options are one text: qcompile migrate '{args[0]} ...', or @FILE", ctx
            )
        return super().parse_args(ctx, args)


@verb(
    MigrateCommand,
    "qcompile migrate 'trtexec --onnx=model.onnx --fp16 --saveEngine=model.engine'",
    "qcompile migrate 'trtexec --onnx=model.onnx --int8 --calib=model.cache' "
    "--target tensorrt-rtx --gpu sm86",
    "qcompile migrate 'polygraphy run model.onnx --trt --onnxrt --fp16 --atol 1e-2' -o recipe.toml",
    "qcompile migrate @build_engine.sh --path /workspace=. --data data.py:samples --allow-missing",
    cls=_OneText,
    files=False,
)
def migrate(session: Session, given: MigrateCommand) -> int:
    """Print what became of each option."""
    from ..pipeline.migrate import migrate as write_recipe

    done = write_recipe(given.command, given.output, given)
    session.json(done.as_json())
    if not (session.quiet or session.as_json):
        table = make_table("", f"option of {done.tool}", "here", "key of the recipe", "note", text=True)
        for one in done.outcomes:
            add_row(table, one.flag, _WORDS[one.fate], one.to or DASH, session.spelled(one.note))
        session.table(table)
    session.warn(f"{one.flag}: no equal: {one.note}" for one in done.missing)
    if done.ranges:
        session.say(f"ranges of the calibration cache: {done.ranges}")
    session.say(f"recipe: {done.recipe}")
    for command in done.then:
        session.say(f"  {command}")
    return 1 if done.missing and not given.allow_missing else 0
