"""`qcompile auto`."""

from __future__ import annotations

import os
from pathlib import Path

from ..spec.first_use import AutoCommand
from .scheduler import executor_of, listener_of
from .session import Session
from .tables import present_results
from .verb import verb


@verb(
    AutoCommand,
    "qcompile auto timm:resnet18 --data images/ --max-drop 0.5",
    "qcompile auto model.py:build --data data.npz --max-drop 0.5 -o compiled",
    "qcompile auto hf:distilbert-base-uncased --data reviews.jsonl --max-drop 1 --target openvino",
)
def auto(session: Session, given: AutoCommand) -> int:
    """Print the table of what was measured, the answer in one sentence, and where everything is."""
    from ..pipeline.auto import find_artifact, folder_of

    with executor_of(session, given, folder_of(given.model, given.output)) as executor:
        found = find_artifact(given, executor, session.progress, listener_of(session, executor))
    session.json(found.as_json())
    if found.report.results is not None:
        present_results(session, found.report.results)
    session.warn(found.notes)
    if set(found.stages.values()) <= {"skipped"}:
        session.note("nothing changed: every stage was done already")
    session.say(found.recommendation.sentence)
    if found.artifact:
        session.say(f"artifact: {_shown(found.artifact)}")
    if found.report.page:
        session.say(f"report:   {_shown(found.report.page)}")
    elif found.report.why_no_page:
        session.note(f"no report: {found.report.why_no_page}")
    session.say(f"recipe:   {found.recipe}")
    return 0 if found.recommendation.artifact else 1


def _shown(path: Path) -> str:
    """Relative to the working folder where that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)
