"""Refusals of every verb name the user's file, the node and a way out; no temporary file, no source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Qc, qc
from onnx import numpy_helper

import qcompile
from qcompile.core.files import temporary_folder, writing
from qcompile.errors import BuildError, ModelError, QCompileError
from qcompile.model.graph.onnx_file import Graph, read_graph
from qcompile.model.graph.saturating_kernels import probe
from qcompile.model.sessions.session import make_session, session_options

__all__ = ["qc"]

pytestmark = pytest.mark.usefixtures("folder")
PlainWords = Callable[..., None]
RTX = ["--target", "tensorrt-rtx", "--gpu", "sm86", "-o", "o.engine"]
MODELS = {
    "good": "(float[n,8] x) => (float[n,8] y) { [mm] m = MatMul(x, w) [rl] y = Relu(m) }",
    "fixed": "(float[n,5] x) => (float[m,8] y) { [fix] s = Reshape(x, to) [mm] y = MatMul(s, w) }",
    "table": "(int64[n,4] x) => (float[n,4,8] y) { [rows] e = Gather(w, x) [mm] y = MatMul(e, w) }",
    "foreign": "(float[n,8] x) => (float[n,8] y) { [odd] z = other.Odd(x) [mm] y = MatMul(z, w) }",
    "lacked": "(float[n,8,8] x) => (float[n] y) { [mm] m = MatMul(x, w) [dt] y = Det(m) }",
}
RESHAPE = "fixed.onnx: ONNX Runtime fails on x:{}x5: Reshape 'fix': The input tensor cannot be reshaped"
GATHER = "Gather 'rows': indices element out of data bounds, idx=99"
ODD = "foreign.onnx: ONNX Runtime refuses it: Odd 'odd': other:Odd(-1) is not a registered function/op"
REAL = "give real samples with --data"
CASES: dict[str, tuple[str, str]] = {
    "export fixed.onnx -o o.onnx": (RESHAPE.format(1), REAL),
    "simplify fixed.onnx -o o.onnx": (RESHAPE.format(1), REAL),
    "quantize fixed.onnx -o o.onnx --mode dynamic": (RESHAPE.format(1), REAL),
    "quantize fixed.onnx -o o.onnx --precision fp16": (RESHAPE.format(1), REAL),
    "calibrate table.onnx --data table.npz -o o.ranges": (
        f"table.npz[0:1]: the model failed on it: {GATHER}", "index",
    ),
    "tune table.onnx --data table.npz -o tuned --max-drop 1": (GATHER, "index"),
    "build fixed.onnx --target onnxruntime -o o.onnx": (RESHAPE.format(1), REAL),
    "build fixed.onnx --target onnxruntime -o o.onnx --data fixed.npz": (RESHAPE.format(4), "these extents"),
    "build fixed.onnx --target onnxruntime -o o.onnx --precision int8 --mode dynamic": (
        RESHAPE.format(1), REAL,
    ),
    "build fixed.onnx --target openvino -o o.onnx": (
        "fixed.onnx: OpenVINO does not take x:1x5: Reshape 'fix': Non-'-1' output dimensions", REAL,
    ),
    f"build fixed.onnx {' '.join(RTX)}": ("fixed.onnx: tensorrt_rtx", "--min-shapes"),
    f"build lacked.onnx {' '.join(RTX)}": ("has no Det: node 'dt'", "build for onnxruntime"),
    f"build foreign.onnx {' '.join(RTX)} --precision fp16": (ODD, "ONNX operators"),
    "build foreign.onnx --target onnxruntime -o o.onnx": (ODD, "ONNX operators"),
    "build foreign.onnx --target openvino -o o.onnx": (
        "foreign.onnx: OpenVINO refuses it: Odd 'odd': No conversion rule", "ONNX operators",
    ),
    "diff table.onnx table.onnx --data table.npz": (
        f"table.onnx: ONNX Runtime fails on x:4x4: {GATHER}", "index",
    ),
    "diff --layers fixed.onnx fixed.onnx --data fixed.npz": (RESHAPE.format(1), "these extents"),
    "bench table.onnx --baseline table.onnx --data table.npz --max-time 0.1": (GATHER, "index"),
    "run recipe.toml": (RESHAPE.format(1), "give real samples"),
}  # fmt: skip
RECIPE = """
version = 1
name = "net"
[model]
source = "fixed.onnx"
[[artifact]]
name = "fp32"
target = "onnxruntime"
precision = "fp32"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of models and samples, which is the working folder."""
    place = tmp_path / "of the user"
    place.mkdir()
    monkeypatch.chdir(place)
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    for name, body in MODELS.items():
        text = f'<ir_version: 8, opset_import: ["" : 17, "other" : 1]> g {body}'
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
        if "to" in body:
            model.graph.initializer.append(numpy_helper.from_array(np.array([7, 8]), "to"))
        onnx.save(model, f"{name}.onnx")
    np.savez("fixed.npz", x=np.ones((4, 5), np.float32))
    np.savez("good.npz", x=np.ones((4, 8), np.float32))
    np.savez("table.npz", x=np.full((4, 4), 99))
    Path("recipe.toml").write_text(RECIPE)


@pytest.mark.parametrize("command", CASES)
def test_a_refusal_names_the_users_file_the_node_and_the_way_out(
    command: str, plain_words: PlainWords, qc: Qc
) -> None:
    for package, word in (("openvino", "openvino"), ("tensorrt_rtx", "tensorrt-rtx")):
        if word in command:
            pytest.importorskip(package)
    said = qc(*command.split(), "-q", "--json")
    assert said.code == 1, said
    plain_words(said.out, said.err)
    error = said.json if said.out.startswith("{") else {}
    assert CASES[command][0] in (error.get("message") or said.err)
    assert CASES[command][1] in (error.get("hint") or said.err)


def test_what_a_manifest_says_of_a_comparison_that_was_not_made_is_plain(plain_words: PlainWords) -> None:
    """OpenVINO gathers rows beyond a table, which ONNX Runtime refuses."""
    pytest.importorskip("openvino")
    built = qcompile.build("table.onnx", "o.onnx", target="openvino", data="table.npz")
    text = Path("o.onnx.json").read_text()
    assert any("not compared with its graph's: the graph: ONNX Runtime fails on x:4x4: Gather 'rows'" in text
               for text in built.manifest.warnings)  # fmt: skip
    plain_words(text)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_real_samples_are_no_way_out_of_a_graph_that_cannot_be_compiled(
    precision: str, plain_words: PlainWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded from OpenVINO 2026.4, of a TopK whose k is too large; an INT8 graph is a temporary file."""
    openvino = pytest.importorskip("openvino")
    text = "\n".join(
        (
            "Exception from src/inference/src/cpp/core.cpp:117:",
            "Check 'static_cast<size_t>(top_k) <= src_dims[axis]' failed at src/plugins/nodes/topk.cpp:2088:",
            "TopK node with name 'mm' K (9) exceeds the axis dimension (4).",
        )
    )

    def refuse(*_: object) -> None:
        raise RuntimeError(text)

    qcompile.calibrate("good.onnx", "good.npz", "r.ranges", targets=["openvino"])
    probe("openvino")  # which compiles, too, once
    monkeypatch.setattr(openvino.Core, "compile_model", refuse)
    options: dict[str, Any] = {"target": "openvino", "precision": precision}
    with pytest.raises(BuildError) as refused:
        qcompile.build("good.onnx", "o.onnx", **options, ranges="r.ranges" if precision == "int8" else None)
    plain_words(refused.value.message, refused.value.hint, json.dumps(refused.value.as_json()))
    words = "good.onnx: OpenVINO cannot compile it: MatMul 'mm': K (9) exceeds the axis dimension (4)."
    assert refused.value.message.startswith(words)
    assert "build for another target" in refused.value.hint
    assert "samples" not in refused.value.hint


def test_a_graph_that_no_message_holds_is_named_by_its_file(plain_words: PlainWords) -> None:
    """Graphs over 2 GB go to ONNX Runtime as temporary files."""

    class Large(Graph):
        def content(self) -> None:
            return None

    graph = Large(read_graph(Path("foreign.onnx")).model, Path("foreign.onnx"))
    with pytest.raises(ModelError) as refused:
        make_session(graph, session_options())
    assert refused.value.message.startswith(ODD)
    plain_words(str(refused.value), json.dumps(refused.value.as_json()))


@pytest.mark.parametrize("shown", ["my model.onnx", ""])
def test_errors_that_leave_a_temporary_folder_name_what_the_user_gave(
    shown: str, plain_words: PlainWords
) -> None:
    with pytest.raises(QCompileError) as caught, temporary_folder("test", shown) as place:
        _fail_on(place)
    error, file = caught.value, Path("my model.onnx")
    assert error.message == f"my model.onnx: bad ({shown or 'x.bin'}: worse)"
    assert error.hint == "look at my model.onnx"
    assert error.data == {"file": file, "files": ["my model.onnx", shown or "other"]}
    plain_words(json.dumps(error.as_json()))


def _fail_on(place: Path) -> None:
    file = place / "my model.onnx"
    file.touch()
    message, hint = f"{file}: bad ({place}/x.bin: worse)", f"look at {os.path.realpath(file)}"
    raise QCompileError(message, hint=hint, file=file, files=[str(file), str(place / "other" / "part.bin")])


def test_errors_of_an_unfinished_output_name_it_and_its_side_files(
    plain_words: PlainWords,
) -> None:
    with pytest.raises(QCompileError) as caught, writing(Path("sub dir/m.onnx")) as path:
        raise QCompileError(f"{path}: bad: {path}.data", hint=f"see {path}.json", file=path)
    assert caught.value.message == "sub dir/m.onnx: bad: sub dir/m.onnx.data"
    assert caught.value.data == {"file": Path("sub dir/m.onnx")}
    plain_words(json.dumps(caught.value.as_json()))
