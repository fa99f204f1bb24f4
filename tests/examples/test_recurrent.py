"""examples/recurrent: dynamic length; dynamic INT8 quantizes the LSTM, static does not; a GRU beside it."""

from __future__ import annotations

from pathlib import Path

from small_examples import built, copied, trains, value

import qcompile
from qcompile.artifact import read_manifest


def test_the_lines_are_read_in_every_precision(tmp_path: Path) -> None:
    folder = copied("recurrent", tmp_path)
    made = built(folder, "onnx-int8-dynamic", "onnx-int8-static", "openvino-fp32", samples=32).artifacts
    proofs = {name: read_manifest(path).proof["layers_by_precision"] for name, path in made.items()}
    assert "LSTM" in proofs["onnx-int8-static"]["fp32"]
    assert "LSTM" in proofs["openvino-fp32"]["fp32"]
    assert "LSTM" not in proofs["onnx-int8-dynamic"].get("fp32", {})
    assert made["onnx-int8-dynamic"].stat().st_size < 0.4 * made["onnx-int8-static"].stat().st_size
    for path in made.values():
        assert value(folder, path, "top1") > 0.96
    io = read_manifest(made["openvino-fp32"]).io
    assert io is not None
    assert io.inputs[0].shape == ("batch", "length", 8)


def test_training_runs(tmp_path: Path) -> None:
    trains(copied("recurrent", tmp_path), tmp_path / "w.safetensors")


def test_the_gru_is_exported_and_its_products_become_int8(tmp_path: Path) -> None:
    folder = copied("recurrent", tmp_path)
    shape = ["columns:[batch,length=8..128,8]"]
    qcompile.export(f"{folder}/model.py:build_gru", tmp_path / "gru.onnx", inputs=shape)
    int8 = qcompile.quantize(
        tmp_path / "gru.onnx", tmp_path / "int8.onnx", target="onnxruntime", mode="dynamic", allow_loss=True
    )
    assert int8.path.stat().st_size < 0.6 * (tmp_path / "gru.onnx").stat().st_size
    assert value(folder, tmp_path / "gru.onnx", "top1") > 0.95
    assert value(folder, int8.path, "top1") > 0.95
