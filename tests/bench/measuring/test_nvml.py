"""NVML's answers and refusals, by a small library with the functions of nvml.h that are used."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from qcompile.bench.measuring import nvml as nvml_module
from qcompile.bench.measuring.nvml import Nvml, NvmlError, find_nvml
from qcompile.engines.gpu import why_no_gpu

# Declarations as in NVIDIA's nvml.h; the values are made up.
SOURCE = r"""
#include <string.h>
typedef void *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
  unsigned int pid; unsigned long long usedGpuMemory; unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
static int device;
int nvmlInitWithFlags(unsigned int flags) { return flags ? 2 : 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) { *d = &device; return i ? 6 : 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *s, nvmlDevice_t *d) {
  *d = &device; return strcmp(s, "0000:3b:00.0") ? 6 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *s, nvmlDevice_t *d) {
  *d = &device; return strcmp(s, "MIG-2") ? 6 : 0;
}
int nvmlDeviceGetName(nvmlDevice_t d, char *s, unsigned int n) { strncpy(s, "GPU of a test", n); return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned int n) { strncpy(s, "600.1", n); return 0; }
int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
  m->total = 80000000000ull; m->free = 1; m->used = 5000000000ull; return d == &device ? 0 : 2;
}
int nvmlDeviceGetClockInfo(nvmlDevice_t d, int type, unsigned int *mhz) {
  *mhz = type == 1 ? 1980 : 2619; return 0;
}
int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw) { *mw = 123456; return 0; }
int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned int *c) { return 3; }
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *r) { *r = 0x45; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj) {
  *mj = 1ull << 40; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *p) {
  if (*n < 3) { *n = 3; return 7; }
  p[0].pid = 7; p[0].usedGpuMemory = 300; p[1].pid = 42; p[1].usedGpuMemory = 6000000000ull;
  p[2].pid = 9; p[2].usedGpuMemory = ~0ull; *n = 3; return 0;
}
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package nvidia-ml-py on a library of ours."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text(SOURCE)
    path = tmp_path / "libnvml.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, tmp_path / "nvml.c"], check=True)
    with_library(monkeypatch, str(path))


def with_library(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(path))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


@pytest.mark.usefixtures("driver")
def test_the_state_of_a_gpu_has_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = Nvml()
    assert nvml.about() == {"gpu": "GPU of a test", "driver": "600.1", "gpu_memory_bytes": 80_000_000_000}
    assert nvml.state() == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "power_w": 123.456, "temperature_c": None,
        "memory_used_bytes": 5_000_000_000, "throttled": ["power cap", "hardware thermal slowdown"],
    }  # fmt: skip
    assert nvml.energy_mj() == 2**40


@pytest.mark.usefixtures("driver")
def test_the_memory_of_a_process_is_found_by_its_number() -> None:
    nvml = Nvml()
    assert nvml.process_memory_bytes(42) == 6_000_000_000
    assert nvml.process_memory_bytes(8) is None
    assert nvml.process_memory_bytes(9) is None  # NVML does not tell


@pytest.mark.usefixtures("driver")
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetHandleByIndex: Not Found \(6\)"):
        Nvml()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    with pytest.raises(NvmlError, match=r"nvmlDeviceGetHandleByUUID: Not Found \(6\)"):
        Nvml()
    with_library(monkeypatch, "libc.so.6")
    with pytest.raises(NvmlError, match="nvmlInit: this driver does not have it"):
        Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match=r"nvidia-ml-py is missing; pip install 'qcompile\[cpu\]'"):
        Nvml()


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_a_machine_without_a_driver_says_so() -> None:
    with pytest.raises(NvmlError, match=r"no NVIDIA driver \(libnvidia-ml.so.1 is missing\)"):
        Nvml()


def test_here_there_is_nvml_or_a_reason() -> None:
    nvml, why_not = find_nvml()
    assert (nvml is None) == bool(why_not)


@pytest.mark.parametrize(
    ("gpu", "place", "visible", "refused"),
    [
        (1, "0000:3b:00.0", "7,3", ""),  # NVML counts otherwise: where it sits is what counts
        (1, "0000:5e:00.0", "7,3", "nvmlDeviceGetHandleByPciBusId"),
        (1, "0000:5e:00.0", "MIG-1,MIG-2", ""),
        (0, "0000:3b:00.0", "GPU-8932", ""),  # CUDA takes the beginning of an identifier, NVML does not
        (0, "", "7,3", "nvmlDeviceGetHandleByIndex"),
        (0, "", "0,3", ""),
    ],
)
@pytest.mark.usefixtures("driver")
def test_the_gpu_is_the_one_that_cuda_means(
    monkeypatch: pytest.MonkeyPatch, gpu: int, place: str, visible: str, refused: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(nvml_module, "bus_id", lambda index: place if index == gpu else "another")
    if refused:
        with pytest.raises(NvmlError, match=refused):
            Nvml(gpu)
    else:
        assert Nvml(gpu).energy_mj() == 2**40
