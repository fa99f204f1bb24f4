"""Which precisions a target has here: by instruction set, by GPU, and against what `build` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.engines.doctor.gpu_types import gpu_types
from qcompile.engines.doctor.precisions import PrecisionState, TargetState, precision_states
from qcompile.engines.registry import engine
from qcompile.errors import QCompileError
from qcompile.spec.words import CALIBRATED, PRECISIONS

ALL = [*map(TargetState, ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"))]
AHEAD = [TargetState("tensorrt-rtx", why_not_run="no NVIDIA driver", fix="another machine")]
OnProcessor = Callable[..., None]


def found(
    targets: list[TargetState], *gpus: str, here: bool = True
) -> dict[tuple[str, str, str], PrecisionState]:
    states = precision_states(targets, [gpu_types(one) for one in gpus], here=here)
    return {(one.target, one.device, one.precision): one for one in states}


def test_every_cell_that_is_not_fast_has_a_reason(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(ALL, "sm75", "sm120")
    assert len(states) == len(PRECISIONS) * (3 + 2 * 2)
    assert all(bool(one.reason) == (one.state != "fast") for one in states.values())


@pytest.mark.parametrize(
    ("features", "fp16", "bf16", "int8"),
    [
        ((), "emulated", "emulated", "runs"),
        (("avx512_vnni",), "emulated", "emulated", "fast"),
        (("avx_vnni", "avx512_bf16"), "emulated", "fast", "fast"),
        (("amx_int8", "amx_bf16", "avx512_fp16"), "fast", "fast", "fast"),
    ],
)
def test_openvino_is_as_fast_as_the_instructions(
    on_processor: OnProcessor, features: tuple[str, ...], fp16: str, bf16: str, int8: str
) -> None:
    on_processor(*features)
    states = found(ALL)
    assert [states["openvino", "cpu", one].state for one in ("fp16", "bf16", "int8")] == [fp16, bf16, int8]
    assert states["onnxruntime", "cpu", "int8"].state == int8
    assert states["onnxruntime", "cpu", "fp16"].state == "emulated"


def test_an_arm_processor_has_dot_products(
    on_processor: OnProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor("asimd", "asimddp", "asimdhp")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    states = found(ALL)
    assert states["onnxruntime", "cpu", "int8"].state == "fast"
    assert states["onnxruntime", "cpu", "fp16"].state == "runs"
    on_processor("asimd")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    older = found(ALL)["onnxruntime", "cpu", "int8"]
    assert (older.state, "neon has no product of 8 bits" in older.reason) == ("runs", True)


def test_a_target_that_is_missing_has_nothing_and_says_what_to_install(on_processor: OnProcessor) -> None:
    on_processor("avx512_vnni")
    missing = TargetState("openvino", "cannot be imported", "cannot be imported", fix="pip install it")
    one = found([missing])["openvino", "cpu", "int8"]
    assert (one.state, one.reason, one.fix) == ("no", "cannot be imported", "pip install it")


def test_a_gpu_that_is_here_runs_what_its_tensor_cores_take(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(ALL, "sm86", "sm89")
    assert states["tensorrt", "sm86", "int8"].state == "fast"
    assert states["tensorrt", "sm86", "fp8"].state == "no"
    assert states["tensorrt", "sm89", "fp8"].state == "fast"
    assert states["tensorrt", "sm89", "int4"].state == "runs"
    assert states["tensorrt", "sm89", "nvfp4"].state == "no"


def test_a_gpu_that_is_not_here_is_built_for(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(AHEAD, "sm75", "sm120", here=False)
    assert states["tensorrt-rtx", "sm120", "nvfp4"].state == "builds"
    assert states["tensorrt-rtx", "sm75", "fp16"].state == "builds"
    assert "fp16 and int8 alone on sm75" in states["tensorrt-rtx", "sm75", "fp32"].reason
    assert states["tensorrt-rtx", "sm75", "int8"].state == "builds"  # with fp16 between its layers
    assert found(AHEAD, "sm90", here=False)["tensorrt-rtx", "sm90", "fp16"].state == "no"
    assert found(AHEAD)["tensorrt-rtx", "gpu", "fp16"].state == "builds"


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"])
def test_the_table_says_what_build_does(
    target: str, precision: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    """On whatever processor this runs: the state is fast where, and only where, the build proves it."""
    stated = found(ALL)[target, "cpu", precision].state
    model = tiny_file("mlp")
    try:
        if target == "onnxruntime" and precision in ("fp16", "bf16"):
            half = qcompile.quantize(model, tmp_path / "half.onnx", target=target, precision=precision)
            model = half.path
        qcompile.build(model, tmp_path / "built.onnx", target=target, precision=precision)
        built = True
    except QCompileError:
        built = False
    assert built == (stated in ("fast", "runs"))


@pytest.mark.skipif(bool(engine("tensorrt-rtx").why_not_build()), reason="TensorRT-RTX is not installed")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8", "nvfp4"])
def test_the_table_says_what_tensorrt_rtx_builds(
    precision: str, tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    """NVIDIA's builder is the oracle of the table of types."""
    model = tiny_file("mlp")
    if precision in CALIBRATED:
        ranges = calibrate(model, str(samples("mlp")), tmp_path / "m.ranges", targets=["tensorrt"], threads=1)
        model = qcompile.quantize(
            model, tmp_path / "q.onnx", target="tensorrt", precision=precision, ranges=ranges.path
        ).path
    for gpu in ("sm75", "sm86", "sm89", "sm120", "sm90"):
        stated = found(AHEAD, gpu, here=False)["tensorrt-rtx", gpu, precision].state
        try:
            qcompile.build(
                model, tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=[gpu]
            )
            built = True
        except QCompileError:
            built = False
        assert built == (stated == "builds"), gpu
