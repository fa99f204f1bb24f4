"""Options and output of every command: `-v`, `-q`, `--json`, progress on stderr, results on stdout.

With `--untrusted` the verb runs in a separate process, with limits on memory and time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..core.plain_text import plain, plain_json, plain_lines
from ..core.processes.untrusted import MEMORY_GB, TIME_S, Limits, is_child, limit_self, run_untrusted
from ..errors import UsageError

if TYPE_CHECKING:
    from .terminal_table import TerminalTable

_LINE_EVERY_S = 2.0
_PLAIN_WIDTH = 200
_WIDE_TERMINAL = 100
_LONG_S = 120.0


def encodes_all(stream: object) -> bool:
    """Return whether a stream can write every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


class Session:
    """The output of one command: results, progress, notes and warnings."""

    def __init__(self, *, verbose: bool, quiet: bool, as_json: bool) -> None:
        self.verbose, self.quiet, self.as_json = verbose, quiet, as_json
        self.results = sys.stdout or io.StringIO()  # None if closed
        self._display: Any = None
        self._task: Any = None
        self._last_line = 0.0
        self._text, self._began, self._first = "", 0.0, 0
        self._counts: tuple[int, int | None] = 0, None
        self.spelled: Callable[[str], str] = str  # replaced by a verb, for the spelling of its options

    @contextlib.contextmanager
    def working(self) -> Iterator[Session]:
        """Show progress while the block runs: a live line on a terminal, an occasional line elsewhere.

        Output of a user's code goes to standard error, apart from the results. Log records of qcompile become
        warnings.
        """
        handler = logging.Handler()
        handler.emit = lambda record: self.warn([record.getMessage()])  # type: ignore[method-assign]
        logger = logging.getLogger(__package__.partition(".")[0])
        logger.addHandler(handler)
        try:
            with self._show_progress():
                yield self
        finally:
            logger.removeHandler(handler)

    @contextlib.contextmanager
    def _show_progress(self) -> Iterator[None]:
        if self.quiet or sys.stderr is None or not sys.stderr.isatty():
            self._last_line = time.monotonic()
            with contextlib.redirect_stdout(sys.stderr):
                yield
            return
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        columns = (
            progress.SpinnerColumn("dots" if encodes_all(sys.stderr) else "line"),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24 if console.width >= _WIDE_TERMINAL else 12),
            progress.TextColumn("{task.fields[state]}"), progress.TimeElapsedColumn(),
        )  # fmt: skip
        display = progress.Progress(*columns, console=console, transient=True)
        with contextlib.redirect_stdout(sys.stderr), display as self._display:
            self._task = self._display.add_task("", total=None, state="")
            try:
                yield
            finally:
                self._display = None

    def progress(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """Show the current step; library functions take this method as `progress`.

        The remaining time follows from the speed since the step began. Steps that continue one count, such as
        `load a` 0 of 2 and `load b` 1 of 2, are timed together.
        """
        now, text = time.monotonic(), plain(text)
        last_done, last_total = self._counts
        if text != self._text and not (total and total == last_total and done >= last_done):
            self._began, self._first = now, done
            if self._display is not None:  # the total of a task cannot be removed
                self._display.remove_task(self._task)
                self._task = self._display.add_task(text, total=total, state="")
        self._text, self._counts = text, (done, total)
        state = progress_text(done, total, done - self._first, now - self._began)
        if self._display is not None:
            self._display.update(self._task, description=text, completed=done, total=total, state=state)
        elif not self.quiet and (self.verbose or now - self._last_line >= _LINE_EVERY_S):
            self._last_line = now
            click.echo(f"{text} {state}".rstrip(), err=True)

    @property
    def step(self) -> str:
        """The current step, from the last call of `progress`."""
        return self._text

    def say(self, text: str) -> None:
        """Print a line of the result; a line break in it is shown as an escape."""
        if not self.quiet:
            self.verdict(text)

    def verdict(self, text: str) -> None:
        """Print the artifact to use and its cost, even with `-q`."""
        if not self.as_json:
            self._print_above(lambda: click.echo(plain(text), file=self.results))

    def note(self, text: str) -> None:
        """Print a line about the work, to standard error."""
        if not self.quiet:
            self._print_above(lambda: click.echo(plain_lines(self.spelled(text)), err=True))

    def warn(self, warnings: Iterable[str]) -> None:
        """Print warnings, to standard error, even with `-q`."""
        for warning in warnings:
            text = click.style("warning: ", fg="yellow", bold=True) + plain_lines(self.spelled(warning))
            self._print_above(functools.partial(click.echo, text, err=True))

    def json(self, value: object) -> None:
        if self.as_json:
            text = json.dumps(value, indent=2, ensure_ascii=not encodes_all(self.results), default=str)
            click.echo(plain_json(text), file=self.results)

    def table(self, table: TerminalTable) -> None:
        if self.as_json or self.quiet:
            return
        from rich.console import Console

        self._print_above(lambda: Console(file=self.results, width=self.width).print(table))

    @property
    def width(self) -> int:
        """Maximum width of a table in columns: the terminal's, or `_PLAIN_WIDTH` elsewhere."""
        return shutil.get_terminal_size().columns if self.results.isatty() else _PLAIN_WIDTH

    def _print_above(self, show: Callable[[], None]) -> None:
        if self._display is None:
            show()
            return
        self._display.stop()  # the live line is redrawn below the printed text
        show()
        self._display.start()


def progress_text(done: int, total: int | None, steps: int, seconds: float) -> str:
    """Return share and remaining time, "37%, 38 s left"; without a total, count and speed, "481, 48.1/s".

    The speed is that of `steps` in `seconds`, and unknown during the first second.
    """
    per_s = steps / seconds if steps > 0 and seconds >= 1 else 0.0
    if total:
        left_s = (total - done) / per_s if per_s else 0.0
        left = f"{left_s:.0f} s" if left_s < _LONG_S else f"{left_s / 60:.0f} min"
        return f"{done / total:.0%}" + (f", {left} left" if left_s > 0 else "")
    return ", ".join(filter(None, [f"{done}" * (done > 0), f"{per_s:.3g}/s" * (per_s > 0)]))


def session_options(*, files: bool = True) -> list[click.Option]:
    """Return `-v`, `-q`, `--json`, which every command has, and `--untrusted` if it reads files."""
    memory = f"With --untrusted: memory that all its processes may hold. [default: {MEMORY_GB:g}]"
    time_s = f"With --untrusted: seconds that the command may take. [default: {TIME_S:g}]"
    untrusted = "Files may be untrusted: work in another process, with limits."
    limits = [
        click.Option(["--untrusted"], is_flag=True, help=untrusted),
        click.Option(["--memory-limit-gb"], type=click.FLOAT, help=memory),
        click.Option(["--time-limit-s"], type=click.FLOAT, help=time_s),
    ]
    return [
        *(limits if files else ()),
        click.Option(["-v", "--verbose"], is_flag=True, help="Show every step; tracebacks of errors."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print warnings and the verdict alone."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON in place of tables."),
    ]


def examples(*lines: str) -> str:
    """Return the epilog of a command: its examples, as typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


UNTRUSTED = ("untrusted", "memory_limit_gb", "time_limit_s")
"""Options of commands that read files, in addition to those of their specs."""


def run_untrusted_child(options: dict[str, Any], *, as_json: bool) -> int | None:
    """Run the typed command in a separate process if `--untrusted` was typed.

    Remove its options from `options`. Return the exit code, or None if this process is to run the command.
    """
    untrusted, memory_gb, time_s = (options.pop(name, None) for name in UNTRUSTED)
    limits = {"memory_gb": memory_gb, "time_s": time_s}
    typed = {name: value for name, value in limits.items() if value is not None}
    if is_child():
        limit_self()
        return None
    if not untrusted:
        if typed:
            raise UsageError("--memory-limit-gb and --time-limit-s need --untrusted")
        return None
    if options.get("trust"):
        refuse_trust("--trust")
    words = click.get_current_context().find_root().obj
    finished = run_untrusted(words, Limits(**typed), capture=as_json)
    if finished.output:
        click.echo(finished.output, nl=False)
    return finished.code


def refuse_trust(name: str) -> None:
    """Refuse an option that lets a file run code."""
    raise UsageError(
        f"--untrusted and {name} exclude each other: with it a file may run code, and limits on memory and "
        "time are no sandbox"
    )
