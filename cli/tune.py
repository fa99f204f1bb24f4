"""`qcompile tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .session import Session, command_options, examples, split

if TYPE_CHECKING:
    from ..tuning import Tuned

_SHOWN = 10


@click.command(
    short_help="the fastest INT8 within an accuracy budget",
    epilog=examples(
        "qcompile tune model.onnx --data data.py:evaluation --max-drop 0.5 -o tuned",
        "qcompile tune model.py:build --data data.py:evaluation --calibration data.py:calibration "
        "--max-drop 0.5 --target openvino -o tuned",
        "qcompile tune model.onnx --data data.npz --metric cosine --max-drop 0.1 -o tuned",
    ),
)
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder.")
@click.option("--data", required=True, help="Samples that accuracy is measured on.")
@click.option("--calibration", help="Samples to calibrate on; those of --data otherwise.")
@click.option("--metric", default="top1", show_default=True, help="top1, top5, cosine, or file.py:function.")
@click.option("--max-drop", type=float, required=True, help="What may be lost: points of top1.")
@click.option("--target", "targets", multiple=True, help="onnxruntime, openvino; those installed by default.")
@click.option("--input", "inputs", multiple=True, help="NAME:SHAPE[:DTYPE] of a MODEL.")
@click.option("--method", help="Calibration method.")
@click.option("--exclude", multiple=True, help="Name, glob or operator type that stays in float.")
@click.option("--samples", type=int, help="Measure accuracy on at most so many samples.")
@click.option("--batch-size", type=int, help="Samples per call when latency is measured.")
@click.option("--threads", type=int, default=0, help="Threads of every artifact; 0: every core.")
@click.option("--max-time", type=float, default=60.0, show_default=True, help="Seconds per measurement.")
@command_options
def tune(
    session: Session,
    model: str,
    output: Path,
    data: str,
    calibration: str | None,
    metric: str,
    max_drop: float,
    targets: tuple[str, ...],
    inputs: tuple[str, ...],
    method: str | None,
    exclude: tuple[str, ...],
    samples: int | None,
    batch_size: int | None,
    threads: int,
    max_time: float,
) -> None:
    """Rank the layers of MODEL by the damage each does in INT8, and find the fastest mix in a budget."""
    from ..tuning import tune as tune_model

    tuned = tune_model(
        model,
        data,
        output,
        max_drop=max_drop,
        metric=metric,
        calibration=calibration,
        targets=split(targets),
        inputs=inputs,
        method=method,
        exclude=split(exclude),
        samples=samples,
        batch_size=batch_size,
        threads=threads,
        max_time_s=max_time,
        progress=session.progress,
    )
    picture = _picture(session, tuned, output, max_drop, metric)
    session.json(tuned.as_json())
    session.warn(tuned.notes)
    _show(session, tuned, metric)
    best = tuned.best
    session.say(
        f"{best.path}: {best.latency_ms:.3g} ms, {best.speedup.get('value', 1.0):.2f}x the float model on "
        f"ONNX Runtime, {best.drop:+.3g} lost of {tuned.float_value:.4g} {metric}"
    )
    session.say(f"recipe: {tuned.recipe}" + (f"  picture: {picture}" if picture else ""))


def _picture(session: Session, tuned: Tuned, output: Path, max_drop: float, metric: str) -> Path | None:
    from ..artifact import writing
    from ..errors import EngineUnavailable
    from ..tuning.front import plot_front
    from ..tuning.metric import read_metric

    path = output / "front.svg"
    try:
        with writing(path) as temporary:
            plot_front(tuned, temporary, max_drop=max_drop, unit=read_metric(metric).unit)
    except EngineUnavailable as reason:
        session.warn([f"no picture: {reason.message}"])
        return None
    return path


def _show(session: Session, tuned: Tuned, metric: str) -> None:
    from rich.table import Table

    for target, ranked in tuned.damage.items():
        layers = Table(title=f"layers by damage, {target}")
        for title in ("layer", "operator", "SNR of the outputs, dB"):
            layers.add_column(title, justify="right" if "SNR" in title else "left")
        for one in ranked[:_SHOWN]:
            layers.add_row(one.layer, one.operator, f"{one.snr_db:.1f}")
        session.table(layers)
    trials = Table(title="trials")
    for title in ("", "artifact", "in float", f"{metric} drop", "latency, ms", "against float", "MB"):
        trials.add_column(title, justify="left" if title in ("", "artifact") else "right")
    for trial in sorted(tuned.trials.values(), key=lambda one: (not one.latency_ms, one.latency_ms)):
        timed = [f"{trial.latency_ms:.3g}", f"{trial.speedup.get('value', 1.0):.2f}x"]
        mark = "best" if trial is tuned.best else "front" if trial.name in tuned.front else ""
        trials.add_row(
            mark,
            trial.name,
            str(len(trial.in_float)),
            f"{trial.drop:+.3g}",
            *(timed if trial.latency_ms else ["over budget", ""]),
            f"{trial.size_bytes / 1e6:.1f}",
        )
    session.table(trials)
