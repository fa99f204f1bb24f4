"""`qcompile bench`."""

from __future__ import annotations

from pathlib import Path

import click

from .session import Session, command_options, examples
from .tables import reasons, results_table, warnings


@click.command(
    short_help="measure against a baseline",
    epilog=examples(
        "qcompile bench model.onnx model.int8.onnx --baseline model.py:build",
        "qcompile bench a.onnx b.onnx --baseline a.onnx --batch-size 32 --threads 2 -o results.json",
        "qcompile bench model.int8.onnx --baseline model.onnx --evaluation data.py:evaluation",
    ),
)
@click.argument("artifacts", nargs=-1, required=True)
@click.option("--baseline", required=True, help="Artifact or MODEL that the others are compared with.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="results.json.")
@click.option("--data", help="Samples whose first batch is timed; made input otherwise.")
@click.option("--evaluation", help="Labelled samples for accuracy and output difference.")
@click.option("--metric", default="top1", show_default=True, help="top1 or top5.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME:SHAPE[:DTYPE]",
              help="An input, where no artifact declares it.")  # fmt: skip
@click.option("--batch-size", type=int, help="Samples per call, where the model leaves it open.")
@click.option("--threads", type=int, default=0, help="The same for all; 0: every usable core.")
@click.option("--max-time", type=float, default=60.0, show_default=True, help="Seconds of rounds.")
@click.option(
    "--precision-target",
    type=float,
    default=0.02,
    show_default=True,
    help="Stop when every speed-up's interval is narrower than this share.",
)
@command_options
def bench(
    session: Session,
    artifacts: tuple[str, ...],
    baseline: str,
    output: Path | None,
    data: str | None,
    evaluation: str | None,
    metric: str,
    inputs: tuple[str, ...],
    batch_size: int | None,
    threads: int,
    max_time: float,
    precision_target: float,
) -> int:
    """Measure ARTIFACTS against a baseline: each in its own process, in interleaved rounds."""
    from ..bench import benchmark

    results = benchmark(
        artifacts,
        baseline=baseline,
        output=output,
        data=data,
        inputs=inputs,
        batch_size=batch_size,
        threads=threads,
        evaluation=evaluation,
        metric=metric,
        precision_target=precision_target,
        max_time_s=max_time,
        progress=session.progress,
    )
    session.json(results.as_json())
    if not session.quiet:
        session.table(results_table(results, width=session.width))
    for line in reasons(results):
        session.note(line)
    session.warn(warnings(results))
    return 1 if any(entry.status == "failed" for entry in results.entries) else 0
