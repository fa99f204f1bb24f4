"""Which precisions a target has here: by instruction set, by GPU, and against what `build` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import qcompile
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.engines.doctor import gpus as home
from qcompile.engines.doctor.gpu_types import gpu_types
from qcompile.engines.doctor.gpus import gpus_here
from qcompile.engines.doctor.machine import Machine, this_machine
from qcompile.engines.doctor.precisions import Installed, PrecisionState, precision_states
from qcompile.engines.gpu import Gpu
from qcompile.engines.registry import engine
from qcompile.errors import QCompileError
from qcompile.spec.words import CALIBRATED, PRECISIONS

ALL = dict.fromkeys(["onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"], Installed())
OnProcessor = Callable[..., None]


def found(
    installed: dict[str, Installed], machine: Machine, *gpus: str, here: bool = True
) -> dict[tuple[str, str, str], PrecisionState]:
    states = precision_states(installed, machine, [gpu_types(one) for one in gpus], here=here)
    return {(one.target, one.device, one.precision): one for one in states}


def test_every_cell_that_is_not_fast_has_a_reason(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(ALL, this_machine(), "sm75", "sm120")
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
    states = found(ALL, this_machine())
    assert [states["openvino", "cpu", one].state for one in ("fp16", "bf16", "int8")] == [fp16, bf16, int8]
    assert states["onnxruntime", "cpu", "int8"].state == int8
    assert states["onnxruntime", "cpu", "fp16"].state == "emulated"


def test_an_arm_processor_has_dot_products(on_processor: OnProcessor) -> None:
    on_processor()
    machine = replace(this_machine(), architecture="aarch64", features=("asimd", "asimddp", "asimdhp"))
    states = found(ALL, machine)
    assert states["onnxruntime", "cpu", "int8"].state == "fast"
    assert states["onnxruntime", "cpu", "fp16"].state == "runs"
    older = found(ALL, replace(machine, features=("asimd",)))["onnxruntime", "cpu", "int8"]
    assert (older.state, "dot product, I8MM" in older.reason) == ("runs", True)


def test_a_target_that_is_missing_has_nothing_and_says_what_to_install(on_processor: OnProcessor) -> None:
    on_processor("avx512_vnni")
    missing = Installed("openvino cannot be imported", "openvino cannot be imported", "pip install it")
    one = found({"openvino": missing}, this_machine())["openvino", "cpu", "int8"]
    assert (one.state, one.reason, one.fix) == ("no", "openvino cannot be imported", "pip install it")


def test_a_gpu_that_is_here_runs_what_its_tensor_cores_take(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(ALL, this_machine(), "sm86", "sm89")
    assert states["tensorrt", "sm86", "int8"].state == "fast"
    assert states["tensorrt", "sm86", "fp8"].state == "no"
    assert states["tensorrt", "sm89", "fp8"].state == "fast"
    assert states["tensorrt", "sm89", "int4"].state == "runs"
    assert states["tensorrt", "sm89", "nvfp4"].state == "no"


def test_a_gpu_that_is_not_here_is_built_for(on_processor: OnProcessor) -> None:
    on_processor()
    ahead = {"tensorrt-rtx": Installed(why_not_run="no NVIDIA driver", fix="another machine")}
    states = found(ahead, this_machine(), "sm75", "sm120", here=False)
    assert states["tensorrt-rtx", "sm120", "nvfp4"].state == "builds"
    assert states["tensorrt-rtx", "sm75", "fp16"].state == "builds"
    assert "fp16 and int8 alone on sm75" in states["tensorrt-rtx", "sm75", "fp32"].reason
    assert states["tensorrt-rtx", "sm75", "int8"].state == "builds"  # with fp16 between its layers
    assert found(ahead, this_machine(), "sm90", here=False)["tensorrt-rtx", "sm90", "fp16"].state == "no"
    assert found(ahead, this_machine())["tensorrt-rtx", "gpu", "fp16"].state == "builds"


def test_the_gpus_of_a_machine_are_listed_with_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {0: Gpu("NVIDIA L4", "sm89", 24 << 30, "12.4"), 1: Gpu("Tesla T4", "sm75", 16 << 30, "12.4")}
    monkeypatch.setattr(home, "find_gpus", lambda: list(there.values()))
    monkeypatch.setattr(home, "driver_version", lambda: "550.1")
    assert [(one.index, one.types.architecture, one.driver) for one in gpus_here()] == [
        (0, "Ada Lovelace", "550.1"),
        (1, "Turing", "550.1"),
    ]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"])
def test_the_table_says_what_build_does(
    target: str, precision: str, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    """On whatever processor this runs: the state is fast where, and only where, the build proves it."""
    stated = found(ALL, this_machine())[target, "cpu", precision].state
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
    model, ahead = tiny_file("mlp"), {"tensorrt-rtx": Installed(why_not_run="no GPU")}
    if precision in CALIBRATED:
        ranges = calibrate(model, str(samples("mlp")), tmp_path / "m.ranges", targets=["tensorrt"], threads=1)
        model = qcompile.quantize(
            model, tmp_path / "q.onnx", target="tensorrt", precision=precision, ranges=ranges.path
        ).path
    for gpu in ("sm75", "sm86", "sm89", "sm120", "sm90"):
        stated = found(ahead, this_machine(), gpu, here=False)["tensorrt-rtx", gpu, precision].state
        try:
            qcompile.build(
                model, tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, gpus=[gpu]
            )
            built = True
        except QCompileError:
            built = False
        assert built == (stated == "builds"), gpu


def test_this_machine_is_described() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.usable >= 1
    assert {place.what for place in machine.places} >= {"working folder", "temporary files"}
    assert machine.memory_free_bytes <= machine.memory_bytes
