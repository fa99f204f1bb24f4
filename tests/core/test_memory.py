"""Where no memory is left, the error says so and names the step; nothing waits for memory for ever."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qcompile.cli import main
from qcompile.core.memory import machine_bytes, out_of_memory, trim_heap
from qcompile.errors import BuildError, InvalidOption, ModelError, OutOfMemory
from qcompile.pipeline.run import run

LIMITED = """
import resource, sys
import numpy, onnxruntime
from qcompile.calibration.histogram import make_count
from qcompile.errors import OutOfMemory
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    make_count()
except OutOfMemory as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
@pytest.mark.parametrize("left_bytes", [40 << 20, 120 << 20])
def test_numba_is_not_loaded_into_too_little_address_space(left_bytes: int) -> None:
    """The OpenBLAS in scipy would try again for ever; how little it takes differs between its versions."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(left_bytes)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "load numba, which counts values: " in done.stdout
    assert "bytes of address space are left" in done.stdout
    assert "raise the limit on address space, which is " in done.stdout


def array_error() -> MemoryError:
    """What numpy says of an array of an exbibyte."""
    with pytest.raises(MemoryError) as raised:
        np.empty(2**60, np.uint8)
    return raised.value


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        array_error(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bad allocation"),
        BuildError(
            "m.onnx: tensorrt_rtx cannot build it: Unexpected exception std::bad_alloc", hint="GPUs sm86"
        ),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_what_libraries_say_of_memory_is_told(error: Exception) -> None:
    try:
        try:
            raise error
        except Exception as cause:
            raise ModelError("m.onnx: refused", hint="look into it") from cause
    except ModelError as refused:
        found = out_of_memory(refused, "calibrate")
    assert found is not None
    assert found.message.startswith("calibrate: no memory is left (")
    assert out_of_memory(found, "other") is found


def test_other_errors_stay_what_they_are() -> None:
    for error in (
        ValueError("x"),
        InvalidOption("`memory` out of memory: a number is required"),
        BuildError("model.onnx: refused", hint="sm86, out of memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        ImportError("numba: failed to map segment from shared object: Operation not permitted"),
    ):
        assert out_of_memory(error, "calibrate") is None, error


@pytest.fixture
def model(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A model, beside data that take all memory."""
    (tmp_path / "data.py").write_text("def samples():\n    raise MemoryError\n")
    return tiny_file("mlp")


def test_a_command_without_memory_names_the_step(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main(["calibrate", str(model), "--data", f"{tmp_path}/data.py:samples", "-o", f"{tmp_path}/m.ranges"])
    said = capsys.readouterr().err
    assert done.value.code == 1
    assert "no memory is left (MemoryError" in said
    assert "hint: " in said
    assert not (tmp_path / "m.ranges").exists()


@pytest.mark.usefixtures("model")
def test_a_run_without_memory_for_one_stage_goes_on(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'version = 1\nname = "m"\n[model]\nsource = "mlp.onnx"\nsimplify = false\n'
        '[data]\ncalibration = "data.py:samples"\n'
        '[[artifact]]\nname = "fp32"\ntarget = "onnxruntime"\n'
        '[[artifact]]\nname = "int8"\ntarget = "onnxruntime"\nprecision = "int8"\n'
    )
    report = run(tmp_path / "recipe.toml")
    assert list(report.artifacts) == ["fp32"]
    failure = report.failures["int8"]
    assert isinstance(failure, OutOfMemory)
    assert failure.data["step"] == "calibrate"


def test_the_memory_of_the_machine_is_known() -> None:
    found = machine_bytes()
    assert found is None or 10**8 < found < 10**15


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_memory_that_was_freed_below_what_is_in_use_is_given_back() -> None:
    pieces = [bytearray(64 << 10) for _ in range(4096)]  # 256 MB, each too small to be mapped alone
    for piece in pieces:
        piece[::4096] = b"x" * 16
    del pieces[:-1]
    before = resident_bytes()
    trim_heap()
    assert resident_bytes() < before - (128 << 20)
    assert pieces[0][0] == ord("x")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
