"""`--untrusted` on the command line: which verbs take it, what it refuses, how a crash is shown."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import pytest
from commands import MakePath, Qc
from reference_pages import verbs

from qcompile.core.processes.untrusted import WATCHED, is_child

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
TRUSTED_INPUT = {"doctor", "worker"}
"""Verbs that read no model, data or artifact."""


def test_every_verb_that_reads_files_takes_it() -> None:
    flags = {
        name.removeprefix("qcompile "): {
            flag for one in verb.get_params(click.Context(verb)) for flag in one.opts
        }
        for name, verb in verbs()
    }
    assert len(flags) > 15
    assert {name for name, known in flags.items() if "--untrusted" not in known} == TRUSTED_INPUT
    assert all({"--memory-limit-gb", "--time-limit-s"} <= flags[name] for name in {*flags} - TRUSTED_INPUT)


def test_trust_contradicts_it(qc: Qc, tiny_file: MakePath) -> None:
    model = tiny_file("mlp")
    code, _, err = qc("bench", model, "--baseline", model, "--trust", "--untrusted")
    assert code == 2
    assert "--untrusted and --trust exclude each other" in err


def test_limits_need_it(qc: Qc, tiny_file: MakePath) -> None:
    for option in ("--memory-limit-gb", "--time-limit-s"):
        code, _, err = qc("inspect", tiny_file("mlp"), option, "4")
        assert code == 2
        assert "need --untrusted" in err
        code, _, err = qc("inspect", tiny_file("mlp"), "--untrusted", option, "nan")
        assert code == 2
        assert f"{option} nan: " in err


@linux
def test_a_recipe_with_trust_is_refused(qc: Qc, tmp_path: Path) -> None:
    recipe = '[model]\nsource = "m.pt2"\ntrust = true\n[[artifact]]\nname = "a"\ntarget = "onnxruntime"\n'
    (tmp_path / "recipe.toml").write_text(f'version = 1\nname = "m"\n{recipe}')
    code, _, err = qc("run", tmp_path / "recipe.toml", "--untrusted")
    assert code == 2
    assert "--untrusted and model.trust of the recipe exclude each other" in err


@linux
def test_a_crash_is_json_with_json(qc: Qc, tiny_file: MakePath, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import os\ndef samples():\n    print('half of {')\n    os.abort()\n")
    words = ["calibrate", tiny_file("mlp"), "--data", f"{tmp_path / 'data.py'}:samples"]
    code, out, _ = qc(*words, "-o", tmp_path / "m.ranges", "--untrusted", "--json")
    assert code == 1
    said = json.loads(out)
    assert said["error"] == "WorkerError"
    assert said["message"] == "calibrate: its process crashed (SIGABRT) in native code that read the files"
    assert not (tmp_path / "m.ranges").exists()


@linux
def test_what_the_verb_says_passes_through(qc: Qc, tiny_file: MakePath, tmp_path: Path) -> None:
    code, out, err = qc("inspect", tiny_file("mlp"), "--untrusted")
    assert (code, "x:[batch,16]:float32" in out, err) == (0, True, "")
    code, out, _ = qc("inspect", tmp_path / "none.onnx", "--untrusted", "--json")
    assert (code, json.loads(out)["error"]) == (2, "MissingFile")


def test_a_variable_that_was_left_over_does_not_switch_the_limits_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in ("", "0", f"{os.getpid()}:1800", "x:y"):
        monkeypatch.setenv(WATCHED, value)
        assert not is_child()
