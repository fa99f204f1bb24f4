"""`qcompile diff`."""

from __future__ import annotations

import click

from .session import Session, command_options, examples
from .tables import difference_table


@click.command(
    short_help="compare outputs by Polygraphy",
    epilog=examples(
        "qcompile diff model.py:build model.int8.onnx --data data.py:evaluation",
        "qcompile diff model.onnx model.fp16.onnx --atol logits:1e-2 --rtol 1e-2",
        "qcompile diff model.onnx model.int8.onnx --snr 20",
    ),
)
@click.argument("reference")
@click.argument("artifact")
@click.option("--data", help="Samples to compare on; made input otherwise.")
@click.option("--samples", type=int, default=64, show_default=True, help="Use at most this many.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME:SHAPE[:DTYPE]",
              help="An input, where neither side declares it.")  # fmt: skip
@click.option("--atol", multiple=True, metavar="[OUTPUT:]NUMBER", help="Absolute tolerance.")
@click.option("--rtol", multiple=True, metavar="[OUTPUT:]NUMBER", help="Relative tolerance.")
@click.option("--snr", multiple=True, metavar="[OUTPUT:]DB", help="Least signal-to-noise ratio.")
@click.option("--threads", type=int, default=0, help="Threads of each side; 0 lets it choose.")
@command_options
def diff(
    session: Session,
    reference: str,
    artifact: str,
    data: str | None,
    samples: int,
    inputs: tuple[str, ...],
    atol: tuple[str, ...],
    rtol: tuple[str, ...],
    snr: tuple[str, ...],
    threads: int,
) -> int:
    """Compare the outputs of ARTIFACT with REFERENCE's by Polygraphy; exit code 1 on a mismatch.

    Defaults: fp32 within 1e-3 relative or 1e-4 of the largest value, fp16 1e-2 and 1e-2, int8 a
    signal-to-noise ratio of 15 dB and the same argmax in 95% of rows.
    """
    from ..bench import diff as compare
    from ..bench.diff import Tolerances, parse_tolerances

    difference = compare(
        reference,
        artifact,
        data=data,
        inputs=inputs,
        samples=samples,
        tolerances=Tolerances(
            parse_tolerances(atol, option="--atol"),
            parse_tolerances(rtol, option="--rtol"),
            parse_tolerances(snr, option="--snr"),
        ),
        threads=threads,
        progress=session.progress,
    )
    session.json(difference.as_json())
    if not session.quiet:
        session.table(difference_table(difference))
    return 0 if difference else 1
