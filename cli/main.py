"""The group of commands, and how errors are presented."""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import import_module

import click

from ..errors import QCompileError
from ..files.storage import storage_error
from ..plain_text import plain, plain_json, plain_lines
from ..spec.removed import removed_command, removed_option
from ..version import __version__
from .missing_packages import missing_package
from .stopping import StopSignals

_VERBS = {
    "auto": "find the artifact to use, within an accuracy budget",
    "init": "write a commented recipe for a model and data",
    "export": "export a PyTorch model to ONNX and check it",
    "simplify": "fold and fuse nodes; outputs stay equal",
    "calibrate": "observe activations on samples",
    "ranges": "show ranges, merge shards, write TensorRT's cache",
    "quantize": "convert to INT8, FP8, INT4, FP16 or BF16 for a target",
    "tune": "find the fastest INT8 model within an accuracy budget",
    "build": "build for a target and prove the precision",
    "refit": "give a built engine new weights",
    "bench": "measure artifacts against a baseline, or compare results",
    "gate": "judge a new version against the old one, for CI",
    "diff": "compare outputs with Polygraphy",
    "report": "write one HTML file of results",
    "run": "run all stages of a recipe",
    "sweep": "build and measure a matrix of artifacts",
    "worker": "carry out stages for a Dask scheduler",
    "migrate": "turn a trtexec or Polygraphy command line into a recipe",
    "package": "package an artifact for a server",
    "inspect": "show what a file contains",
    "doctor": "check what works on this machine",
}
"""Help of each verb, in the order of the road. A verb's module is imported when the verb is called."""

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
        """Return the verbs in the order of the road."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in _VERBS:
            return None
        command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say what to use in place of one that went."""
        gone = removed_command(args[0]) if args[0] not in _VERBS else ""
        if gone:
            raise click.UsageError(gone, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=VerbGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qcompile")
def group() -> None:
    """All verbs."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed or mismatch, 2 usage, 128 + signal that ended it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with StopSignals() as stop:
        try:
            code = _run(arguments, stop)
        except KeyboardInterrupt:  # while an end was being told
            code = _present_stop(stop)
    sys.exit(code)


def _run(arguments: list[str], stop: StopSignals) -> int:
    """Return the exit code of a command; its errors are presented."""
    verbose = any(word in ("-v", "--verbose") for word in arguments)
    as_json = "--json" in arguments
    try:
        code = group.main(args=arguments, prog_name="qcompile", standalone_mode=False, obj=list(arguments))
        sys.stdout.flush()  # a full disk behind it would be found when nobody can say so any more
        if stop.received:
            return stop.exit_code  # `bench` keeps what it has measured, and says so itself
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            command = error.ctx.info_name if error.ctx is not None else None
            if gone := removed_option(error.option_name, command or ""):
                error = click.UsageError(gone, error.ctx)
        error.message = plain_lines(error.message)  # type: ignore[misc]  # nothing else is shown
        error.show()
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`); Python would complain at exit
        return 1
    except (KeyboardInterrupt, click.Abort):
        return _present_stop(stop)
    except Exception as error:
        if stop.received:  # a library that was called back has made another error of it
            return _present_stop(stop)
        return _present_error(error, as_json=as_json, verbose=verbose)


def _present_stop(stop: StopSignals) -> int:
    with contextlib.suppress(OSError):  # the terminal is gone
        click.echo(f"{stop.words}; what was finished is kept, run it again to go on", err=True)
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
