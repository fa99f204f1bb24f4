"""The verbs that measure, judge and compare: `bench`, `gate`, `report`, `diff`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.figures import decibels
from ..spec.decode import Refused
from ..spec.looking import ReportCommand
from ..spec.measure import BenchCommand, DiffCommand, DiffSpec, GateCommand, LayerDiffSpec
from ..spec.option import fields_of
from . import tables
from .session import Session
from .verb import verb

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.diff.layers.outcome import LayerDiff, Neighbour
    from ..bench.diff.layers.rebuild import EngineSource
    from ..bench.gate.gate import GateResult


@verb(
    BenchCommand,
    "qcompile bench model.onnx model.int8.onnx --baseline model.py:build",
    "qcompile bench a.onnx b.onnx --baseline a.onnx --batch-size 32 --threads 2 -o results.json",
    "qcompile bench model.int8.onnx --baseline model.onnx --evaluation data.py:evaluation",
    "qcompile bench m.engine --baseline m.onnx --python tensorrt=/opt/trt/bin/python",
    "qcompile bench m.engine m.onnx --baseline model.py:build --device cuda",
    "qcompile bench m.engine --baseline model.py:build --device cuda --cuda-graph --streams 1,2,4",
    "qcompile bench model.onnx --baseline model.py:build --torch compile --batch-sizes 1,2,4,8",
    "qcompile bench model.onnx --baseline model.py:build --torch half --model int8=model.py:int8",
    "qcompile bench model.onnx --baseline model.py:build --batch-size 256 --evaluation data.npz --per-batch",
)
def bench(session: Session, options: BenchCommand) -> int:
    from ..bench.benchmark import benchmark
    from ..bench.results.render import markdown, save_csv
    from ..bench.results.results import BenchInterrupted
    from ..core.files import write_text

    try:
        results = benchmark(
            options.artifacts,
            options,
            command=["qcompile", *(click.get_current_context().find_root().obj or ())],
            progress=session.progress,
        )
    except BenchInterrupted as stopped:
        results = stopped.results
    if options.csv is not None:
        save_csv(results, options.csv)
    if options.markdown is not None:
        write_text(options.markdown, markdown(results))
    session.json(results.as_json())
    tables.present_results(session, results)
    if options.per_batch and (calls := tables.calls_table(results)):
        session.table(calls)
    if results.interrupted:
        file = f"; the measurements so far are in {options.output}" if options.output else ""
        session.warn([f"interrupted{file}"])
        return 130
    return 1 if any(row.has_failed for row in results.rows) else 0


@verb(
    GateCommand,
    "qcompile gate old.onnx new.onnx",
    "qcompile gate old/model.int8.onnx out/model.int8.onnx --evaluation data.py:evaluation --max-drop 0.5",
    "qcompile gate main/out out --skip-identical --threads 1 --junit gate.xml --markdown gate.md",
    "qcompile gate old.engine new.engine --python tensorrt=/opt/trt/bin/python --max-slower 3",
)
def gate(session: Session, options: GateCommand) -> int:
    from ..bench.gate.gate import gate as judge
    from ..bench.gate.gate import junit, markdown, notes_of
    from ..core.files import check_output, write_text

    for path in (options.junit, options.markdown):
        if path is not None:
            check_output(path, is_model=False)
    result = judge(options.old, options.new, options, progress=session.progress)
    if options.junit is not None:
        write_text(options.junit, junit(result))
    if options.markdown is not None:
        write_text(options.markdown, markdown(result))
    session.json(result.as_json())
    session.table(gate_table(result))
    for note in notes_of(result):
        session.note(note)
    hints = dict.fromkeys(check.hint for _, check in result.checks() if check.hint)
    for hint in hints:
        session.note(f"  hint: {hint}")
    for pair in result.pairs:
        is_open = any(check.state == "undecided" for check in pair.checks)
        lines = [*(pair.disturbed if is_open else ()), *(pair.warnings if session.verbose else ())]
        session.warn(f"{pair.name}: {text}" for text in lines)
    session.say(f"gate {result.words}")
    return 0 if result else 1


def gate_table(result: GateResult) -> Table:
    from ..bench.gate.gate import cells_of

    table = tables.make_table(
        f"{result.machine} · {result.threads} threads", "artifact", "check", "old", "new", "change", "verdict"
    )
    for pair, check in result.checks():
        tables.add_row(table, *cells_of(result, pair, check))
    return table


@verb(
    ReportCommand,
    "qcompile report results.json -o report.html",
    "qcompile report results.json -o report.html --layers layers.json --ranges model.ranges",
)
def report(session: Session, options: ReportCommand) -> None:
    from ..bench.report import write_report

    session.progress("draw")
    path = write_report(options.results, options.output, options)
    size = path.stat().st_size
    session.json({"path": str(path), "size_bytes": size})
    session.say(f"{path}  {tables.bytes_text(size)}, loads nothing: open it in a browser, print it, send it")


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
    if options.layers:
        of_outputs = _options_only_in(DiffSpec, LayerDiffSpec)
        _refuse(options, of_outputs, "belongs to the comparison of outputs", "leave it out, or `layers`")
        return _diff_layers(session, options)
    of_layers = ("graph", "output", *_options_only_in(LayerDiffSpec, DiffSpec))
    _refuse(options, of_layers, "belongs to the comparison of layers", "give `layers` too")
    from ..bench.diff.diff import diff as compare

    difference = compare(options.reference, options.artifact, options, progress=session.progress)
    session.json(difference.as_json())
    if not session.quiet:
        session.table(tables.difference_table(difference))
    if difference.accuracy is not None:
        session.say(tables.accuracy_line(difference.accuracy))
    session.warn(difference.warnings)
    return 0 if difference else 1


def _diff_layers(session: Session, options: DiffCommand) -> int:
    from ..bench.diff.layers.compare import layer_diff
    from ..core.files import check_output

    written_paths = [path for path in (options.output, options.save_results) if path is not None]
    for path in written_paths:
        check_output(path, is_model=False)
    with _engine_source(session, options) as source:
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
        for path in written_paths:
            session.say(f"written: {path}")
    session.warn(layers.warnings)
    return 0 if layers else 1


@contextmanager
def _engine_source(session: Session, options: DiffCommand) -> Iterator[EngineSource | None]:
    """Yield the graph and options that an engine was built from, or None to compare only the outputs."""
    from ..bench.diff.layers.rebuild import EngineSource
    from ..bench.diff.layers.sides import artifact_side

    if Path(options.artifact).suffix not in (".engine", ".plan"):
        _refuse(options, ("graph", "max_builds"), "belongs to an engine", "leave it out")
    elif options.max_builds != 0:
        from ..building.build import engine_graph
        from ..core.artifact import read_manifest
        from ..errors import InvalidOption

        artifact_side(options.artifact, trust=options.trust)  # raises early if it cannot run here
        with ExitStack() as stack:
            try:
                model = options.graph or options.reference
                graph = engine_graph(options.artifact, model, progress=session.progress)
                lowered, spec = stack.enter_context(graph)
            except InvalidOption as error:
                if options.graph is not None:
                    raise
                why = "; ".join(filter(None, (error.message, error.hint)))
                session.warn([f"its outputs alone are compared: {why} (`--graph`)"])
            else:
                manifest = read_manifest(Path(options.artifact))
                assert manifest is not None, "`engine_graph` requires it"
                profiles: Any = manifest.proof.get("profiles", [])
                tf32 = bool(manifest.options.get("tf32"))
                yield EngineSource(Path(lowered.path), spec, lowered.layers, tf32, profiles)
                return
    yield None


def _options_only_in(kind: type, other: type) -> list[str]:
    """Return the options of `kind` that `other` lacks."""
    other_names = {option.name for option in fields_of(other)}
    return [option.name for option in fields_of(kind) if option.name not in other_names]


def _refuse(options: DiffCommand, names: Sequence[str], why: str, hint: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, ()):
            raise Refused(name, why, hint=hint)


ROWS = 15


def layers_table(diff: LayerDiff, *, rows: int = ROWS) -> Table:
    """Return the table of the layers with the largest loss, the first bad one on top."""
    table = tables.make_table(
        f"{diff.artifact} against {diff.reference}: {diff.samples} samples, {len(diff.layers)} of "
        f"{diff.pairs.paired} pairs of tensors, judged as {diff.precision}",
        "tensor", "operator", "node", "SNR", "lost here", "largest error", "elements",
    )  # fmt: skip
    for column in table.columns[1:3]:
        column.justify = "left"
    for layer in diff.layers[:rows]:
        tables.add_row(
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
    """Return the finding as a sentence."""
    if diff.first_bad is None:
        text = "no tensor diverges" if diff.complete else f"none of the {len(diff.layers)} measured diverges"
        lowest = min((layer.snr_db for layer in diff.layers), default=math.inf)
        if lowest == math.inf:
            return f"{text}: all are equal"
        return f"{text}: the lowest SNR is {decibels(lowest)}, {diff.threshold_db:g} dB is required"
    bad = diff.layers[0]
    where = f"{bad.tensor}, made by {bad.operator} {bad.node}"
    if diff.gradual:
        largest_loss_db = max(layer.drop_db for layer in diff.layers)
        first = "first" if diff.complete else "first measured"
        return (
            f"noise adds up: no tensor loses more than {largest_loss_db:.1f} dB by itself; the {first} below "
            f"{diff.threshold_db:g} dB is {where} ({decibels(bad.snr_db)})"
        )
    return f"first bad tensor: {where} ({decibels(bad.snr_db)}, {bad.drop_db:.1f} dB lost here)"


def neighbourhood(diff: LayerDiff) -> list[str]:
    """Return the first bad tensor with its producers and consumers, two steps each way."""
    if not diff.around:
        return []
    lines = [_line(diff.around[0], "")]
    for way, title in ((-1, "made of"), (1, "read by")):
        branches = _branches(diff.around, 0, way, "  ")
        lines += [f"  {title}", *branches] if branches else []
    return lines


def inside(diff: LayerDiff) -> list[str]:
    """Return the number of builds and the finding of the search inside an engine, and its open questions."""
    search = diff.engine
    if search is None:
        return []
    debug = {"unfused": "unfused tensors, ", "marked": "marked tensors, "}.get(search.survey, "")
    lines = [f"inside the engine: {debug}{search.builds} of at most {search.max_builds} builds"]
    if diff.first_bad is not None and search.after_db is not None:
        before = ", ".join(f"{name} {decibels(snr)}" for name, snr in search.before.items())
        check = "confirmed in a graph that ends there" if search.confirmed else "not confirmed"
        lines.append(f"  before: {before or 'not measured'}; after: {decibels(search.after_db)}; {check}")
    return [*lines, *(f"  not known: {text}" for text in search.unknown)]


def footer(diff: LayerDiff) -> str:
    tapped, plain = map(tables.bytes_text, (diff.peak_memory_bytes, diff.plain_peak_memory_bytes))
    return f"{diff.runs} runs of the artifact; peak memory {tapped} with taps, {plain} without"


def unpaired(diff: LayerDiff) -> str:
    """Return the number of tensors without a partner, with examples; empty if all have one."""
    sides = {"reference": diff.pairs.reference_only, "artifact": diff.pairs.artifact_only}
    parts = [
        f"{len(names)} of the {side} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for side, names in sides.items()
        if names
    ]
    return f"without a partner: {'; '.join(parts)}" if parts else ""


def _branches(around: Sequence[Neighbour], root: int, way: int, indent: str) -> list[str]:
    children = [i for i, near in enumerate(around) if near.under == root and near.steps * way > 0]
    lines = []
    for index in children:
        last = index == children[-1]
        lines.append(_line(around[index], f"{indent}{'└─' if last else '├─'} "))
        lines += _branches(around, index, way, indent + ("   " if last else "│  "))
    return lines


def _line(neighbour: Neighbour, lead: str) -> str:
    measured = "not measured" if neighbour.snr_db is None else decibels(neighbour.snr_db)
    return f"{lead}{neighbour.tensor}  {neighbour.operator} {neighbour.node}  {measured}"
