"""Every verb that takes a model refuses a damaged or hostile one: one message, exit code 1, no file left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qcompile.cli import main

RTX = ["--target", "tensorrt-rtx", "--gpu", "sm86", "-o", "o.engine"]
VERBS: list[list[str]] = [
    ["inspect", "m.onnx"],
    ["export", "m.onnx", "-o", "o.onnx"],
    ["simplify", "m.onnx", "-o", "o.onnx"],
    ["calibrate", "m.onnx", "--data", "d.npz", "-o", "o.ranges"],
    ["quantize", "m.onnx", "-o", "o.onnx", "--mode", "dynamic"],
    ["build", "m.onnx", "--target", "onnxruntime", "-o", "o.onnx"],
    ["build", "m.onnx", "--target", "openvino", "-o", "o.onnx"],
    ["build", "m.onnx", *RTX],
    ["build", "m.onnx", *RTX, "--dry-run"],
    ["bench", "m.onnx", "--baseline", "m.onnx", "--max-time", "0.1"],
    ["bench", "good.onnx", "m.onnx", "--baseline", "good.onnx", "--max-time", "0.1"],
    ["diff", "m.onnx", "good.onnx"],
    ["diff", "good.onnx", "m.onnx"],
    ["diff", "--layers", "m.onnx", "m.onnx", "--data", "d.npz"],
    ["tune", "m.onnx", "--data", "d.npz", "-o", "tuned", "--max-drop", "1"],
    ["package", "triton", "m.onnx", "--name", "n", "-o", "repo"],
    ["init", "m.onnx", "--data", "d.npz", "-o", "r.toml"],
    ["auto", "m.onnx", "--data", "d.npz", "-o", "auto", "--max-drop", "1"],
]


def _sequence(model: onnx.ModelProto) -> None:
    inner = onnx.TypeProto()
    inner.CopyFrom(model.graph.output[0].type)
    model.graph.output[0].type.sequence_type.elem_type.CopyFrom(inner)


def _recursive(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("again", ["u"], ["v"], domain="own")]
    model.functions.append(helper.make_function("own", "again", ["u"], ["v"], nodes, opsets))


def _elsewhere(model: onnx.ModelProto, location: str) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def _short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = b"123"


def _zero(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0


CASES: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "a sequence": (_sequence, "output 'y' is a sequence; tensors alone are supported"),
    "a recursive function": (_recursive, "own::again -> own::again"),
    "the memory of this process": (
        lambda model: _elsewhere(model, "/proc/self/mem"),
        "external data '/proc/self/mem' of tensor 'w1': is an absolute path",
    ),
    "a link": (lambda model: _elsewhere(model, "link"), "external data 'link' of tensor 'w1': is a link to"),
    "short data": (_short, "tensor 'w1' of shape 16x32 holds 3 bytes; 2048 are required"),
    "no batch": (_zero, "input 'x' has an axis of extent 0; 1 or more is required"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_verb_refuses_it_in_one_message(
    case: str,
    tiny: Callable[..., onnx.ModelProto],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, expected = CASES[case]
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "secret").write_bytes(bytes(4096))
    Path("link").symlink_to(tmp_path / "secret")
    onnx.save(tiny("mlp"), "good.onnx")
    np.savez("d.npz", x=np.ones((4, 16), np.float32))
    model = tiny("mlp")
    change(model)
    Path("m.onnx").write_bytes(model.SerializeToString())
    before = sorted(path.name for path in folder.iterdir())
    for words in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        said = capsys.readouterr().err
        assert ended.value.code == 1, (words, said)
        assert said.count("error: ") == 1, (words, said)
        assert expected in said, words
        assert "unexpected" not in said, words
        left = sorted(path.name for path in folder.iterdir() if path.name not in ("tuned", "auto"))
        assert left == before, words
