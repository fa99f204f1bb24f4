"""examples/lstm: dynamic length; dynamic INT8 quantizes the LSTM, static INT8 does not."""

from __future__ import annotations

from pathlib import Path

from small_examples import built, copied, trains, value

from qcompile.artifact import read_manifest


def test_the_lines_are_read_in_every_precision(tmp_path: Path) -> None:
    folder = copied("lstm", tmp_path)
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
    trains(copied("lstm", tmp_path), tmp_path / "w.safetensors")
