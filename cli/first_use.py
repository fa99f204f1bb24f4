"""The verbs that choose an artifact: `auto`, `init`, `tune`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..spec.recipes import AutoCommand, InitCommand, TuneCommand
from .recipes import executor_of, listener_of
from .session import Session
from .tables import add_row, bytes_text, make_table, present_results
from .verb import verb

if TYPE_CHECKING:
    from ..pipeline.tune.tune import TuneResult


@verb(
    AutoCommand,
    "qcompile auto timm:resnet18 --data images/ --max-drop 0.5",
    "qcompile auto model.py:build --data data.npz --max-drop 0.5 -o compiled",
    "qcompile auto hf:distilbert-base-uncased --data reviews.jsonl --max-drop 1 --target openvino",
)
def auto(session: Session, options: AutoCommand) -> int:
    from ..pipeline.auto import auto as find_artifact
    from ..pipeline.auto import folder_of

    with executor_of(session, options, folder_of(options.model, options.output)) as executor:
        outcome = find_artifact(
            options.model, options, executor=executor, progress=session.progress,
            listener=listener_of(session, executor),
        )  # fmt: skip
    session.json(outcome.as_json())
    if outcome.report.results is not None:
        present_results(session, outcome.report.results)
    session.warn(outcome.notes)
    if set(outcome.stages.values()) <= {"skipped"}:
        session.note("nothing changed: every stage was done already")
    session.verdict(outcome.recommendation.sentence)
    if outcome.artifact:
        session.say(f"artifact: {_shorter_path(outcome.artifact)}")
    if outcome.report.page:
        session.say(f"report:   {_shorter_path(outcome.report.page)}")
    elif outcome.report.why_no_page:
        session.note(f"no report: {outcome.report.why_no_page}")
    session.say(f"recipe:   {outcome.recipe}")
    return 0 if outcome.recommendation.artifact else 1


def _shorter_path(path: Path) -> str:
    """Return the path relative to the working folder if that is shorter, else the path itself."""
    return min(os.path.relpath(path), str(path), key=len)


@verb(
    InitCommand,
    "qcompile init timm:resnet18 --data images/",
    "qcompile init model.py:build --data data.npz --max-drop 0.5 -o recipe.toml",
    "qcompile init model.onnx --target openvino --target tensorrt-rtx --gpu sm89",
)
def init(session: Session, options: InitCommand) -> None:
    from ..pipeline.propose.init import init as write_recipe
    from ..pipeline.recipe.trust import places_outside

    proposal = write_recipe(
        options.model, options.output, options, command=("qcompile", *sys.argv[1:]), progress=session.progress
    )
    session.json(proposal.as_json())
    if not (session.quiet or session.as_json):
        table = make_table("", "artifact", "for", "why", text=True)
        for artifact in proposal.choice.artifacts:
            add_row(table, artifact.name, artifact.target, artifact.why)
        session.table(table)
        for reason in proposal.choice.left_out:
            session.note(f"left out: {reason}")
    session.warn(proposal.notes)
    session.say(f"recipe: {proposal.path}")
    session.say(f"  qcompile run {proposal.path}{' --trust' if places_outside(proposal.recipe) else ''}")


_LAYERS_SHOWN = 10


@verb(
    TuneCommand,
    "qcompile tune model.onnx --data evaluation.npz --calibration calibration.npz --max-drop 0.5 -o tuned",
    "qcompile tune model.py:build --data data.py:evaluation --calibration data.py:calibration "
    "--max-drop 0.5 --target openvino -o tuned",
    "qcompile tune model.onnx --data 'data.npz?part=evaluation' --calibration 'data.npz?part=calibration' "
    "--metric cosine --max-drop 0.1 -o tuned --scheduler tls://head:8786",
)
def tune(session: Session, options: TuneCommand) -> None:
    from ..bench.results.row import unit_of
    from ..core.figures import accuracy_text
    from ..pipeline.tune.elsewhere import on_executor
    from ..pipeline.tune.tune import tune as tune_model

    with executor_of(session, options, options.output) as executor:
        tuned = tune_model(
            options.model,
            options.data,
            options.output,
            options,
            elsewhere=on_executor(executor, options.output, progress=session.progress) if executor else None,
            progress=session.progress,
        )
    picture = _draw_front(tuned, options.output, options.max_drop)
    session.json(tuned.as_json())
    session.warn(tuned.notes)
    _print_tables(session, tuned)
    best = tuned.best
    session.verdict(
        f"{best.path}: {best.latency_ms:.3g} ms, {best.speedup.get('value', 1.0):.2f}x the float model on "
        f"ONNX Runtime, {best.drop:+.3g} lost of "
        f"{accuracy_text(tuned.float_value, unit_of(tuned.metric))} {tuned.metric}"
        + (f": {best.statement}" if best.statement else "")
    )
    session.say(f"recipe: {tuned.recipe}  picture: {picture}")


def _draw_front(tuned: TuneResult, output: Path, max_drop: float) -> Path:
    from ..bench.results.row import unit_of
    from ..core.files import writing
    from ..pipeline.tune.tune import plot_front

    path = output / "front.svg"
    with writing(path) as temporary:
        plot_front(tuned, temporary, max_drop=max_drop, unit=unit_of(tuned.metric))
    return path


def _print_tables(session: Session, tuned: TuneResult) -> None:
    for target, ranked in tuned.damage.items():
        layers = make_table(f"layers by damage, {target}", "layer", "operator", "SNR of the outputs, dB")
        for layer in ranked[:_LAYERS_SHOWN]:
            add_row(layers, layer.layer, layer.operator, f"{layer.snr_db:.1f}")
        session.table(layers)
    columns = ("artifact", "", "in float", f"{tuned.metric} drop", "latency, ms", "against float", "size")
    trials = make_table("trials", *columns)
    for trial in sorted(tuned.trials.values(), key=lambda trial: (not trial.latency_ms, trial.latency_ms)):
        timed = [f"{trial.latency_ms:.3g}", f"{trial.speedup.get('value', 1.0):.2f}x"]
        mark = "best" if trial is tuned.best else "front" if trial.name in tuned.front else ""
        add_row(
            trials,
            trial.name,
            mark,
            str(len(trial.in_float)),
            f"{trial.drop:+.3g}",
            *(timed if trial.latency_ms else ["over budget", ""]),
            bytes_text(trial.size_bytes),
        )
    session.table(trials)
