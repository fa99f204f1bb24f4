"""The process with TensorFlow: its protocol, and its errors. No TensorFlow is needed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from qcompile.errors import EngineUnavailable, InvalidOption, MissingFile, ModelError
from qcompile.model.tensorflow.process import TensorFlowProcess, tensorflow_python

without_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow is installed")


def script(path: Path, text: str) -> str:
    """An executable shell script in place of an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_is_spelled_with_its_package() -> None:
    assert tensorflow_python([]) == sys.executable
    assert tensorflow_python([f"tensorflow={sys.executable}"]) == sys.executable


@pytest.mark.parametrize("text", ["", "tensorflow", "tensorflow=", "tensorrt=/usr/bin/python3"])
def test_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="tensorflow=INTERPRETER is required"):
        tensorflow_python([text])


def test_an_interpreter_that_is_missing_or_given_twice_is_refused() -> None:
    with pytest.raises(MissingFile, match="no executable /nothing/python"):
        tensorflow_python(["tensorflow=/nothing/python"])
    with pytest.raises(InvalidOption, match="given twice"):
        tensorflow_python([f"tensorflow={sys.executable}"] * 2)


def test_the_process_tells_its_versions() -> None:
    with TensorFlowProcess(sys.executable, "m.keras") as process:
        answer = process.ask("hello")
    assert answer["versions"]["numpy"] == np.__version__
    assert set(answer["missing"]) <= {"tensorflow", "tf2onnx"}


@without_tensorflow
def test_an_interpreter_without_tensorflow_is_refused_with_both_ways_to_install_it() -> None:
    with TensorFlowProcess(sys.executable, "m.keras") as process, pytest.raises(EngineUnavailable) as caught:
        process.require_packages()
    assert "m.keras: tensorflow and tf2onnx cannot be imported by" in str(caught.value)
    assert "qcompile[tensorflow]" in caught.value.hint
    assert "`python` tensorflow=tf/bin/python" in caught.value.hint


@without_tensorflow
def test_an_error_in_the_process_is_an_error_of_the_model_and_it_serves_on(tmp_path: Path) -> None:
    with TensorFlowProcess(sys.executable, "m") as process:
        with pytest.raises(ModelError, match="No module named"):
            process.ask("load", path=str(tmp_path), kind="savedmodel", signature="", trust=False)
        assert process.ask("hello")["ok"]


def test_a_request_that_it_does_not_know_is_answered_with_an_error() -> None:
    with TensorFlowProcess(sys.executable, "m") as process, pytest.raises(ModelError, match="do_dance"):
        process.ask("dance")


def test_a_process_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo out of luck >&2; exit 3")
    with TensorFlowProcess(python, "m.keras") as process, pytest.raises(ModelError) as caught:
        process.ask("hello")
    assert "died during 'hello'; it said:\n    out of luck" in str(caught.value)


def test_a_process_that_answers_nonsense_is_named(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo welcome")
    with (
        TensorFlowProcess(python, "m.keras") as process,
        pytest.raises(ModelError, match="answered b'welcome"),
    ):
        process.ask("hello")


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be run"):
        TensorFlowProcess(str(tmp_path), "m.keras")


def test_files_of_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the folder')")
    monkeypatch.chdir(tmp_path)
    with TensorFlowProcess(sys.executable, "m.keras") as process:
        assert process.ask("hello")["ok"]
