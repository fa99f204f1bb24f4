"""The group of commands, the presentation of errors, and the signals that end a command.

SIGTERM and SIGHUP end a command as Ctrl-C does: finished work is stored, and workers are ended. Containers
and Slurm send SIGTERM; a terminal sends SIGHUP when it closes. Either signal becomes an exception like
KeyboardInterrupt in the main thread. A second one, at least a second later, ends the process at once, even
while a native library blocks Python: a thread reads the signals for that. The delay is for `timeout` of
coreutils, which sends each signal twice within a moment.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import locale
import os
import signal
import sys
import threading
import time
from importlib import import_module
from types import FrameType, TracebackType

import click

from ..core.files.storage import storage_error
from ..core.plain_text import NOT_UTF8, plain, plain_json, plain_lines
from ..errors import EngineUnavailable, QCompileError, StorageError, causes
from ..version import __version__

_VERBS = {
    "auto": ("first_use", "find the artifact to use, within an accuracy budget"),
    "init": ("first_use", "write a commented recipe for a model and data"),
    "export": ("compile", "export a PyTorch model to ONNX and check it"),
    "simplify": ("compile", "fold and fuse nodes; outputs stay equal"),
    "calibrate": ("compile", "observe activations on samples"),
    "ranges": ("compile", "show ranges, merge shards, write TensorRT's cache"),
    "quantize": ("compile", "convert to INT8, FP8, INT4, FP16 or BF16 for a target"),
    "tune": ("first_use", "find the fastest INT8 model within an accuracy budget"),
    "build": ("compile", "build for a target and verify the precision"),
    "refit": ("compile", "give a built engine new weights"),
    "bench": ("measure", "measure artifacts against a baseline"),
    "gate": ("measure", "judge a new version against the old one, for CI"),
    "diff": ("measure", "compare outputs with Polygraphy"),
    "reproduce": ("compile", "reduce a runtime's fault to its smallest graph"),
    "report": ("measure", "write one HTML file of results"),
    "run": ("recipes", "run all stages of a recipe"),
    "sweep": ("recipes", "build and measure a matrix of artifacts"),
    "worker": ("recipes", "run stages for a Dask scheduler"),
    "package": ("look", "package an artifact for a server"),
    "inspect": ("look", "show what a file contains"),
    "doctor": ("look", "check what works on this machine"),
}
"""Module of this package and help of each verb, in the order of use. A module is imported on call."""

_HELP = """\
Turn a trained PyTorch model into measured, verified artifacts.

\b
  PyTorch ─ export ─ simplify ─ calibrate ─ quantize ─ build ─ bench, diff, report

Each verb also takes files of other tools; `run` does all of them from one recipe.

\b
Examples:
  qcompile doctor
  qcompile run examples/digits/recipe.toml
  qcompile export model.py:build -o model.onnx --input x:[batch,3,224,224]
"""


class VerbGroup(click.Group):
    """Lists the verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = getattr(import_module(f".{_VERBS[cmd_name][0]}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, words) for verb, (_, words) in _VERBS.items()])


@click.group(cls=VerbGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qcompile")
def group() -> None:
    """All verbs."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed or mismatch, 2 usage, 128 + a signal that ended it."""
    if arguments is None:
        _start_in_utf8()
        _occupy_closed_streams()
        arguments = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        _replace_missing_signs(stream)
    with StopSignals() as stop:
        try:
            code = _run(arguments, stop)
        except KeyboardInterrupt:  # while `_run` presents an error
            code = _present_stop(stop)
    sys.exit(code)


_ASCII_SIGNS = {"≥": ">=", "…": "...", "·": "|", "─": "-", "×": "x"}
"""ASCII replacements of the other signs in qcompile's texts."""


def _replace_missing_signs(stream: object) -> None:
    """Make a stream, if its encoding is not Unicode's, replace signs that it lacks by ASCII; in place."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_IN_ASCII)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    texts = (_ASCII_SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(texts), error.end


_IN_ASCII = "qcompile.in_ascii"
codecs.register_error(_IN_ASCII, _in_ascii)


def _start_in_utf8() -> None:
    """Replace this process by one in Python's UTF-8 mode (PEP 540) if file names need it.

    Native libraries expect paths in UTF-8: under another encoding they cannot open non-ASCII file names.
    Standard streams use the encoding of the terminal as before.
    """
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8" or os.name != "posix":
        return
    if encoding != "ascii" and all(map(str.isascii, _names(sys.argv))):
        return
    variables = {"PYTHONIOENCODING": locale.getpreferredencoding(False), **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], variables)


def _occupy_closed_streams() -> None:
    """Open the null device as each closed standard stream. Otherwise a later file gets its number,
    and native libraries print into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run(arguments: list[str], stop: StopSignals) -> int:
    """Return the exit code of a command, after presenting its errors."""
    verbose = any(word in ("-v", "--verbose") for word in arguments)
    as_json = "--json" in arguments
    try:
        code = group.main(args=arguments, prog_name="qcompile", standalone_mode=False, obj=list(arguments))
        if sys.stdout is not None:  # None if closed
            sys.stdout.flush()  # raises for a full disk while the error can still be reported
        if stop.received:
            return stop.exit_code  # `bench` stores its measurements and reports the signal itself
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.message = plain_lines(error.message)  # type: ignore[misc]  # `show` prints nothing else
        error.show()
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone (`| head`); Python would complain at exit
        return 1
    except (KeyboardInterrupt, click.Abort):
        return _present_stop(stop)
    except Exception as error:
        if stop.received:  # a library turned `Stopped`, raised in its callback, into another error
            return _present_stop(stop)
        return _present_error(_translate_bad_name(error, arguments), as_json=as_json, verbose=verbose)


def _names(arguments: list[str]) -> list[str]:
    """Return the texts that may be file names: the arguments and the working folder, if it exists."""
    with contextlib.suppress(OSError):
        return [*arguments, os.getcwd()]
    return arguments


def _translate_bad_name(error: Exception, arguments: list[str]) -> Exception:
    """Return the error of a non-UTF-8 name that a native library refused, or else `error` itself."""
    refused = any(isinstance(cause, TypeError | UnicodeError) for cause in causes(error))
    name = next(filter(NOT_UTF8.search, _names(arguments)), "") if refused else ""
    if not name:
        return error
    problem = f"{name}: its name is not UTF-8; native libraries open no such file"
    name_error = StorageError(problem, hint="rename it", file=name)
    name_error.__cause__ = error
    return name_error


def _present_stop(stop: StopSignals) -> int:
    with contextlib.suppress(OSError):  # the terminal is gone
        click.echo(f"{stop.words}; finished work is kept: run it again to continue", err=True)
    return stop.exit_code


def _present_error(error: Exception, *, as_json: bool, verbose: bool) -> int:
    shown = missing_package(error) or (storage_error(error) if isinstance(error, OSError) else error)
    if isinstance(shown, QCompileError):
        if shown is not error:
            shown.__cause__ = error
        _present(shown, as_json=as_json, verbose=verbose)
        return shown.exit_code
    if verbose:
        _print_traceback(error)
    click.echo(
        f"error: unexpected {type(error).__name__}: {plain(error)}\n"
        "  hint: this is a defect of qcompile; -v shows where it happened",
        err=True,
    )
    return 1


def _present(error: QCompileError, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        with contextlib.suppress(OSError):  # standard output cannot be written
            click.echo(plain_json(json.dumps(error.as_json(), indent=2)))
            return
    click.echo(click.style("error: ", fg="red", bold=True) + plain_lines(error.message), err=True)
    if error.hint:
        click.echo(f"  hint: {plain_lines(error.hint)}", err=True)
    if verbose:
        _print_traceback(error)


def _print_traceback(error: Exception) -> None:
    import traceback

    for line in "".join(traceback.format_exception(error)).rstrip("\n").split("\n"):
        click.echo(f"  {plain(line)}", err=True)


_SECOND_SIGNAL_S = 1.0


class Stopped(KeyboardInterrupt):
    """A signal requests the end of the command."""


class StopSignals:
    """Context that raises `Stopped` on SIGTERM and SIGHUP; signals that were ignored remain ignored.

    Attributes:
        received: The first of them that arrived, or 0. The exit code is 128 more.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1

    @property
    def exit_code(self) -> int:
        """128 + the received signal; 130, as for Ctrl-C, without one."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def words(self) -> str:
        return "interrupted" if not self.received else f"ended by {signal.Signals(self.received).name}"

    def __enter__(self) -> StopSignals:
        names = ("SIGTERM", "SIGHUP")
        numbers = [int(getattr(signal, name)) for name in names if hasattr(signal, name)]
        if threading.current_thread() is not threading.main_thread():
            return self  # Python handles signals in the main thread only
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._raise)
        if self._before and os.name == "posix":
            with contextlib.suppress(OSError):  # out of descriptors: a second signal has no effect then
                self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._pipe[1])  # ends the thread
            self._pipe = None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return  # the command is ending already; the thread handles a second signal
        self.received = number
        raise Stopped(signal.Signals(number).name)

    def _watch(self) -> None:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._read, args=(self._pipe[0],), name="signals", daemon=True).start()

    def _read(self, end: int) -> None:
        first_s = None
        handled = set(self._before)
        with os.fdopen(end, "rb", buffering=0) as signals:
            while byte := signals.read(1):
                if byte[0] not in handled:
                    continue
                now_s = time.monotonic()
                if first_s is None:
                    first_s = now_s
                elif now_s - first_s >= _SECOND_SIGNAL_S:
                    os._exit(128 + byte[0])


_DISTRIBUTIONS = {"PIL": "pillow", "pynvml": "nvidia-ml-py", "google": "tritonclient", "grpc": "tritonclient"}
"""Module to its distribution, if the names differ by more than `_`."""


def missing_package(error: BaseException) -> QCompileError | None:
    """Return the error that names the extra to install for a failed import; None if no extra has it."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    from ..core.installation import extras, install_hint

    module = error.name.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
    extra = next(
        (extra for extra, packages in extras().items() if distribution in (p.name for p in packages)), ""
    )
    if not extra:
        return None
    return EngineUnavailable(
        f"{distribution} cannot be imported ({error})",
        hint=install_hint(extra),
        engine=module,
        reason=str(error),
    )
