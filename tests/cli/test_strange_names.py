"""Names that a terminal would obey are shown as escapes by every verb, on both streams."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import rich.console
from commands import MakePath

from qcompile.cli.session import Session
from qcompile.cli.tables import add_row, make_table

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
BAD = "\x1b[2J\x9b31m\u202e[bold][/x][link=http://a.b]\nwarning: faked"

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(printed: Call) -> Call:
    """Runs a command; returns its code and what both streams got, of native libraries too."""

    def run(*words: object) -> tuple[int, str]:
        code, said = printed(*words)
        found = OBEYED.search(said)
        assert not found, repr(said[max(found.start() - 80, 0) : found.end() + 80])
        assert "\nwarning: faked" not in "\n" + said
        return code, said

    return run


@pytest.fixture
def strange(tiny_file: MakePath) -> Path:
    """The residual model; every name of it, and every text, holds what a terminal obeys."""
    path = tiny_file("residual")
    model = onnx.load(path)
    graph = model.graph
    for node in graph.node:
        node.name += BAD
        node.doc_string = BAD
        for names in (node.input, node.output):
            names[:] = [name + BAD for name in names]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name += BAD
        value.doc_string = BAD
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = f"batch{BAD}"
    graph.name = model.producer_name = model.domain = model.doc_string = BAD
    onnx.save(model, path)
    return path


@pytest.fixture
def strange_data(tmp_path: Path) -> Path:
    """Samples of that model."""
    path = tmp_path / "data.npz"
    np.savez(path, **{f"x{BAD}": np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype("f4")})
    return path


def test_verbs_show_the_names_of_a_strangers_model_as_escapes(
    strange: Path, strange_data: Path, tmp_path: Path, call: Call
) -> None:
    ranges = tmp_path / "m.ranges"
    words: list[list[object]] = [
        ["inspect", strange, "--nodes"],
        ["inspect", strange, "--json"],
        ["calibrate", strange, "--data", strange_data, "-o", ranges, "--threads", 1],
        ["ranges", "show", ranges],
        ["ranges", "cache", ranges, "-o", tmp_path / "c", "--tensorrt", "8.5.3"],
        ["quantize", strange, "-o", tmp_path / "i.onnx", "--ranges", ranges, "-v"],
        ["build", strange, "--target", "onnxruntime", "-o", tmp_path / "b.onnx"],
        ["package", "triton", strange, "--name", "m", "-o", tmp_path / "repository"],
        ["init", strange, "-o", tmp_path / "recipe.toml"],
    ]
    said = {f"{one[0]} {number}": call(*one) for number, one in enumerate(words)}
    refused = {name: text for name, (code, text) in said.items() if code and name != "ranges 4"}
    assert not refused
    assert r"x\x1b[2J\x9b31m\u202e[bold][/x][link=http://a.b]\nwarning" in said["inspect 0"][1]
    # A line end in a note would begin a key of the recipe, which runs next.
    recipe = (tmp_path / "recipe.toml").read_text()
    assert "\nwarning: faked" not in recipe
    assert not OBEYED.search(recipe)


@pytest.mark.slow
@pytest.mark.usefixtures("short_blocks")
def test_verbs_that_start_processes_show_them_as_escapes_too(
    strange: Path, tmp_path: Path, call: Call
) -> None:
    half = tmp_path / "half.onnx"
    for words in (
        ["quantize", strange, "--precision", "fp16", "-o", half],
        ["simplify", strange, "-o", tmp_path / "s.onnx", "-v"],
        ["build", strange, "--target", "openvino", "-o", tmp_path / "v.onnx"],
        ["build", strange, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", tmp_path / "e.engine"],
        ["bench", strange, "--baseline", strange, "--threads", 1, "--max-time", "0.01"],
        ["diff", strange, half],
        ["diff", strange, half, "--layers", "--samples", "2"],
    ):
        code, said = call(*words)
        assert code == 0, said


def test_names_in_a_manifest_a_recipe_and_results_are_shown_as_escapes(
    tiny_file: MakePath, tmp_path: Path, call: Call
) -> None:
    model = tiny_file("elementwise")
    assert call("build", model, "--target", "onnxruntime", "-o", tmp_path / "b.onnx")[0] == 0
    manifest = json.loads((tmp_path / "b.onnx.json").read_text())
    manifest["warnings"] = [BAD]
    (tmp_path / "b.onnx.json").write_text(json.dumps(manifest))
    assert r"\x1b[2J" in call("inspect", tmp_path / "b.onnx")[1]
    (tmp_path / "recipe.toml").write_text(f"version = 1\n{json.dumps(BAD)} = 1\n")
    assert r"\x1b[2J" in call("run", tmp_path / "recipe.toml")[1]
    (tmp_path / "results.json").write_text(json.dumps({"kind": BAD, "version": BAD}))
    call("report", tmp_path / "results.json", "-o", tmp_path / "r.html")
    (tmp_path / "recipe.toml").write_text(f"version = {json.dumps(BAD)}\n")
    call("run", tmp_path / "recipe.toml", "--json")


@pytest.mark.skipif(os.name == "nt", reason="file names of POSIX")
def test_names_of_files_and_what_is_typed_are_shown_as_escapes(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "a\x1b[2Jb\u202e\udcff.onnx"
    path.write_bytes(b"no model")
    for verb in (["inspect", path], ["simplify", path, "-o", tmp_path / "o.onnx"], ["inspect", "\x1b[2J"]):
        code, said = call(*verb)
        assert code, said
        assert r"\x1b[2J" in said
    call("\x1b[2J")
    call("build", path, "--target", "\x1b[2J", "-o", "x")
    call("inspect", path, "--\x1b[2J")


def test_what_code_raises_is_shown_as_escapes(tiny_file: MakePath, tmp_path: Path, call: Call) -> None:
    (tmp_path / "d.py").write_text(f"def data():\n    raise ValueError({BAD!r})\n")
    data = f"{tmp_path / 'd.py'}:data"
    code, said = call("calibrate", tiny_file("mlp"), "--data", data, "-o", tmp_path / "m.ranges", "-v")
    assert code == 1
    assert r"\x1b[2J" in said


def test_markup_in_a_progress_text_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """`[/x]` closes nothing, which rich would raise for."""
    written = io.StringIO()
    console = rich.console.Console
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: console(file=written, force_terminal=True, width=200)
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    session = Session(verbose=False, quiet=False, as_json=False)
    with session.working():
        session.progress(f"layer {BAD}", 1, 2)
        session._display.refresh()
    shown = written.getvalue()
    assert r"\x1b[2J\x9b31m\u202e[bold][/x]" in shown
    assert "\x1b[2J" not in shown


def test_names_in_a_table_begin_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(verbose=False, quiet=False, as_json=False)
    table = make_table(BAD, f"column {BAD}", "second")
    add_row(table, BAD, BAD)
    session.table(table)
    out = capsys.readouterr().out
    assert not OBEYED.search(out)
    assert "\nwarning" not in out
    assert "[bold][/x]" in out
