"""`qcompile diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import InvalidOption
from .session import Session, command_options, examples
from .tables import difference_table

SAMPLES, SAMPLES_OF_LAYERS = 64, 8


@click.command(
    short_help="compare outputs by Polygraphy",
    epilog=examples(
        "qcompile diff model.py:build model.int8.onnx --data data.py:evaluation",
        "qcompile diff model.onnx model.fp16.onnx --atol logits:1e-2 --rtol 1e-2",
        "qcompile diff model.onnx model.int8.onnx --snr 20",
        "qcompile diff model.onnx model.int8.onnx --judge features:signal --judge scores:classes",
        "qcompile diff model.onnx model.int8.onnx --layers --data data.npz -o layers.json",
    ),
)
@click.argument("reference")
@click.argument("artifact")
@click.option("--data", help="Samples to compare on; made input otherwise.")
@click.option("--samples", type=int, help="Use at most this many: 64, or 8 with --layers, by default.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME:SHAPE[:DTYPE]",
              help="An input, where neither side declares it.")  # fmt: skip
@click.option("--atol", multiple=True, metavar="[OUTPUT:]NUMBER", help="Absolute tolerance.")
@click.option("--rtol", multiple=True, metavar="[OUTPUT:]NUMBER", help="Relative tolerance.")
@click.option("--snr", multiple=True, metavar="[OUTPUT:]DB", help="Least signal-to-noise ratio.")
@click.option("--judge", "rules", multiple=True, metavar="[OUTPUT:]RULE",
              help="What an output is: classes, embedding or signal.")  # fmt: skip
@click.option("--threads", type=int, default=0, help="Threads of each side; 0 lets it choose.")
@click.option(
    "--trust",
    is_flag=True,
    help="Run files that have no manifest or differ from it, and a .pt2 that runs code.",
)
@click.option("--layers", is_flag=True, help="Find the first tensor that diverges.")
@click.option("--taps", type=int, help="With --layers: tensors read in one run; as memory allows by default.")
@click.option("--threshold", type=float, metavar="DB",
              help="With --layers: a tensor below it diverges; by the precision by default.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="With --layers: write layers.json.")
@click.option("--save-results", type=click.Path(path_type=Path), metavar="FILE",
              help="With --layers: values around the first bad tensor, for Polygraphy.")  # fmt: skip
@command_options
def diff(
    session: Session,
    reference: str,
    artifact: str,
    data: str | None,
    samples: int | None,
    inputs: tuple[str, ...],
    atol: tuple[str, ...],
    rtol: tuple[str, ...],
    snr: tuple[str, ...],
    rules: tuple[str, ...],
    threads: int,
    trust: bool,
    layers: bool,
    taps: int | None,
    threshold: float | None,
    output: Path | None,
    save_results: Path | None,
) -> int:
    """Compare the outputs of ARTIFACT with REFERENCE's by Polygraphy; exit code 1 on a mismatch.

    Defaults: fp32 within 1e-3 relative or 1e-4 of the largest value, fp16 1e-2 and 1e-2, int8 a
    signal-to-noise ratio of 15 dB, and of classes the same argmax in 95% of rows; of embeddings (rows of
    length 1) a mean cosine of 0.98.

    With --layers: tensor by tensor against an ONNX REFERENCE, few at a time; exit code 1 if one diverges.
    """
    of_outputs = {"--input": inputs, "--atol": atol, "--rtol": rtol, "--snr": snr, "--judge": rules}
    of_layers = {"--taps": taps, "--threshold": threshold, "--output": output, "--save-results": save_results}
    if layers:
        _refuse(of_outputs, "belongs to the comparison of outputs", "leave it out, or --layers")
        return _layers(
            session,
            reference,
            artifact,
            output,
            data=data,
            samples=SAMPLES_OF_LAYERS if samples is None else samples,
            taps=taps,
            threshold_db=threshold,
            threads=threads,
            trust=trust,
            results=save_results,
        )
    _refuse(of_layers, "belongs to the comparison of layers", "give --layers too")
    from ..bench import diff as compare
    from ..bench.diff import Tolerances, parse_rules, parse_tolerances

    difference = compare(
        reference,
        artifact,
        data=data,
        inputs=inputs,
        samples=SAMPLES if samples is None else samples,
        tolerances=Tolerances(
            parse_tolerances(atol, option="--atol"),
            parse_tolerances(rtol, option="--rtol"),
            parse_tolerances(snr, option="--snr"),
        ),
        rules=parse_rules(rules, option="--judge"),
        threads=threads,
        trust=trust,
        progress=session.progress,
    )
    session.json(difference.as_json())
    if not session.quiet:
        session.table(difference_table(difference))
    return 0 if difference else 1


def _layers(session: Session, reference: str, artifact: str, output: Path | None, **options: Any) -> int:
    from ..artifact import check_output
    from ..bench.layer_diff import layer_diff
    from . import layers_table as shown

    for path in (output, options["results"]):
        if path is not None:
            check_output(path)
    found = layer_diff(reference, artifact, progress=session.progress, **options)
    if output is not None:
        found.save(output)
    session.json(found.as_json())
    if not session.quiet:
        session.table(shown.layers_table(found))
        for line in (shown.verdict(found), *shown.neighbourhood(found), shown.unpaired(found)):
            if line:
                session.say(line)
        session.say(shown.footer(found))
        for path in (output, options["results"]):
            if path is not None:
                session.say(f"written: {path}")
    session.warn(found.warnings)
    return 0 if found else 1


def _refuse(options: dict[str, Any], why: str, hint: str) -> None:
    for option, value in options.items():
        if value not in (None, ()):
            raise InvalidOption(f"{option}: {why}", hint=hint, option=option)
