"""examples/digits: its recipe builds for the processor and for GPUs, and the accuracy stays."""

from __future__ import annotations

from pathlib import Path

from small_examples import built, copied, value

from qcompile.artifact import read_manifest


def test_int8_keeps_the_accuracy_and_the_engine_holds_it(tmp_path: Path) -> None:
    folder = copied("digits", tmp_path)
    made = built(folder, "onnx-int8-static", "openvino-int8", "rtx-int8", samples=64).artifacts
    for name in ("onnx-int8-static", "openvino-int8"):
        assert value(folder, made[name], "top1") > 0.985
        assert sum(read_manifest(made[name]).proof["layers_by_precision"]["int8"].values()) == 22
    assert made["rtx-int8"].stat().st_size > 500_000
