"""`qcompile diff`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..spec.decode import Refused
from ..spec.measure import DiffCommand
from .session import Session
from .tables import accuracy_line, difference_table
from .verb import verb

if TYPE_CHECKING:
    from ..comparison.layers.rebuild import EngineSource

_OF_OUTPUTS = ("inputs", "atol", "rtol", "snr", "rules", "metric", "max_drop")
_OF_LAYERS = ("taps", "graph", "max_builds", "threshold", "output", "save_results")
SAMPLES_OF_LAYERS = 8


@verb(
    DiffCommand,
    "qcompile diff model.py:build model.int8.onnx --data data.py:evaluation",
    "qcompile diff model.onnx model.fp16.onnx --atol logits:1e-2 --rtol 1e-2",
    "qcompile diff model.onnx model.int8.onnx --snr 20",
    "qcompile diff model.onnx model.int8.onnx --judge features:signal --judge scores:classes",
    "qcompile diff model.onnx model.int8.onnx --data data.py:evaluation --metric top1 --max-drop 0.5",
    "qcompile diff model.onnx model.int8.onnx --layers --data data.npz -o layers.json",
    "qcompile diff model.onnx int8.engine --layers --graph model.int8.onnx --data data.npz",
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
        samples=given.samples,
        tolerances=Tolerances(
            *(parse_tolerances(getattr(given, kind), option=f"`{kind}`") for kind in ("atol", "rtol", "snr"))
        ),
        rules=parse_rules(given.rules, option="`rules`"),
        metric=given.metric,
        max_drop=given.max_drop,
        threads=given.threads,
        trust=given.trust,
        progress=session.progress,
    )
    session.json(difference.as_json())
    if not session.quiet:
        session.table(difference_table(difference))
    if difference.accuracy is not None:
        session.say(accuracy_line(difference.accuracy))
    return 0 if difference else 1


def _layers(session: Session, given: DiffCommand) -> int:
    from ..comparison.layers import layer_diff
    from ..files import check_output
    from . import layers_table as shown

    written = [path for path in (given.output, given.save_results) if path is not None]
    for path in written:
        check_output(path)
    with _source(session, given) as source:
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
            source=source,
            max_builds=given.max_builds,
            progress=session.progress,
        )
    if given.output is not None:
        layers.save(given.output)
    session.json(layers.as_json())
    if not session.quiet:
        session.table(shown.layers_table(layers))
        lines = (shown.verdict(layers), *shown.neighbourhood(layers), *shown.inside(layers))
        for line in (*lines, shown.unpaired(layers)):
            if line:
                session.say(line)
        session.say(shown.footer(layers))
        for path in written:
            session.say(f"written: {path}")
    session.warn(layers.warnings)
    return 0 if layers else 1


@contextmanager
def _source(session: Session, given: DiffCommand) -> Iterator[EngineSource | None]:
    """What an engine was built from; None for other artifacts, and where its outputs are enough."""
    from ..comparison.layers.rebuild import EngineSource
    from ..comparison.layers.sides import artifact_side

    if Path(given.artifact).suffix not in (".engine", ".plan"):
        _refuse(given, ("graph", "max_builds"), "belongs to an engine", "leave it out")
    elif given.max_builds != 0:
        from ..artifact import read_manifest
        from ..building import engine_graph
        from ..errors import InvalidOption

        artifact_side(given.artifact, trust=given.trust)  # whether it can run, before any work
        with ExitStack() as stack:
            try:
                built_from = engine_graph(
                    given.artifact, given.graph or given.reference, progress=session.progress
                )
                lowered, spec = stack.enter_context(built_from)
            except InvalidOption as error:
                if given.graph is not None:
                    raise
                session.warn([f"its outputs alone are compared: {error.message}; {error.hint} (`--graph`)"])
            else:
                manifest = read_manifest(Path(given.artifact))
                assert manifest is not None, "`engine_graph` requires it"
                profiles: Any = manifest.proof.get("profiles", [])
                tf32 = bool(manifest.options.get("tf32"))
                yield EngineSource(Path(lowered.path), spec, lowered.layers, tf32, profiles)
                return
    yield None


def _refuse(given: DiffCommand, names: tuple[str, ...], why: str, hint: str) -> None:
    for name in names:
        if getattr(given, name) not in (None, ()):
            raise Refused(name, why, hint=hint)
