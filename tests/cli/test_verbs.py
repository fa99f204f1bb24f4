"""Every verb by its command: what it prints, its JSON, `-q`, its help, which loads no heavy package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from commands import MakePath, Qc

from qcompile.cli.main import group

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_pytorch_goes_in_by_its_spelling(done: Qc, torch_model: str, tmp_path: Path) -> None:
    exported = done(
        "export", torch_model, "-o", tmp_path / "net.onnx", "-i", "x:[batch,3,8,8]", "--json"
    ).json
    assert [check["passed"] for check in exported["checks"]] == [True] * 3
    said = done(
        "build", torch_model, "--target", "torchscript", "-i", "x:[batch,3,8,8]", "-o", tmp_path / "n.pt"
    ).out
    assert "same outputs as PyTorch" in said
    assert "pass" in done("diff", torch_model, tmp_path / "n.pt", "-i", "x:4x3x8x8", "--trust").out


SCRIPT = """
import sys, numpy, torch
print("a line")
def build():
    print("a line")
    return torch.nn.Linear(2, 3)
def quits():
    sys.exit(0)
def samples():
    yield {"x": numpy.ones((1, 2), "f4")}
    sys.exit(0)
"""


def test_code_of_a_user_can_neither_end_a_command_nor_print_among_its_results(qc: Qc, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    export = ["-i", "x:[batch,2]", "-o", tmp_path / "net.onnx"]
    made = qc("export", f"{tmp_path}/net.py:build", *export, "--json")
    assert made.json["kind"] == "onnx"
    assert "a line" in made.err
    for said in (
        qc("export", f"{tmp_path}/net.py:quits", *export),
        qc("calibrate", tmp_path / "net.onnx", "--data", f"{tmp_path}/net.py:samples", "-o", tmp_path / "r"),
    ):
        assert said.code == 1
        assert "raised SystemExit" in said.err


def test_quiet_prints_nothing_and_tables_name_their_units(
    done: Qc, tiny_file: MakePath, tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    assert done("simplify", model, "-o", tmp_path / "s.onnx", "-q").out == ""
    assert done("bench", model, "--baseline", model, "--max-time", 0.2, "-q").out == ""
    table = done("bench", model, "--baseline", model, "--max-time", 0.2).out
    for word in ("latency ms", "samples/s", "speed-up", "memory", "(baseline)"):
        assert word in table


def test_inspect_lists_nodes_with_their_precision(done: Qc, tiny_file: MakePath) -> None:
    model = tiny_file("residual")
    nodes = {node["name"]: node for node in done("inspect", model, "--nodes", "--json").json["nodes"]}
    assert nodes["conv1"] == {
        "name": "conv1", "operator": "Conv", "precision": "fp32",
        "tensor_cores": "K 4 -> 8, N 4 -> 8, 75.0% zeros",
    }  # fmt: skip
    assert nodes["relu1"]["precision"] == ""
    assert "K 4 -> 8" in done("inspect", model, "--nodes").out
    assert "K 4 -> 16" in done("inspect", model, "--nodes", "--precision", "int8").out


VERBS = tuple(
    "auto init export simplify calibrate ranges quantize tune build refit bench gate diff "
    "reproduce report run sweep worker package inspect doctor".split()
)
_GROUPS = {"ranges": ("show", "merge", "cache"), "package": ("triton",)}
COMMANDS = (
    *(verb for verb in VERBS if verb not in _GROUPS),
    *(f"{group} {command}" for group, commands in _GROUPS.items() for command in commands),
)
LINES = ("--version", "", *_GROUPS, *COMMANDS, "<tab>")
HEAVY = (
    "torch", "onnx", "onnxruntime", "numpy", "tensorrt", "tensorrt_rtx", "polygraphy", "rich", "onnxsim",
    "numba", "safetensors", "jinja2",
)  # fmt: skip


Shown = dict[str, tuple[str, list[str]]]
PROBE = """
import contextlib, io, json, os, sys
import qcompile
from qcompile.cli import main
dir(qcompile)
shown, lines, heavy = {}, *map(json.loads, sys.argv[1:])
for line in lines:
    words = [*line.split(), "--help"]
    if line == "--version":
        words = [line]
    elif line == "<tab>":
        words = []
        os.environ.update(_QCOMPILE_COMPLETE="bash_complete", COMP_WORDS="qcompile tune --ta", COMP_CWORD="2")
    said = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(words)
    said.flush()
    shown[line] = said.buffer.getvalue().decode(), [name for name in heavy if name in sys.modules]
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown() -> Shown:
    """What each command says of itself, and the heavy packages in memory after it, in one new process."""
    words = [sys.executable, "-c", PROBE, json.dumps(LINES), json.dumps(HEAVY)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: Shown = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("command", LINES)
def test_help_and_completion_load_nothing_heavy(shown: Shown, command: str) -> None:
    said, heavy = shown[command]
    assert said
    assert heavy == []


def test_completion_offers_an_option(shown: Shown) -> None:
    assert shown["<tab>"][0].startswith("plain,--target")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_and_the_common_options(shown: Shown, command: str) -> None:
    said, _ = shown[command]
    examples = [line.split() for line in said.partition("Examples:")[2].splitlines()]
    typed = ["qcompile", *command.split()]
    assert any(line[: len(typed)] == typed for line in examples)
    for option in ("--verbose", "--quiet", "--json", "--help"):
        assert option in said
    assert ("--output" in said) or command in ("diff", "inspect", "doctor", "ranges show", "worker")


@pytest.mark.parametrize(
    ("group", "listed"), [("", VERBS), ("ranges", ("show", "merge", "cache"))], ids=["qcompile", "ranges"]
)
def test_commands_are_listed_in_the_order_of_the_road(
    shown: Shown, group: str, listed: tuple[str, ...]
) -> None:
    lines = [line.split() for line in shown[group][0].partition("Commands:")[2].splitlines()]
    assert tuple(words[0] for words in lines if words) == listed


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cal", ["calibrate"]),
        ("build --tar", ["--target"]),
        ("build m.onnx --target tensorrt", ["tensorrt-rtx", "tensorrt"]),
        ("tune m.onnx --target onnxruntime,o", ["onnxruntime,openvino"]),
        ("tune m.onnx --metric cos", ["cosine"]),
        ("run re", ["files"]),  # the shell's own names
        ("tune m.onnx --data x", ["files"]),
    ],
)
def test_a_shell_completes(line: str, offered: list[str]) -> None:
    *words, last = line.split(" ")
    found = ShellComplete(group, {}, "qcompile", "_QCOMPILE_COMPLETE").get_completions(words, last)
    assert [one.value if one.type == "plain" else f"{one.type}s" for one in found] == offered
