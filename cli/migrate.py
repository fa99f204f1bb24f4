"""`qcompile migrate`."""

from __future__ import annotations

from ..spec.recipes import MigrateCommand
from .session import Session
from .tables import DASH, add_row, make_table
from .verb import verb

_WORDS = {"kept": "becomes", "missing": "NO EQUAL", "unneeded": "not needed"}


@verb(
    MigrateCommand,
    "qcompile migrate 'trtexec --onnx=model.onnx --fp16 --saveEngine=model.engine'",
    "qcompile migrate 'trtexec --onnx=model.onnx --int8 --calib=model.cache' "
    "--target tensorrt-rtx --gpu sm86",
    "qcompile migrate 'polygraphy run model.onnx --trt --onnxrt --fp16 --atol 1e-2' -o recipe.toml",
    "qcompile migrate @build_engine.sh --path /workspace=. --data data.py:samples --allow-missing",
    files=False,
)
def migrate(session: Session, given: MigrateCommand) -> int:
    """Print what became of each option."""
    from ..pipeline.migrate import migrate as write_recipe

    done = write_recipe(
        given.command,
        given.output,
        target=given.target or "",
        gpus=given.gpus,
        data=given.data or "",
        paths=given.paths,
    )
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
