"""The library names an option by its field; the command line shows the flag, a recipe keeps its key."""

from __future__ import annotations

import pytest

from qcompile.cli.verb import respell, spelled
from qcompile.errors import InvalidOption
from qcompile.spec.artifacts import BuildCommand, QuantizeCommand
from qcompile.spec.looking import InspectCommand
from qcompile.spec.measure import BenchCommand, CompareCommand, DiffCommand, ReportCommand
from qcompile.spec.models import CalibrateCommand, ExportCommand, MergeRangesCommand, RangesCacheCommand
from qcompile.spec.option import options_of
from qcompile.spec.recipes import RunCommand, TuneCommand


@pytest.mark.parametrize(
    ("spec", "field", "flag"),
    [
        (BuildCommand, "gpus", "--gpu"),
        (BuildCommand, "layers", "--layer"),
        (BuildCommand, "min_shapes", "--min-shapes"),
        (BuildCommand, "io_formats", "--io-format"),
        (BuildCommand, "profiles", "--profile"),
        (BuildCommand, "tensorrt.workspace", "--workspace"),
        (QuantizeCommand, "max_damage", "--max-damage"),
        (ExportCommand, "inputs", "--input"),
        (ExportCommand, "dynamic", "--dynamic"),
        (CalibrateCommand, "targets", "--target"),
        (CalibrateCommand, "shard", "--shard"),
        (MergeRangesCommand, "targets", "--target"),
        (RangesCacheCommand, "method", "--method"),
        (BenchCommand, "torch_modes", "--torch"),
        (BenchCommand, "devices", "--device"),
        (BenchCommand, "max_time_s", "--max-time"),
        (BenchCommand, "python", "--python"),
        (CompareCommand, "limits", "--fail-if"),
        (CompareCommand, "max_time_s", "--max-time"),
        (DiffCommand, "layers", "--layers"),
        (DiffCommand, "rules", "--judge"),
        (ReportCommand, "layers", "--layers"),
        (TuneCommand, "max_drop", "--max-drop"),
        (TuneCommand, "layers", "--layer"),
        (InspectCommand, "trust", "--trust"),
    ],
)
def test_a_field_is_shown_as_the_flag_that_is_typed(spec: type, field: str, flag: str) -> None:
    error = InvalidOption(f"`{field}` 3: wrong", hint=f"leave `{field}` out", option=field)
    respell(error, spec)
    assert (str(error), error.data["option"]) == (f"{flag} 3: wrong\n  hint: leave {flag} out", flag)
    typed = field in {one.name for one in options_of(RunCommand)}
    assert spelled(f"give `{field}`", RunCommand) == (f"give {flag}" if typed else f"give `{field}`")


def test_a_word_that_is_no_option_stays_between_its_backticks() -> None:
    text = "put `labels` beside the arrays; `qcompile calibrate` writes them"
    assert spelled(text, BenchCommand) == text
