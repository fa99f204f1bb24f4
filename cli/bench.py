"""`qcompile bench`, and `qcompile bench compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .present import present_results
from .session import Session, command_options, examples, split
from .tables import regression_table

_ARGUMENTS = "qcompile.bench.arguments"
_MEASURE = "measure"


class BenchGroup(click.Group):
    """A group whose name alone measures: `qcompile bench a.onnx`; a known word first is another command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front, and remember what was typed."""
        ctx.meta[_ARGUMENTS] = list(args)
        known = args[:1] and args[0] in self.commands
        return super().parse_args(ctx, args if known else [_MEASURE, *args])


class MeasureCommand(click.Command):
    """Shows itself under the name it is called by."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage without the name that nobody types."""
        program = ctx.command_path.removesuffix(f" {_MEASURE}")
        formatter.write_usage(program, " ".join(self.collect_usage_pieces(ctx)))


@click.group(cls=BenchGroup, short_help="measure against a baseline; compare two results")
def bench() -> None:
    """Measure artifacts, or compare what was measured."""


@bench.command(
    _MEASURE,
    cls=MeasureCommand,
    short_help="measure against a baseline",
    epilog=examples(
        "qcompile bench model.onnx model.int8.onnx --baseline model.py:build",
        "qcompile bench a.onnx b.onnx --baseline a.onnx --batch-size 32 --threads 2 -o results.json",
        "qcompile bench model.int8.onnx --baseline model.onnx --evaluation data.py:evaluation",
        "qcompile bench m.engine --baseline m.onnx --python tensorrt=/opt/trt/bin/python",
        "qcompile bench m.engine m.onnx --baseline model.py:build --device cuda",
        "qcompile bench model.onnx --baseline model.py:build --torch compile --batch-sizes 1,2,4,8",
        "qcompile bench compare old.json new.json --fail-if slower:5%",
    ),
)
@click.argument("artifacts", nargs=-1, required=True)
@click.option("--baseline", required=True, help="Artifact or MODEL that the others are compared with.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="results.json.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write the figures as CSV too.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path),
              help="Write the table as Markdown too.")  # fmt: skip
@click.option("--data", help="Samples whose first batch is timed; made input otherwise.")
@click.option("--evaluation", help="Labelled samples for accuracy and output difference.")
@click.option("--metric", default="top1", show_default=True,
              help="top1, top5, miou, cosine, mse or file.py:function.")  # fmt: skip
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME:SHAPE[:DTYPE]",
              help="An input, where no artifact declares it.")  # fmt: skip
@click.option("--batch-size", type=int, help="Samples per call, where the model leaves it open.")
@click.option("--batch-sizes", multiple=True, metavar="N,N,...", help="Measure a curve over these too.")
@click.option("--clients", multiple=True, metavar="N,N,...",
              help="Measure a curve over so many clients at once too.")  # fmt: skip
@click.option("--torch", "torch_modes", multiple=True,
              type=click.Choice(["trace", "script", "freeze", "compile"]),
              help="Run each PyTorch MODEL in this mode too; may be given again.")  # fmt: skip
@click.option("--device", "devices", multiple=True, metavar="DEVICE",
              help="Where PyTorch and ONNX Runtime run: cpu (default), cuda, cuda:1; "
              "given twice: on both.")  # fmt: skip
@click.option("--python", "pythons", multiple=True, metavar="ENGINE=INTERPRETER",
              help="Interpreter for the workers of an engine; may be given again.")  # fmt: skip
@click.option("--threads", type=int, default=0, help="The same for all; 0: every usable core.")
@click.option("--max-time", type=float, default=60.0, show_default=True,
              help="Seconds of rounds (eight at least), and of launches behind the first.")  # fmt: skip
@click.option(
    "--precision-target",
    type=float,
    default=0.01,
    show_default=True,
    help="Stop when every speed-up's interval is narrower than this share.",
)
@click.option("--timeout", type=float, default=600.0, show_default=True,
              help="Seconds after which a worker that does not answer is given up.")  # fmt: skip
@click.option(
    "--trust",
    is_flag=True,
    help="Run files that have no manifest or differ from it, and a .pt2 that runs code.",
)
@command_options
@click.pass_context
def measure(
    context: click.Context,
    session: Session,
    artifacts: tuple[str, ...],
    baseline: str,
    output: Path | None,
    csv_file: Path | None,
    markdown_file: Path | None,
    data: str | None,
    evaluation: str | None,
    metric: str,
    inputs: tuple[str, ...],
    batch_size: int | None,
    batch_sizes: tuple[str, ...],
    clients: tuple[str, ...],
    torch_modes: tuple[str, ...],
    devices: tuple[str, ...],
    pythons: tuple[str, ...],
    threads: int,
    max_time: float,
    precision_target: float,
    timeout: float,
    trust: bool,
) -> int:
    """Measure ARTIFACTS against a baseline: each in processes of its own, in interleaved rounds.

    `qcompile bench compare OLD NEW` compares two results.
    """
    from ..bench import benchmark
    from ..bench.export_results import save_csv, save_markdown
    from ..bench.results import BenchInterrupted

    try:
        results = benchmark(
            artifacts,
            baseline=baseline,
            output=output,
            data=data,
            inputs=inputs,
            batch_size=batch_size,
            batch_sizes=_counts(batch_sizes, "--batch-sizes"),
            clients=_counts(clients, "--clients"),
            torch_modes=torch_modes,
            devices=devices,
            pythons=pythons,
            threads=threads,
            evaluation=evaluation,
            metric=metric,
            precision_target=precision_target,
            max_time_s=max_time,
            timeout_s=timeout,
            trust=trust,
            command=["qcompile", "bench", *context.meta.get(_ARGUMENTS, ())],
            progress=session.progress,
        )
    except BenchInterrupted as stopped:
        results = stopped.results
    if csv_file is not None:
        save_csv(results, csv_file)
    if markdown_file is not None:
        save_markdown(results, markdown_file)
    session.json(results.as_json())
    present_results(session, results)
    if results.interrupted:
        kept = f"; what was measured is in {output}" if output else ""
        session.warn([f"interrupted{kept}"])
        return 130
    return 1 if any(entry.status == "failed" for entry in results.entries) else 0


@bench.command(
    short_help="new results against old ones",
    epilog=examples(
        "qcompile bench compare old.json new.json",
        "qcompile bench compare old.json new.json --fail-if slower:5% --fail-if accuracy:0.5",
        "qcompile bench compare laptop.json server.json --across-machines",
    ),
)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--fail-if", "limits", multiple=True, metavar="LIMIT",
              help="slower:5%, larger:10% or accuracy:0.5 (points) exits with 1; repeatable.")  # fmt: skip
@click.option("--relative", is_flag=True,
              help="Compare speed-ups against each run's baseline, not latencies.")  # fmt: skip
@click.option("--across-machines", is_flag=True, help="Show results of different machines side by side.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the comparison as JSON.")
@command_options
def compare(
    session: Session,
    old: Path,
    new: Path,
    limits: tuple[str, ...],
    relative: bool,
    across_machines: bool,
    output: Path | None,
) -> int:
    """Compare results of two runs: has an artifact become slower, larger or less accurate?

    Exits with 1 when a limit of --fail-if is broken, with 2 when the two cannot be compared.
    """
    from ..artifact import write_json
    from ..bench import load_results
    from ..bench.regress import compare_results, parse_limit

    found = compare_results(
        load_results(old),
        load_results(new),
        [parse_limit(text) for text in limits],
        relative=relative,
        across_machines=across_machines,
    )
    if output is not None:
        write_json(output, found.as_json())
    session.json(found.as_json())
    session.table(regression_table(found))
    for change in found.changes:
        if change.reason:
            session.note(f"{change.name}: {change.reason}")
        for limit in change.broken:
            session.note(f"{change.name}: fails {limit}")
    return 0 if found else 1


def _counts(values: tuple[str, ...], option: str) -> list[int]:
    words = split(values)
    wrong: Any = next((word for word in words if not word.isdigit()), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not a whole number", param_hint=option)
    return [int(word) for word in words]
