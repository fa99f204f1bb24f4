"""The group of commands, and how errors are presented."""

from __future__ import annotations

import json
import sys

import click

from ..errors import QCompileError
from ..version import __version__
from .balance import balance
from .bench import bench
from .build import build
from .calibrate import calibrate
from .diff import diff
from .doctor import doctor
from .export import export
from .inspect import inspect
from .package import package
from .quantize import quantize
from .ranges import ranges
from .refit import refit
from .report import report
from .run import run
from .session import RoadGroup
from .simplify import simplify
from .tune import tune

_HELP = """\
From a trained PyTorch model to measured, verified artifacts.

\b
  PyTorch ─ export ─ simplify ─ calibrate ─ quantize ─ build ─ bench, diff, report

Each verb works alone on files from anywhere; `run` does them all from one recipe.

\b
Examples:
  qcompile doctor
  qcompile run examples/digits/recipe.toml
  qcompile export model.py:build -o model.onnx --input x:[batch,3,224,224]
"""


@click.group(cls=RoadGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qcompile")
def group() -> None:
    """The group; commands are added below in the order of the road."""


for _command in (
    export,
    simplify,
    balance,
    calibrate,
    ranges,
    quantize,
    tune,
    build,
    refit,
    bench,
    diff,
    report,
    run,
    package,
    inspect,
    doctor,
):
    group.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed or mismatch, 2 usage, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verbose = any(word in ("-v", "--verbose") for word in arguments)
    as_json = "--json" in arguments
    try:
        code = group.main(args=arguments, prog_name="qcompile", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except QCompileError as error:
        _present(error, as_json=as_json, verbose=verbose)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; what was finished is kept, run it again to go on", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`| head`); Python would complain at exit
        sys.exit(1)
    except Exception as error:
        if verbose:
            raise
        click.echo(
            f"error: unexpected {type(error).__name__}: {error}\n"
            "  hint: this is a defect of qcompile; -v shows where it happened",
            err=True,
        )
        sys.exit(1)


def _present(error: QCompileError, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json.dumps(error.as_json(), indent=2))
        return
    click.echo(click.style("error: ", fg="red", bold=True) + str(error), err=True)
    if verbose:
        import traceback

        traceback.print_exception(error)
