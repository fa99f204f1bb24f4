"""Importing, `--help` and completion need no heavy package, and are quick."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = tuple(
    "auto init export simplify calibrate ranges quantize tune build refit bench gate diff "
    "report run sweep worker migrate package inspect doctor".split()
)
_GROUPS = {"ranges": ("show", "merge", "cache"), "package": ("triton",)}
COMMANDS = (
    *(verb for verb in VERBS if verb not in _GROUPS),
    *(f"{group} {command}" for group, commands in _GROUPS.items() for command in commands),
)
HEAVY = (
    "torch", "onnx", "onnxruntime", "numpy", "tensorrt", "tensorrt_rtx", "polygraphy", "rich", "onnxsim",
    "numba", "safetensors", "jinja2",
)  # fmt: skip

PROBE = """
import sys, io, contextlib
from qcompile.cli import main
try:
    with contextlib.redirect_stdout(io.StringIO()):
        main({arguments!r})
except SystemExit as done:
    assert not done.code, done.code
print(" ".join(name for name in {heavy!r} if name in sys.modules))
"""


@pytest.mark.parametrize("command", ["", *_GROUPS, *COMMANDS])
def test_help_loads_nothing_heavy(command: str) -> None:
    code = PROBE.format(arguments=[*command.split(), "--help"], heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_version_loads_nothing_heavy() -> None:
    code = PROBE.format(arguments=["--version"], heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, qcompile; dir(qcompile); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_and_the_common_options(command: str) -> None:
    words = [sys.executable, "-m", "qcompile", *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    examples = [line.split() for line in done.stdout.partition("Examples:")[2].splitlines()]
    typed = ["qcompile", *command.split()]
    assert any(line[: len(typed)] == typed for line in examples)
    for option in ("--verbose", "--quiet", "--json", "--help"):
        assert option in done.stdout
    unwritten = ("diff", "inspect", "doctor", "ranges show", "worker")
    if command not in unwritten:
        assert "--output" in done.stdout


def test_what_can_be_done_with_ranges_is_listed() -> None:
    words = [sys.executable, "-m", "qcompile", "ranges", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.partition("Commands:")[2].splitlines()]
    listed = {f"ranges {line[0]}" for line in lines if line}
    assert listed == {command for command in COMMANDS if command.startswith("ranges ")}


def test_the_verbs_are_listed_in_the_order_of_the_road() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qcompile", "--help"], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.partition("Commands:")[2].splitlines()]
    assert tuple(words[0] for words in lines if words) == VERBS


BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")

ASK = """
source {script}
complete -p qcompile >&2
compopt() {{ echo "compopt $2"; }}
COMP_WORDS=({words})
COMP_CWORD={last}
_qcompile_completion qcompile
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script of bash, and a `qcompile` in the path of the tests."""
    path = tmp_path / "completion.bash"
    program = tmp_path / "bin" / "qcompile"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m qcompile "$@"\n')
    program.chmod(0o755)
    asked = {**os.environ, "_QCOMPILE_COMPLETE": "bash_source"}
    said = subprocess.run([program], capture_output=True, text=True, check=True, env=asked)
    path.write_text(said.stdout)
    return path


def completed(script: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    assert BASH is not None
    environment = {**os.environ, "PATH": f"{script.parent / 'bin'}:{os.environ['PATH']}"}
    code = ASK.format(script=script, words=" ".join(map(shlex.quote, words)), last=len(words) - 1)
    said = subprocess.run(
        [BASH, "--norc", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "complete -o nosort -F _qcompile_completion qcompile" in said.stderr
    return [one for one in said.stdout.split("\n") if one]


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("qcompile cal", ["calibrate"]),
        ("qcompile build --tar", ["--target"]),
        ("qcompile build m.onnx --target tensorrt", ["tensorrt-rtx", "tensorrt"]),
        ("qcompile tune m.onnx --target onnxruntime,o", ["onnxruntime,openvino"]),
        ("qcompile tune m.onnx --metric cos", ["cosine"]),
        ("qcompile run re", ["compopt default"]),  # bash's own names of files
        ("qcompile tune m.onnx --data x", ["compopt default"]),
    ],
)
def test_bash_completes(script: Path, line: str, offered: list[str]) -> None:
    assert completed(script, line) == offered


def test_completing_imports_nothing_heavy() -> None:
    code = (
        "import sys, atexit\n"
        "heavy = 'torch onnx onnxruntime numpy rich'.split()\n"
        "atexit.register(lambda: print([one for one in heavy if one in sys.modules]))\n"
        "from qcompile.cli import main\nmain([])"
    )
    asked = {"_QCOMPILE_COMPLETE": "bash_complete", "COMP_WORDS": "qcompile tune --ta", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **asked}
    )
    assert done.stdout.split("\n")[:2] == ["plain,--target", "[]"]
