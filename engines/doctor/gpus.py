"""The GPUs of this machine, with what their Tensor Cores take."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..gpu import find_gpus
from .gpu_types import GpuTypes, gpu_types


@dataclass(frozen=True)
class GpuState:
    """A GPU of this machine.

    Attributes:
        index: Its number, as CUDA counts.
        name: Such as "NVIDIA H200".
        memory_bytes: All of its memory.
        cuda: The newest CUDA that its driver runs.
        driver: The driver's version; empty where NVML does not tell.
        types: What its compute capability has.
    """

    index: int
    name: str
    memory_bytes: int
    cuda: str
    driver: str
    types: GpuTypes

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return asdict(self) | {"types": self.types.as_json()}


def gpus_here() -> list[GpuState]:
    """Return the GPUs of this machine."""
    found = find_gpus()
    driver = driver_version() if found else ""
    return [
        GpuState(index, gpu.name, gpu.memory_bytes, gpu.cuda, driver, gpu_types(gpu.architecture))
        for index, gpu in enumerate(found)
    ]


def driver_version() -> str:
    """Return the driver's version as NVML (package nvidia-ml-py) tells it; empty where it does not."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no package, no driver, no right to ask: each of its own type
        return ""
