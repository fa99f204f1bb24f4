"""Bad input: one clear message, the right exit code, never a traceback, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

MakePath = Callable[..., Path]

Printed = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("size", [0, 1, 100, 900])
@pytest.mark.parametrize("verb", ["simplify", "inspect", "calibrate", "build", "quantize"])
def test_a_truncated_onnx_file_is_named(
    printed: Printed, verb: str, size: int, tiny_file: MakePath, samples: MakePath
) -> None:
    model = tiny_file("residual")
    model.write_bytes(model.read_bytes()[:size])
    output = model.with_name("out.file")
    extra: dict[str, list[object]] = {
        "simplify": ["-o", output],
        "inspect": [],
        "calibrate": ["--data", samples("residual"), "-o", output],
        "build": ["--target", "onnxruntime", "-o", output],
        "quantize": ["--mode", "dynamic", "-o", output],
    }
    code, said = printed(verb, model, *extra[verb])
    assert code == 1
    assert "residual.onnx" in said
    assert not output.exists()


def test_empty_calibration_data_are_an_error(printed: Printed, tiny_file: MakePath, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((0, 4, 8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    for data in ("x.npz", "folder"):
        output = tmp_path / "r.ranges"
        code, said = printed("calibrate", tiny_file("residual"), "--data", tmp_path / data, "-o", output)
        assert (code, "at least one is required" in said, output.exists()) == (1, True, False)


def test_usage_errors_exit_with_2(printed: Printed, tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    out = tmp_path / "o"
    for arguments in (
        ("no-such-verb",),
        ("export",),
        ("build", model, "--target", "tensort", "-o", out),
        ("build", model, "--target", "tensorrt-rtx", "--gpu", "sm1", "-o", out),
        ("build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "--min-shapes", "x:zz:1", "-o", out),
        ("quantize", model, "-o", out),
        ("calibrate", model, "--data", tmp_path / "none.npz", "-o", out),
        ("calibrate", model, "--data", model, "-o", out),
        ("bench", model, "--baseline", model, "--metric", "top7"),
        ("run", tmp_path / "none.toml"),
        ("simplify", model, "-o", tmp_path),
        ("doctor", "-v", "-q"),
    ):
        code, said = printed(*arguments)
        assert code == 2, (arguments, said)
        assert not out.exists()


def test_a_target_that_cannot_work_here_says_why_and_what_to_do(
    printed: Printed, tiny_file: MakePath, tmp_path: Path
) -> None:
    from qcompile.engines import engine

    reason = engine("tensorrt").why_not_build()
    if not reason:
        pytest.skip("TensorRT and a GPU are here")
    code, said = printed("build", tiny_file("mlp"), "--target", "tensorrt", "-o", tmp_path / "o.engine")
    assert code == 1
    assert reason in said
    assert "hint:" in said


def test_diff_exits_with_1_on_a_mismatch(printed: Printed, tiny_file: MakePath) -> None:
    first = tiny_file("residual")
    second = tiny_file("residual", file="other.onnx", opset=13)
    assert printed("diff", first, second)[0] == 0
    model = onnx.load(first)
    next(node for node in model.graph.node if node.name == "gemm").attribute.append(
        onnx.helper.make_attribute("alpha", 1.5)
    )
    onnx.save(model, second)
    code, said = printed("diff", first, second)
    assert code == 1
    assert "MISMATCH" in said
