"""The verbs of `qcompile`: signatures with all options, and a progress bar in notebooks alone."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qcompile
from qcompile.spec.option import fields_of
from qcompile.spec.signatures import SPECS, spec_of

VERBS = sorted(set(SPECS) & set(qcompile.__all__))


@pytest.mark.parametrize("name", VERBS)
def test_a_signature_lists_every_option_with_its_default(name: str) -> None:
    parameters = inspect.signature(getattr(qcompile, name)).parameters
    assert not [one for one in parameters.values() if one.kind is one.VAR_KEYWORD]
    for option in fields_of(spec_of(name)):
        one = parameters[option.name]
        if one.kind is one.KEYWORD_ONLY and not option.required and option.table is None:
            assert one.default == option.default or name == "export"
        assert one.annotation


def test_a_signature_reads_as_an_editor_shows_it() -> None:
    text = str(inspect.signature(qcompile.build))
    assert "precision: 'Literal" in text
    assert "max_shapes: 'Sequence[str] | Mapping[str, object]' = ()" in text
    assert "data: 'Dataset | None' = None" in text
    assert inspect.signature(qcompile.tune).parameters["max_drop"].default is inspect.Parameter.empty


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_one_object_that_pickle_finds(name: str) -> None:
    verb = getattr(qcompile, name)
    assert getattr(qcompile, name) is verb
    assert pickle.loads(pickle.dumps(verb)) is verb
    assert verb.__doc__


def test_a_signature_needs_no_runtime() -> None:
    code = (
        "import inspect, sys, qcompile; assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules);"
        "inspect.signature(qcompile.build); assert not {'torch', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_script_shows_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(qcompile.QCompileError):
        qcompile.simplify(tmp_path / "absent.onnx", tmp_path / "out.onnx")
    assert capsys.readouterr() == ("", "")


CELLS = """
import numpy as np, onnx, onnx.parser, qcompile
text = '<ir_version: 9, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)' \\
    '<float[4, 4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}> {y = MatMul(x, w)}'
onnx.save(onnx.parser.parse_model(text), "m.onnx")
artifact = qcompile.calibrate("m.onnx", np.ones((4, 4), np.float32), "m.ranges")
artifact
""", """
qcompile.calibrate("m.onnx", np.ones((4, 4), np.float32), "n.ranges", progress=lambda *_: None).path.name
""", """
qcompile.load_ranges(artifact.path).plot()
"""  # fmt: skip


def test_a_notebook_shows_a_bar_and_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel; a `progress` of the caller replaces the bar."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks")
    nbclient = pytest.importorskip("nbclient", reason="notebooks")
    manager = pytest.importorskip("jupyter_client.manager", reason="notebooks")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    shown: list[tuple[int, str]] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                shown.append((cell_index, msg["content"]["data"].get("text/html", "")))
            return super().process_message(msg, cell, cell_index)

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    kernel = manager.AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(tmp_path / "k"))
    Client(book, km=kernel, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute(
        cleanup_kc=True
    )
    first = [text for index, text in shown if index == 0]
    assert any(text.startswith("<progress") for text in first), shown
    assert any("choose thresholds" in text for text in first)
    assert first[-1] == ""
    assert {index for index, _ in shown} == {0}
    results = [cell.outputs[-1].data for cell in book.cells]
    assert "<table>" in results[0]["text/html"]
    assert results[1]["text/plain"] == "'n.ranges'"
    assert results[2]["image/svg+xml"].startswith("<svg")
