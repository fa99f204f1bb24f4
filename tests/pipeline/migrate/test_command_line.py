"""A command line is read as a shell reads it, and never run; the tables of options are complete."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qcompile.pipeline.migrate
from qcompile.cli.main import _VERBS
from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate.intent import (
    TOOLS,
    Intent,
    Invocation,
    Tool,
    dashed,
    find_flag,
    flags_of,
    read_command,
    tomllib,
)
from qcompile.pipeline.migrate.translate import _READ, _Translator, translate
from qcompile.spec.artifacts import BuildCommand, QuantizeCommand
from qcompile.spec.measure import BenchCommand, DiffCommand
from qcompile.spec.option import fields_of, options_of
from qcompile.spec.recipes import MigrateCommand, RecipeFile


def words(text: str) -> list[str]:
    return list(read_command(text).words)


@pytest.mark.parametrize(
    "text",
    [
        "trtexec --onnx=m.onnx --fp16",
        "  trtexec   --onnx=m.onnx\t--fp16  ",
        "/usr/src/tensorrt/bin/trtexec --onnx=m.onnx --fp16",
        "./trtexec --onnx=m.onnx --fp16",
        "TRTEXEC.EXE --onnx=m.onnx --fp16",
        '"C:\\Program Files\\TensorRT\\bin\\trtexec.exe" --onnx=m.onnx --fp16',
        "$ trtexec --onnx=m.onnx --fp16",
        "!trtexec --onnx=m.onnx --fp16",
        ">>> trtexec --onnx=m.onnx --fp16",
        "PS E:\\work\\models> trtexec --onnx=m.onnx --fp16",
        "(base) user@host:~/models$ trtexec --onnx=m.onnx --fp16",
        "trtexec \\\n  --onnx=m.onnx \\\n  --fp16\n",
        "trtexec \\\r\n  --onnx=m.onnx \\\r\n  --fp16\r\n",
        "trtexec.exe ^\r\n --onnx=m.onnx ^\r\n --fp16",
        "trtexec `\n --onnx=m.onnx `\n --fp16",
        "trtexec --onnx='m.onnx' --fp16",
        'trtexec --onnx="m.onnx" --fp16',
        "#!/bin/bash\nset -e\n# trtexec --old\n\ntrtexec --onnx=m.onnx --fp16\necho done",
        "trtexec --onnx=m.onnx --fp16 > log.txt 2>&1",
        "trtexec --onnx=m.onnx --fp16 2> errors.txt",
        "trtexec --onnx=m.onnx --fp16 2>&1 | tee log.txt",
        "trtexec --onnx=m.onnx --fp16 && echo built || echo failed",
        "trtexec --onnx=m.onnx --fp16 &",
        "mkdir -p out; trtexec --onnx=m.onnx --fp16; ls",
        "sudo trtexec --onnx=m.onnx --fp16",
        "time nice -n 5 trtexec --onnx=m.onnx --fp16",
        "CUDA_VISIBLE_DEVICES=1 trtexec --onnx=m.onnx --fp16",
        "M=m.onnx\ntrtexec --onnx=$M --fp16",
        "export D=m\nM=${D}.onnx trtexec --onnx=${M} --fp16",
        "docker run --rm -it --gpus all nvcr.io/nvidia/tensorrt:23.04-py3 trtexec --onnx=m.onnx --fp16",
        "docker exec trt trtexec --onnx=m.onnx --fp16",
        "docker run --rm nvcr.io/nvidia/tensorrt:23.04-py3 bash -c 'trtexec --onnx=m.onnx --fp16'",
        'docker run -it trt sh -c "cd / && trtexec --onnx=m.onnx --fp16 > log"',
    ],
)
def test_the_same_command_in_many_forms(text: str) -> None:
    assert words(text) == ["--onnx=m.onnx", "--fp16"]


@pytest.mark.parametrize(
    "text",
    [
        "trtexec --onnx=seed\\=0/m.onnx",
        "trtexec --minShapes=\\'input:0\\':1x3",
        "trtexec --minShapes=\"'input:0':1x3\"",
        "trtexec --shapes='a:1x2,b:3' --onnx=\"my model.onnx\"",
        "trtexec --onnx=a\\ b.onnx",
    ],
)
def test_quotes_and_escapes_are_those_of_a_shell(text: str) -> None:
    """`printf` shows what the shell of this machine makes of the words: an independent oracle."""
    script = f"printf '%s\\n' {text.partition(' ')[2]}"
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert words(text) == printed.splitlines()


@pytest.mark.parametrize("command", ["polygraphy run m.onnx --trt", "python3 -m polygraphy run m.onnx --trt"])
def test_polygraphy_and_its_module(command: str) -> None:
    call = read_command(f"{command} --iterations 2 > log")  # the number is no stream
    assert (call.tool, *call.words) == ("polygraphy", "run", "m.onnx", "--trt", "--iterations", "2")


def test_the_folders_of_a_container_are_those_of_this_machine() -> None:
    call = read_command(
        "docker run --rm -v $(pwd)/models:/models:ro --volume=/data:/data "
        "--mount type=bind,source=${PWD},target=/work -w /work -e NVIDIA_TF32_OVERRIDE=0 "
        "nvcr.io/nvidia/tensorrt:23.04-py3 trtexec --onnx=/models/m.onnx"
    )
    assert call.mounts == {"/models": "./models", "/data": "/data", "/work": "."}
    assert (call.folder, call.variables) == ("/work", {"NVIDIA_TF32_OVERRIDE": "0"})
    assert call.wrapper.startswith("docker run --rm")


def test_the_folders_of_a_container_are_known_to_the_shell_in_it() -> None:
    call = read_command("docker run -v $PWD:/w -w /w trt bash -c 'cd /w/sub; trtexec --onnx=m.onnx'")
    assert (call.mounts, call.folder) == ({"/w": "."}, "/w/sub")
    assert call.wrapper == "docker run -v .:/w -w /w trt bash -c"
    assert read_command("cd models && trtexec --onnx=m.onnx").folder == "models"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no call of trtexec or polygraphy"),
        ("ls -l", "no call of trtexec or polygraphy"),
        ("# trtexec --onnx=m.onnx", "no call of trtexec or polygraphy"),
        ("trtexec --onnx=a\ntrtexec --onnx=b", "2 calls; one is required"),
        ("trtexec --onnx=$MODEL", "the value of $MODEL is not known"),
        ("trtexec --onnx='m.onnx", "No closing quotation"),
    ],
)
def test_what_is_no_command_is_an_error(text: str, said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_command(text)
    assert said in caught.value.message
    assert caught.value.exit_code == 2


def test_nothing_of_a_command_is_run(tmp_path: Path) -> None:
    """Neither substitutions nor what stands beside the program."""
    ran = tmp_path / "ran"
    text = f"touch {ran}; trtexec --onnx=$(touch {ran}) `touch {ran}` ; touch {ran}"
    assert isinstance(read_command(text), Invocation)
    assert not ran.exists()


def test_the_command_is_kept_in_one_line() -> None:
    call = read_command("trtexec \\\n --onnx='my model.onnx' \\\n --fp16")
    assert shlex.split(call.text) == ["trtexec", "--onnx=my model.onnx", "--fp16"]


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
    assert (dashed("o"), dashed("onnx")) == ("-o", "--onnx")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_whatever_value_an_option_has_it_is_translated_or_refused_in_words(tool: Tool, target: str) -> None:
    values = ["", "1", "-1", "x", "a:b", "a:1x2", "a:[1,2]", "fp16:chw", "'a", ",", ":", "=", "+CUDNN", "a b"]
    for flag in dict.fromkeys(flags_of(tool).values()):
        for value in values:
            inline = f"{dashed(flag.name)}={value}" if value else dashed(flag.name)
            words = [inline] if tool == "trtexec" else ["run", "--trt", dashed(flag.name), *value.split()]
            try:
                outcomes = translate(tool, words, target).outcomes
            except InvalidOption:  # any other error fails the test
                continue
            assert all(one.note for one in outcomes if one.fate == "missing"), words
