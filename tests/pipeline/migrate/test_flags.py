"""The tables of options: every row is complete, and what it promises is there."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qcompile.pipeline.migrate
from qcompile.cli.main import _VERBS
from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate.flags import TOOLS, Tool, dashed, find_flag, flags_of, tomllib
from qcompile.pipeline.migrate.intent import Intent
from qcompile.pipeline.migrate.translate import _READ, _Translator, translate
from qcompile.spec.artifacts import BuildCommand, QuantizeCommand
from qcompile.spec.measure import BenchCommand, DiffCommand
from qcompile.spec.option import fields_of, options_of
from qcompile.spec.recipes import MigrateCommand, RecipeFile

FOLDER = Path(qcompile.pipeline.migrate.__file__).parent
KINDS = {"to", "lacks", "idle"}
READ_BY = {"by", "sets", "note", "choices"}
KEYS = READ_BY | {"in", "file", "takes", "also", "rtx", "same", "default", "only", "otherwise"}
VERSIONS = {
    "trtexec": ["8.5", "8.6", *(f"10.{minor}" for minor in range(17)), "11.0", "11.1"],
    "polygraphy": [
        "0.44.2", "0.47.1", "0.49.10", "0.49.12", "0.49.13", "0.49.14", "0.49.18", "0.49.20", "0.49.24",
        "0.49.27", "0.53.6",
    ],
}  # fmt: skip


def rows(tool: Tool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "options.toml").read_text())[tool]["options"]
    return found


def has_key(key: str) -> bool:
    """Whether recipes have a key such as "bench.batch_size"; commands and sections always are there."""
    kind: Any = RecipeFile
    for step in key.split(".") if "." in key else ():
        one = next((one for one in fields_of(kind) if one.name == step), None)
        if one is None:
            return False
        kind = one.table
    return True


@pytest.mark.parametrize("tool", TOOLS)
def test_every_row_says_what_becomes_of_the_option(tool: Tool) -> None:
    names: list[str] = []
    for name, row in rows(tool).items():
        assert set(row) <= KINDS | KEYS, name
        assert set(row) & KINDS in ({"to"}, {"lacks"}, {"idle"}), name
        first, last = row["in"].split("-")
        versions = VERSIONS[tool]
        assert versions.index(first) <= versions.index(last), name
        assert row.get("same", name) in rows(tool), name
        assert has_key(row.get("to", "")), f"{name}: recipes have no key {row['to']}"
        assert row.get("rtx", "idle: ").split(": ")[0] in ("lacks", "idle"), name
        names += [name, *row.get("also", ())]
    assert len(names) == len(set(names)) == len(flags_of(tool))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_note_says_what_to_do_and_names_commands_and_options_that_exist(tool: Tool) -> None:
    specs = (RecipeFile, BuildCommand, QuantizeCommand, BenchCommand, DiffCommand, MigrateCommand)
    known = {one.name for spec in specs for one in options_of(spec)}
    assert not any(map(has_key, ("artifact.tensorrt.workspaces", "artefact.name")))
    for flag in flags_of(tool).values():
        if flag.fate == "missing":
            reason, _, way_out = flag.note.partition("; ")
            assert reason, flag.name
            assert way_out or "`qcompile " in reason, flag.note
        for word in re.findall(r"`([^`]+)`", f"{flag.note} {flag.rtx_note}"):
            command = re.match(r"qcompile (\w+)", word)
            if command:
                assert command[1] in _VERBS, word
            elif "." in word:
                assert has_key(word), word
            else:
                assert word in known | set(_VERBS) | {"verbose", "quiet", "json", "rules"}, word


@pytest.mark.parametrize("tool", TOOLS)
def test_what_has_an_equal_is_translated_and_nothing_else(tool: Tool) -> None:
    for name, row in rows(tool).items():
        assert bool(set(row) & READ_BY) == ("to" in row), name
        by = row.get("by", "")
        known = hasattr(Intent(), by[1:]) if by[:1] == "." else hasattr(_Translator, f"_{by}")
        assert known or by in ("", *_READ), name


def options_of_polygraphy() -> Iterator[argparse.Action]:
    pytest.importorskip("polygraphy")
    from polygraphy.tools.convert.convert import Convert
    from polygraphy.tools.run.run import Run

    for tool in (Run, Convert):
        parser = argparse.ArgumentParser()
        tools = parser.add_subparsers()
        tool().setup_parser(tools)
        (made,) = tools.choices.values()
        yield from made._actions


@pytest.mark.filterwarnings("ignore:SelectableGroups dict interface:DeprecationWarning")
def test_polygraphys_own_parser_has_the_options_of_the_table_with_as_many_values() -> None:
    """The parser of the installed Polygraphy is the oracle."""
    known = flags_of("polygraphy")
    seen = set()
    for action in options_of_polygraphy():
        for spelled in action.option_strings:
            flag = known[spelled.lstrip("-")]
            assert flag.takes == {None: "1", 0: ""}.get(action.nargs, action.nargs), spelled
            assert flag.versions.endswith("-0.53.6"), f"{spelled} is of the newest version"
            seen.add(flag.name)
    rtx = {"use-gpu", "compute-capabilities"}  # where POLYGRAPHY_USE_TENSORRT_RTX is set
    hidden = {"no-shape-inference", "force-fallback-shape-inference", "set-unbounded-dds-upper-bound"}
    newest = {flag.name for flag in known.values() if flag.versions.endswith("-0.53.6")}
    assert newest - seen == rtx | hidden


@pytest.mark.parametrize(
    ("tool", "typed", "near"),
    [
        ("trtexec", "precisionConstrants", "--precisionConstraints"),  # TensorRT issue 2087
        ("trtexec", "minShape", "--minShapes"),  # Tianxiaomo/pytorch-YOLOv4 pull request 483
        ("trtexec", "allowGPUfallback", "--allowGPUFallback"),  # TensorRT issue 3438
        ("trtexec", "bset", "--best"),  # TensorRT issue 3762
        ("polygraphy", "layer-precision", "--layer-precisions"),
        ("polygraphy", "atoll", "--atol"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest(tool: Tool, typed: str, near: str) -> None:
    with pytest.raises(InvalidOption, match=f"{tool} has no option --{typed}") as caught:
        find_flag(tool, typed)
    assert caught.value.hint == f"did you mean {near}?"


def test_the_beginning_of_a_name_will_do_where_argparse_takes_it() -> None:
    assert find_flag("polygraphy", "trt-min", prefixes=True).name == "trt-min-shapes"
    with pytest.raises(InvalidOption, match="no option --trt-m"):
        find_flag("polygraphy", "trt-m", prefixes=True)
    with pytest.raises(InvalidOption, match="no option --trt-min"):
        find_flag("polygraphy", "trt-min")


def test_one_letter_has_one_dash() -> None:
    assert (dashed("o"), dashed("onnx")) == ("-o", "--onnx")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_whatever_value_an_option_has_it_is_translated_or_refused_in_words(tool: Tool, target: str) -> None:
    values = ["", "1", "-1", "x", "a:b", "a:1x2", "a:[1,2]", "fp16:chw", "'a", ",", ":", "=", "+CUDNN", "a b"]
    for flag in dict.fromkeys(flags_of(tool).values()):
        for value in values:
            inline = f"{flag.typed}={value}" if value else flag.typed
            words = [inline] if tool == "trtexec" else ["run", "--trt", flag.typed, *value.split()]
            try:
                outcomes = translate(tool, words, target).outcomes
            except InvalidOption:  # any other error fails the test
                continue
            assert all(one.note for one in outcomes if one.fate == "missing"), words
