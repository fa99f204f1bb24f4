"""What disturbs a run, energy from the kernel's counters, and a GPU's state from NVML."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from qcompile.bench.measure.side_figures import rapl_counter
from qcompile.bench.results import environment as nvml_module
from qcompile.bench.results.environment import Effort, Nvml, NvmlError, environment, noise
from qcompile.core.installation import install_hint
from qcompile.engines.gpu import why_no_gpu

QUIET: dict[str, Any] = {
    "cpu_ticks": {"busy_s": 0.0, "stolen_s": 0.0, "idle_s": 0.0}, "frequency_mhz": 3000.0,
    "cpu_limited_us": 0.0, "gpu": None,
}  # fmt: skip
AFTER = QUIET | {"cpu_ticks": {"busy_s": 10.0, "stolen_s": 0.0, "idle_s": 10.0}}
SILENT: dict[str, Any] = dict.fromkeys(("cpu_ticks", "frequency_mhz", "cpu_limited_us", "gpu"))
EFFORT = Effort(seconds=10.0, cpu_s=9.9, involuntary_switches=50, worker_cpu_s=9.5)
STEADY = [5.0] * 12


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {}, ""),
        ({"cpu_ticks": {"busy_s": 15.0, "stolen_s": 0.0, "idle_s": 5.0}}, {}, "other processes took 26%"),
        ({"cpu_ticks": {"busy_s": 10.0, "stolen_s": 1.0, "idle_s": 9.0}}, {}, "hypervisor took 5.0%"),
        ({"cpu_limited_us": 2e6}, {}, "CPU limit kept threads waiting for 2.0 s"),
        ({"frequency_mhz": 2000.0}, {}, "from 3000 to 2000 MHz"),
        ({"gpu": {"throttled": ["power cap"]}}, {}, "throttled (power cap)"),
        ({}, {"effort": Effort(10.0, 9.9, 2000, 9.5)}, "lost their core 211 times per second"),
        ({}, {"medians": [5.0 + 0.1 * i for i in range(12)]}, "became 16% slower"),
        ({}, {"medians": [5.0, 9.0]}, ""),
        ({"frequency_mhz": 1000.0}, {"governor": "powersave"}, "powersave"),
        (SILENT, {"before": SILENT}, ""),
    ],
)
def test_what_disturbed_is_named(change: dict[str, Any], options: dict[str, Any], said: str) -> None:
    options = {"before": QUIET, "effort": EFFORT, "medians": STEADY, "governor": None, **options}
    governor = options.pop("governor")
    found = noise(options["before"], AFTER | change, options["effort"], options["medians"], governor=governor)
    assert found["noisy"] == bool(found["reasons"]) == bool(said)
    assert len(found["reasons"]) <= 1
    for reason in found["reasons"]:
        assert said in reason
        assert ": " in reason, "and what to do"


def test_the_environment_names_the_machine() -> None:
    found = environment(2)
    assert found["threads"] == 2
    assert found["packages"]["qcompile"]
    assert bool(found["gpu"]) != bool(found.get("why_no_gpu"))
    assert found["processor"]
    assert found["cores_usable"] == len(found["affinity"] or []) or None


def package(folder: Path, number: int, microjoules: int, *, name: str = "package-0") -> Path:
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    return zone


def test_packages_are_added_and_a_counter_that_wraps_is_carried_on(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 900_000), package(tmp_path, 1, 100_000, name="package-1")
    package(tmp_path, 2, 5, name="psys")  # the whole platform: contains the others
    inner = tmp_path / "intel-rapl:0:0"  # cores, which the package contains
    inner.mkdir()
    (inner / "name").write_text("core\n")
    read, source, why_not = rapl_counter(tmp_path)
    assert read is not None
    assert (source.startswith("RAPL, 2 processor"), why_not) == (True, "")
    before = read()
    (first / "energy_uj").write_text("100000\n")  # 0.9 J to 1.1 J, of which the counter forgets 1 J
    (second / "energy_uj").write_text("150000\n")
    assert read() - before == pytest.approx(250.0)  # 200 mJ and 50 mJ


def test_where_there_is_no_counter_that_is_said(tmp_path: Path) -> None:
    read, _, why_not = rapl_counter(tmp_path)
    assert read is None
    assert str(tmp_path) in why_not
    zone = package(tmp_path, 0, 1)
    (zone / "energy_uj").unlink()
    read, _, why_not = rapl_counter(tmp_path)
    assert read is None
    assert "cannot be read" in why_not


def failing(code: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise pynvml.NVMLError(code)

    return call


def only(known: object) -> Callable[[object], str]:
    """A function of NVML that has a GPU under this number or name alone."""
    return lambda name: "device" if name == known else failing(pynvml.NVML_ERROR_NOT_FOUND)()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of NVML, in its units; the values are made up."""
    memory = SimpleNamespace(total=80_000_000_000, used=5_000_000_000)
    processes = {7: 300, 42: 6_000_000_000, 9: None}
    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": only(0),
        "nvmlDeviceGetHandleByPciBusId": only("0000:3b:00.0"),
        "nvmlDeviceGetHandleByUUID": only("MIG-2"),
        "nvmlDeviceGetName": lambda _: "GPU of a test",
        "nvmlSystemGetDriverVersion": lambda: "600.1",
        "nvmlDeviceGetMemoryInfo": lambda _: memory,
        "nvmlDeviceGetClockInfo": lambda _, kind: 1980 if kind == pynvml.NVML_CLOCK_SM else 2619,
        "nvmlDeviceGetPowerUsage": lambda _: 123_456,
        "nvmlDeviceGetTemperature": failing(pynvml.NVML_ERROR_NOT_SUPPORTED),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x45,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 2**40,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes.items()
        ],
    }.items():
        monkeypatch.setattr(pynvml, name, function)


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


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_a_machine_without_a_driver_or_a_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlError, match=r"no NVIDIA driver \(libnvidia-ml.so.1 is missing\)"):
        Nvml()
    monkeypatch.setattr(pynvml, "nvmlInit", failing(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    with pytest.raises(NvmlError, match="nvmlInit: this driver does not have it"):
        Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match=re.escape(f"nvidia-ml-py is missing; {install_hint('cpu')}")):
        Nvml()


@pytest.mark.parametrize(
    ("gpu", "place", "visible", "refused"),
    [
        (1, "0000:3b:00.0", "7,3", ""),  # NVML counts otherwise: where it sits is what counts
        (1, "0000:5e:00.0", "7,3", "nvmlDeviceGetHandleByPciBusId"),
        (1, "0000:5e:00.0", "MIG-1,MIG-2", ""),
        (0, "0000:3b:00.0", "GPU-8932", ""),  # CUDA takes the beginning of an identifier, NVML does not
        (0, "", "7,3", r"nvmlDeviceGetHandleByIndex: Not Found \(6\)"),
        (0, "", "GPU-1234", r"nvmlDeviceGetHandleByUUID: Not Found \(6\)"),
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
