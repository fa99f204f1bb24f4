"""`qcompile diff`."""

from __future__ import annotations

from ..spec.decode import Refused
from ..spec.measure import DiffCommand
from .session import Session
from .tables import difference_table
from .verb import verb

_OF_OUTPUTS = ("inputs", "atol", "rtol", "snr", "rules")
_OF_LAYERS = ("taps", "threshold", "output", "save_results")
SAMPLES, SAMPLES_OF_LAYERS = 64, 8


@verb(
    DiffCommand,
    "qcompile diff model.py:build model.int8.onnx --data data.py:evaluation",
    "qcompile diff model.onnx model.fp16.onnx --atol logits:1e-2 --rtol 1e-2",
    "qcompile diff model.onnx model.int8.onnx --snr 20",
    "qcompile diff model.onnx model.int8.onnx --judge features:signal --judge scores:classes",
    "qcompile diff model.onnx model.int8.onnx --layers --data data.npz -o layers.json",
)
def diff(session: Session, given: DiffCommand) -> int:
    """Print how far the outputs, or the layers, are apart."""
    if given.layers:
        _refuse(given, _OF_OUTPUTS, "belongs to the comparison of outputs", "leave it out, or `layers`")
        return _layers(session, given)
    _refuse(given, _OF_LAYERS, "belongs to the comparison of layers", "give `layers` too")
    from ..bench.metrics.output_verdict import Tolerances
    from ..comparison.diff import diff as compare
    from ..comparison.diff import parse_rules, parse_tolerances

    difference = compare(
        given.reference,
        given.artifact,
        data=given.data,
        inputs=given.inputs,
        samples=SAMPLES if given.samples is None else given.samples,
        tolerances=Tolerances(
            *(parse_tolerances(getattr(given, kind), option=f"`{kind}`") for kind in ("atol", "rtol", "snr"))
        ),
        rules=parse_rules(given.rules, option="`rules`"),
        threads=given.threads,
        trust=given.trust,
        progress=session.progress,
    )
    session.json(difference.as_json())
    if not session.quiet:
        session.table(difference_table(difference))
    return 0 if difference else 1


def _layers(session: Session, given: DiffCommand) -> int:
    from ..comparison.layers import layer_diff
    from ..files import check_output
    from . import layers_table as shown

    written = [path for path in (given.output, given.save_results) if path is not None]
    for path in written:
        check_output(path)
    layers = layer_diff(
        given.reference,
        given.artifact,
        data=given.data,
        samples=SAMPLES_OF_LAYERS if given.samples is None else given.samples,
        taps=given.taps,
        threshold_db=given.threshold,
        threads=given.threads,
        trust=given.trust,
        results=given.save_results,
        progress=session.progress,
    )
    if given.output is not None:
        layers.save(given.output)
    session.json(layers.as_json())
    if not session.quiet:
        session.table(shown.layers_table(layers))
        for line in (shown.verdict(layers), *shown.neighbourhood(layers), shown.unpaired(layers)):
            if line:
                session.say(line)
        session.say(shown.footer(layers))
        for path in written:
            session.say(f"written: {path}")
    session.warn(layers.warnings)
    return 0 if layers else 1


def _refuse(given: DiffCommand, names: tuple[str, ...], why: str, hint: str) -> None:
    for name in names:
        if getattr(given, name) not in (None, ()):
            raise Refused(name, why, hint=hint)
