"""Bad input: one clear message, the right exit code, never a traceback, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qcompile.cli import main


@pytest.fixture
def qc(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`qc("export", ...)` returns the exit code and everything that was printed."""

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return int(done.value.code or 0), said.out + said.err

    return call


Cli = Callable[..., tuple[int, str]]


def test_a_missing_file_names_the_nearest_one(qc: Cli, tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("mlp")
    code, said = qc("simplify", model.with_name("mlpp.onnx"), "-o", model.with_name("out.onnx"))
    assert code == 2
    assert "mlpp.onnx does not exist" in said
    assert "did you mean" in said
    assert "mlp.onnx?" in said


@pytest.mark.parametrize("size", [0, 1, 100, 900])
@pytest.mark.parametrize("verb", ["simplify", "inspect", "calibrate", "build", "quantize"])
def test_a_truncated_onnx_file_is_named(
    qc: Cli, verb: str, size: int, tiny_file: Callable[..., Path], samples: Callable[..., Path]
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
    code, said = qc(verb, model, *extra[verb])
    assert code == 1
    assert "residual.onnx" in said
    assert not output.exists()


def test_wrong_shapes_name_input_found_and_required(
    qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 3, 8, 8), np.float32))
    code, said = qc(
        "calibrate", tiny_file("residual"), "--data", tmp_path / "x.npz", "-o", tmp_path / "r.ranges"
    )
    assert code == 1
    assert "input 'x'" in said
    assert "1x3x8x8" in said
    assert "[batch,4,8,8]" in said
    assert not (tmp_path / "r.ranges").exists()


def test_nan_in_calibration_data_names_input_and_sample(
    qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    x = np.zeros((20, 4, 8, 8), np.float32)
    x[13, 2, 1, 1] = np.nan
    np.savez(tmp_path / "x.npz", x=x)
    code, said = qc(
        "calibrate", tiny_file("residual"), "--data", tmp_path / "x.npz", "-o", tmp_path / "r.ranges"
    )
    assert code == 1
    assert "x.npz[13:14]: input 'x' holds NaN" in said


def test_empty_calibration_data_is_refused(qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((0, 4, 8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    for data in (tmp_path / "x.npz", tmp_path / "folder"):
        code, said = qc("calibrate", tiny_file("residual"), "--data", data, "-o", tmp_path / "r.ranges")
        assert code == 1
        assert "at least one is required" in said


def test_a_model_that_raises_names_its_file_and_line(qc: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("def build():\n    raise ValueError('weights are on holiday')\n")
    code, said = qc("export", f"{path}:build", "-o", tmp_path / "m.onnx", "--input", "x:1x3")
    assert code == 1
    assert "weights are on holiday" in said
    assert "net.py, line 2" in said


def test_an_unknown_recipe_key_is_named_with_the_nearest_right_one(qc: Cli, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('version = 1\nname = "x"\n[model]\nsource = "m.onnx"\nopsett = 17\n[[artifact]]\n')
    code, said = qc("run", path)
    assert code == 2
    assert "'model.opsett' is unknown" in said
    assert "did you mean model.opset?" in said


def test_usage_errors_exit_with_2(qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
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
        ("doctor", "-v", "-q"),
    ):
        code, said = qc(*arguments)
        assert code == 2, (arguments, said)
        assert not out.exists()


def test_a_target_that_cannot_work_here_says_why_and_what_to_do(
    qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    from qcompile.engines import engine

    reason = engine("tensorrt").why_not_build()
    if not reason:
        pytest.skip("TensorRT and a GPU are here")
    code, said = qc("build", tiny_file("mlp"), "--target", "tensorrt", "-o", tmp_path / "o.engine")
    assert code == 1
    assert reason in said
    assert "hint:" in said


def test_errors_are_json_with_json(qc: Cli, tmp_path: Path) -> None:
    import json

    code, said = qc("inspect", tmp_path / "none.onnx", "--json")
    error = json.loads(said)
    assert code == 2
    assert error["error"] == "MissingFile"
    assert error["data"]["file"].endswith("none.onnx")


def test_an_output_that_is_a_folder_is_refused(
    qc: Cli, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    code, said = qc("simplify", tiny_file("mlp"), "-o", tmp_path)
    assert code == 2
    assert "is a folder" in said


def test_diff_exits_with_1_on_a_mismatch(qc: Cli, tiny_file: Callable[..., Path]) -> None:
    first = tiny_file("residual")
    second = tiny_file("residual", file="other.onnx", opset=13)
    assert qc("diff", first, second)[0] == 0
    model = onnx.load(first)
    next(node for node in model.graph.node if node.name == "gemm").attribute.append(
        onnx.helper.make_attribute("alpha", 1.5)
    )
    onnx.save(model, second)
    code, said = qc("diff", first, second)
    assert code == 1
    assert "MISMATCH" in said
