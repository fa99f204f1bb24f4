"""`qcompile init`."""

from __future__ import annotations

import sys

from ..spec.first_use import InitCommand
from .session import Session
from .tables import add_row, make_table
from .verb import verb


@verb(
    InitCommand,
    "qcompile init timm:resnet18 --data images/",
    "qcompile init model.py:build --data data.npz --max-drop 0.5 -o recipe.toml",
    "qcompile init model.onnx --target openvino --target tensorrt-rtx --gpu sm89",
)
def init(session: Session, given: InitCommand) -> None:
    """Print the artifacts with their reasons, and what was left out."""
    from ..pipeline.propose.init import init as write_recipe
    from ..pipeline.trust import needs_trust

    written = write_recipe(
        given.model, given.output, given, command=("qcompile", *sys.argv[1:]), progress=session.progress
    )
    session.json(written.as_json())
    if not (session.quiet or session.as_json):
        table = make_table("", "artifact", "for", "why", text=True)
        for one in written.choice.artifacts:
            add_row(table, one.name, one.target, one.why)
        session.table(table)
        for left in written.choice.left_out:
            session.note(f"left out: {left}")
    session.warn([*written.model.notes, *written.data.notes])
    session.say(f"recipe: {written.path}")
    session.say(f"  qcompile run {written.path}{' --trust' if needs_trust(written.recipe) else ''}")
