"""`qcompile tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..spec.recipes import TuneCommand
from .scheduler import executor_of
from .session import Session
from .tables import add_row, bytes_text, make_table
from .verb import verb

if TYPE_CHECKING:
    from ..tuning import TuneResult

_SHOWN = 10


@verb(
    TuneCommand,
    "qcompile tune model.onnx --data data.py:evaluation --max-drop 0.5 -o tuned",
    "qcompile tune model.py:build --data data.py:evaluation --calibration data.py:calibration "
    "--max-drop 0.5 --target openvino -o tuned",
    "qcompile tune model.onnx --data data.npz --metric cosine --max-drop 0.1 -o tuned",
    "qcompile tune model.onnx --data data.npz --max-drop 0.5 -o tuned --scheduler tls://head:8786",
)
def tune(session: Session, given: TuneCommand) -> None:
    """Print the layers by their error, the trials, and the best model."""
    from ..bench.results.row import unit_of
    from ..figures import accuracy_text
    from ..pipeline.trials import on_executor
    from ..tuning import tune as tune_model

    with executor_of(session, given, given.output) as executor:
        tuned = tune_model(
            given.model,
            given.data,
            given.output,
            given,
            elsewhere=on_executor(executor, given.output, progress=session.progress) if executor else None,
            progress=session.progress,
        )
    picture = _picture(tuned, given.output, given.max_drop)
    session.json(tuned.as_json())
    session.warn(tuned.notes)
    _show(session, tuned)
    best = tuned.best
    session.say(
        f"{best.path}: {best.latency_ms:.3g} ms, {best.speedup.get('value', 1.0):.2f}x the float model on "
        f"ONNX Runtime, {best.drop:+.3g} lost of "
        f"{accuracy_text(tuned.float_value, unit_of(tuned.metric))} {tuned.metric}"
    )
    session.say(f"recipe: {tuned.recipe}  picture: {picture}")


def _picture(tuned: TuneResult, output: Path, max_drop: float) -> Path:
    from ..bench.results.row import unit_of
    from ..files import writing
    from ..tuning.recipe_file import plot_front

    path = output / "front.svg"
    with writing(path) as temporary:
        plot_front(
            tuned.trials, tuned.best, tuned.front, temporary, max_drop=max_drop, unit=unit_of(tuned.metric)
        )
    return path


def _show(session: Session, tuned: TuneResult) -> None:
    for target, ranked in tuned.damage.items():
        layers = make_table(f"layers by damage, {target}", "layer", "operator", "SNR of the outputs, dB")
        for one in ranked[:_SHOWN]:
            add_row(layers, one.layer, one.operator, f"{one.snr_db:.1f}")
        session.table(layers)
    columns = ("artifact", "", "in float", f"{tuned.metric} drop", "latency, ms", "against float", "size")
    trials = make_table("trials", *columns)
    for trial in sorted(tuned.trials.values(), key=lambda one: (not one.latency_ms, one.latency_ms)):
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
