"""`qcompile diff`; with `--layers` the verdict, the ranked table and the first bad tensor's surroundings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..figures import decibels
from ..spec.decode import Refused
from ..spec.measure import DiffCommand, DiffSpec, LayerDiffSpec
from ..spec.option import fields_of
from .session import Session
from .tables import accuracy_line, add_row, bytes_text, difference_table, make_table
from .verb import verb

if TYPE_CHECKING:
    from rich.table import Table

    from ..comparison.layers.outcome import LayerDiff, Neighbour
    from ..comparison.layers.rebuild import EngineSource


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
def diff(session: Session, options: DiffCommand) -> int:
    """Print how far the outputs, or the layers, are apart."""
    if options.layers:
        of_outputs = _fields_apart(DiffSpec, LayerDiffSpec)
        _refuse(options, of_outputs, "belongs to the comparison of outputs", "leave it out, or `layers`")
        return _layers(session, options)
    of_layers = ("graph", "output", *_fields_apart(LayerDiffSpec, DiffSpec))
    _refuse(options, of_layers, "belongs to the comparison of layers", "give `layers` too")
    from ..comparison.diff import diff as compare

    difference = compare(options.reference, options.artifact, options, progress=session.progress)
    session.json(difference.as_json())
    if not session.quiet:
        session.table(difference_table(difference))
    if difference.accuracy is not None:
        session.say(accuracy_line(difference.accuracy))
    return 0 if difference else 1


def _layers(session: Session, options: DiffCommand) -> int:
    from ..comparison.layers import layer_diff
    from ..files import check_output

    written = [path for path in (options.output, options.save_results) if path is not None]
    for path in written:
        check_output(path)
    with _source(session, options) as source:
        layers = layer_diff(
            options.reference, options.artifact, options, source=source, progress=session.progress
        )
    if options.output is not None:
        layers.save(options.output)
    session.json(layers.as_json())
    if not session.quiet:
        session.table(layers_table(layers))
        lines = (verdict(layers), *neighbourhood(layers), *inside(layers))
        for line in (*lines, unpaired(layers)):
            if line:
                session.say(line)
        session.say(footer(layers))
        for path in written:
            session.say(f"written: {path}")
    session.warn(layers.warnings)
    return 0 if layers else 1


@contextmanager
def _source(session: Session, options: DiffCommand) -> Iterator[EngineSource | None]:
    """What an engine was built from; None for other artifacts, and where its outputs are enough."""
    from ..comparison.layers.rebuild import EngineSource
    from ..comparison.layers.sides import artifact_side

    if Path(options.artifact).suffix not in (".engine", ".plan"):
        _refuse(options, ("graph", "max_builds"), "belongs to an engine", "leave it out")
    elif options.max_builds != 0:
        from ..artifact import read_manifest
        from ..building import engine_graph
        from ..errors import InvalidOption

        artifact_side(options.artifact, trust=options.trust)  # whether it can run, before any work
        with ExitStack() as stack:
            try:
                model = options.graph or options.reference
                graph = engine_graph(options.artifact, model, progress=session.progress)
                lowered, spec = stack.enter_context(graph)
            except InvalidOption as error:
                if options.graph is not None:
                    raise
                session.warn([f"its outputs alone are compared: {error.message}; {error.hint} (`--graph`)"])
            else:
                manifest = read_manifest(Path(options.artifact))
                assert manifest is not None, "`engine_graph` requires it"
                profiles: Any = manifest.proof.get("profiles", [])
                tf32 = bool(manifest.options.get("tf32"))
                yield EngineSource(Path(lowered.path), spec, lowered.layers, tf32, profiles)
                return
    yield None


def _fields_apart(kind: type, other: type) -> list[str]:
    """The options of a spec that another one lacks."""
    present = {option.name for option in fields_of(other)}
    return [option.name for option in fields_of(kind) if option.name not in present]


def _refuse(options: DiffCommand, names: Sequence[str], why: str, hint: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, ()):
            raise Refused(name, why, hint=hint)


ROWS = 15


def layers_table(diff: LayerDiff, *, rows: int = ROWS) -> Table:
    """Return the table of the layers that lose most, the first bad one on top."""
    table = make_table(
        f"{diff.artifact} against {diff.reference}: {diff.samples} samples, {len(diff.layers)} of "
        f"{diff.pairs.paired} pairs of tensors, judged as {diff.precision}",
        "tensor", "operator", "node", "SNR", "lost here", "largest error", "elements",
    )  # fmt: skip
    for column in table.columns[1:3]:
        column.justify = "left"
    for layer in diff.layers[:rows]:
        add_row(
            table,
            layer.tensor,
            layer.operator,
            layer.node,
            decibels(layer.snr_db),
            f"{layer.drop_db:.1f} dB",
            f"{layer.max_abs_error:.3g} of {layer.max_abs:.3g}",
            f"{layer.elements:,}",
        )
    return table


def verdict(diff: LayerDiff) -> str:
    """Return the finding in a sentence."""
    if diff.first_bad is None:
        seen = "no tensor diverges" if diff.complete else f"none of the {len(diff.layers)} measured diverges"
        lowest = min((layer.snr_db for layer in diff.layers), default=math.inf)
        if lowest == math.inf:
            return f"{seen}: all are equal"
        return f"{seen}: the lowest SNR is {decibels(lowest)}, {diff.threshold_db:g} dB is required"
    bad = diff.layers[0]
    where = f"{bad.tensor}, made by {bad.operator} {bad.node}"
    if diff.gradual:
        most = max(layer.drop_db for layer in diff.layers)
        first = "first" if diff.complete else "first measured"
        return (
            f"noise adds up: no tensor loses more than {most:.1f} dB by itself; the {first} below "
            f"{diff.threshold_db:g} dB is {where} ({decibels(bad.snr_db)})"
        )
    return f"first bad tensor: {where} ({decibels(bad.snr_db)}, {bad.drop_db:.1f} dB lost here)"


def neighbourhood(diff: LayerDiff) -> list[str]:
    """Return the first bad tensor, what it is made of and what reads it, two steps each way."""
    if not diff.around:
        return []
    lines = [_line(diff.around[0], "")]
    for way, title in ((-1, "made of"), (1, "read by")):
        branches = _branches(diff.around, 0, way, "  ")
        lines += [f"  {title}", *branches] if branches else []
    return lines


def inside(diff: LayerDiff) -> list[str]:
    """Return what the search inside an engine took, and what it could not tell."""
    search = diff.engine
    if search is None:
        return []
    debug = {"unfused": "unfused tensors, ", "marked": "marked tensors, "}.get(search.survey, "")
    lines = [f"inside the engine: {debug}{search.builds} of at most {search.max_builds} builds"]
    if diff.first_bad is not None and search.after_db is not None:
        before = ", ".join(f"{name} {decibels(snr)}" for name, snr in search.before.items())
        sure = "confirmed in a graph that ends there" if search.confirmed else "not confirmed"
        lines.append(f"  before: {before or 'not measured'}; after: {decibels(search.after_db)}; {sure}")
    return [*lines, *(f"  not known: {text}" for text in search.unknown)]


def footer(diff: LayerDiff) -> str:
    """Return what it took."""
    return (
        f"{diff.runs} runs of the artifact; peak memory {bytes_text(diff.peak_memory_bytes)} with taps, "
        f"{bytes_text(diff.plain_peak_memory_bytes)} without"
    )


def unpaired(diff: LayerDiff) -> str:
    """Return how many tensors have no partner; empty when all have."""
    parts = []
    if diff.pairs.reference_only:
        parts.append(
            f"{len(diff.pairs.reference_only)} of the reference ({_some(diff.pairs.reference_only)})"
        )
    if diff.pairs.artifact_only:
        parts.append(f"{len(diff.pairs.artifact_only)} of the artifact ({_some(diff.pairs.artifact_only)})")
    return f"without a partner: {'; '.join(parts)}" if parts else ""


def _branches(around: Sequence[Neighbour], root: int, way: int, indent: str) -> list[str]:
    children = [
        i for i, neighbour in enumerate(around) if neighbour.under == root and neighbour.steps * way > 0
    ]
    lines = []
    for index in children:
        last = index == children[-1]
        lines.append(_line(around[index], f"{indent}{'└─' if last else '├─'} "))
        lines += _branches(around, index, way, indent + ("   " if last else "│  "))
    return lines


def _line(neighbour: Neighbour, lead: str) -> str:
    measured = "not measured" if neighbour.snr_db is None else decibels(neighbour.snr_db)
    return f"{lead}{neighbour.tensor}  {neighbour.operator} {neighbour.node}  {measured}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
