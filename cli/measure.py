"""The verbs that measure and judge: `bench`, `bench compare`, `gate`, `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..spec.looking import ReportCommand
from ..spec.measure import BenchCommand, CompareCommand, GateCommand
from .session import Session
from .tables import add_row, bytes_text, make_table, present_results, regression_table
from .verb import Verb, verb

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.gate import GateResult

_ARGUMENTS = "qcompile.bench.arguments"
_MEASURE = "measure"


class BenchGroup(click.Group):
    """A group whose name alone measures: `qcompile bench a.onnx`; a known word first is another command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front, and remember what was typed."""
        ctx.meta[_ARGUMENTS] = list(args)
        known = args[:1] and args[0] in self.commands
        return super().parse_args(ctx, args if known else [_MEASURE, *args])


class MeasureVerb(Verb):
    """Shows itself under the name it is called by."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage without the name that nobody types."""
        program = ctx.command_path.removesuffix(f" {_MEASURE}")
        formatter.write_usage(program, " ".join(self.collect_usage_pieces(ctx)))


@click.group(cls=BenchGroup, short_help="measure artifacts against a baseline, or compare two results files")
def bench() -> None:
    """Measure artifacts, or compare what was measured."""


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
    "qcompile bench compare old.json new.json --fail-if slower:5%",
    cls=MeasureVerb,
    short_help="measure artifacts against a baseline",
)
def measure(session: Session, given: BenchCommand) -> int:
    """Print the table of what was measured."""
    from ..bench.benchmark import benchmark
    from ..bench.results.render import markdown, save_csv
    from ..bench.results.results import BenchInterrupted
    from ..files import write_text

    try:
        results = benchmark(
            given.artifacts,
            given,
            command=["qcompile", "bench", *click.get_current_context().meta.get(_ARGUMENTS, ())],
            progress=session.progress,
        )
    except BenchInterrupted as stopped:
        results = stopped.results
    if given.csv is not None:
        save_csv(results, given.csv)
    if given.markdown is not None:
        write_text(given.markdown, markdown(results))
    session.json(results.as_json())
    present_results(session, results)
    if results.interrupted:
        kept = f"; what was measured is in {given.output}" if given.output else ""
        session.warn([f"interrupted{kept}"])
        return 130
    return 1 if any(row.status == "failed" for row in results.rows) else 0


@verb(
    CompareCommand,
    "qcompile bench compare old.json new.json",
    "qcompile bench compare old.json new.json --fail-if slower:5% --fail-if accuracy:0.5",
    "qcompile bench compare laptop.json server.json --across-machines",
    short_help="compare new results with old ones",
)
def compare(session: Session, given: CompareCommand) -> int:
    """Print the table of changes, and which limits they break."""
    from ..bench.results.regress import compare_results
    from ..bench.results.results import load_results
    from ..files import write_json

    comparison = compare_results(load_results(given.old), load_results(given.new), given)
    if given.output is not None:
        write_json(given.output, comparison.as_json())
    session.json(comparison.as_json())
    session.table(regression_table(comparison))
    for change in comparison.changes:
        if change.reason:
            session.note(f"{change.name}: {change.reason}")
        for limit in change.broken:
            session.note(f"{change.name}: fails {limit}")
    return 0 if comparison else 1


for _command in (measure, compare):
    bench.add_command(_command)


@verb(
    GateCommand,
    "qcompile gate old.onnx new.onnx",
    "qcompile gate old/model.int8.onnx out/model.int8.onnx --evaluation data.py:evaluation --max-drop 0.5",
    "qcompile gate main/out out --skip-identical --threads 1 --junit gate.xml --markdown gate.md",
    "qcompile gate old.engine new.engine --python tensorrt=/opt/trt/bin/python --max-slower 3",
)
def gate(session: Session, given: GateCommand) -> int:
    """Print the table of checks, and why one failed."""
    from ..bench.gate import gate as judge
    from ..bench.gate import junit, markdown, notes_of
    from ..files import check_output, write_text

    for path in (given.junit, given.markdown):
        if path is not None:
            check_output(path)
    result = judge(given.old, given.new, given, progress=session.progress)
    if given.junit is not None:
        write_text(given.junit, junit(result))
    if given.markdown is not None:
        write_text(given.markdown, markdown(result))
    session.json(result.as_json())
    session.table(gate_table(result))
    for note in notes_of(result):
        session.note(note)
    hints = dict.fromkeys(check.hint for _, check in result.checks() if check.hint)
    for hint in hints:
        session.note(f"  hint: {hint}")
    for pair in result.pairs:
        is_open = any(check.state == "undecided" for check in pair.checks)
        told = [*(pair.disturbed if is_open else ()), *(pair.warnings if session.verbose else ())]
        session.warn(f"{pair.name}: {text}" for text in told)
    session.say(f"gate {result.words}")
    return 0 if result else 1


def gate_table(result: GateResult) -> Table:
    """Return the table of a gate, one row for each check."""
    from ..bench.gate import cells_of

    table = make_table(
        f"{result.machine} · {result.threads} threads", "artifact", "check", "old", "new", "change", "verdict"
    )
    for pair, check in result.checks():
        add_row(table, *cells_of(result, pair, check))
    return table


@verb(
    ReportCommand,
    "qcompile report results.json -o report.html",
    "qcompile report results.json -o report.html --layers layers.json --ranges model.ranges",
)
def report(session: Session, given: ReportCommand) -> None:
    """Print where the page is."""
    from ..reporting import write_report

    session.progress("draw")
    path = write_report(given.results, given.output, given)
    size = path.stat().st_size
    session.json({"path": str(path), "size_bytes": size})
    session.say(f"{path}  {bytes_text(size)}, loads nothing: open it in a browser, print it, send it")
