"""What differs between TensorRT's versions. No other file asks for a version.

|                                       | 8.5, 8.6 | 10.x | 11.x | TensorRT-RTX |
|---------------------------------------|----------|------|------|--------------|
| builder flags FP16, INT8 (weak types) | yes      | yes  | gone | gone         |
| strongly typed networks               | no       | yes  | only | only         |
| EXPLICIT_BATCH must be asked for      | yes      | no   | gone | gone         |
| progress monitor                      | no       | yes  | yes  | yes          |
| builds with no GPU, for others        | no       | no   | no   | yes          |
| calibrators (weak types)              | yes      | yes  | gone | gone         |

Each row is read from the module itself, not from its version number: a name that is there is used.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any

from ...errors import EngineUnavailable, InvalidOption

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}


@dataclass(frozen=True)
class Adapter:
    """One installed TensorRT.

    Attributes:
        module: The imported Python module.
        target: "tensorrt" or "tensorrt-rtx".
    """

    module: Any
    target: str

    @property
    def version(self) -> str:
        """The module's version, such as "10.16.1.11"."""
        return str(self.module.__version__)

    @property
    def strongly_typed(self) -> bool:
        """Whether the graph's own types decide: the flag exists, and is used wherever it does."""
        return hasattr(self.module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    @property
    def has_progress_monitor(self) -> bool:
        """Whether a build can report its progress and be cancelled."""
        return hasattr(self.module, "IProgressMonitor")

    @property
    def builds_ahead_of_time(self) -> bool:
        """Whether engines can be built for GPUs that are not here."""
        return hasattr(self.module, "ComputeCapability")

    def require_calibrators(self) -> None:
        """Refuse where TensorRT has no calibrators of its own any more.

        Raises:
            InvalidOption: Naming the version and the way that is left.
        """
        if not hasattr(self.module, "IInt8EntropyCalibrator2") or not hasattr(
            self.module.BuilderFlag, "INT8"
        ):
            raise InvalidOption(
                f"--calibrator: {self.module.__name__} {self.version} has no INT8 calibrators; "
                "its INT8 is in the graph, as Q/DQ",
                hint="leave --calibrator out and give --ranges FILE",
                option="--calibrator",
            )

    def network_flags(self, *, weak: bool = False) -> int:
        """Return the creation flags: explicit batch where it must be asked for, strong types if any.

        Args:
            weak: Whether types must be weak although they could be strong: calibrators need that.
        """
        flags = self.module.NetworkDefinitionCreationFlag
        value = 0
        if self.strongly_typed and not weak:
            value |= 1 << int(flags.STRONGLY_TYPED)
        elif hasattr(flags, "EXPLICIT_BATCH"):
            value |= 1 << int(flags.EXPLICIT_BATCH)
        return value

    def set_precision(self, config: Any, precision: str, *, weak: bool = False) -> None:
        """Set the weak-typing flags for an intent; nothing to do where types are strong.

        Raises:
            InvalidOption: If this version can reach the precision in neither way. A silent FP32 engine
                is the trap here: TensorRT 11 dropped the flags.
        """
        if (self.strongly_typed and not weak) or precision == "fp32":
            return
        flags = self.module.BuilderFlag
        wanted = {"fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8", "FP16")}.get(precision)
        if wanted is None:
            raise InvalidOption(f"TensorRT {self.version} has no flag for {precision}: it needs strong types")
        for name in wanted:
            if not hasattr(flags, name):
                raise InvalidOption(
                    f"TensorRT {self.version} has neither a {name} flag nor strongly typed networks"
                )
            config.set_flag(getattr(flags, name))

    def graph_precision(self, precision: str) -> str:
        """Return the precision the graph must have: its own where types are strong.

        INT8 is always in the graph, as Q/DQ; FP16 only where there is no flag to be trusted.
        """
        return precision if self.strongly_typed or precision == "int8" else "fp32"

    def set_gpus(self, config: Any, gpus: list[str]) -> None:
        """Choose the GPUs an engine is built for.

        Raises:
            InvalidOption: If this TensorRT builds only for the GPU it runs on, or not for one of them.
        """
        if not gpus:
            return
        if not self.builds_ahead_of_time:
            raise InvalidOption(
                f"--gpu: TensorRT {self.version} builds only for the GPU in this machine",
                hint="leave --gpu out, or use --target tensorrt-rtx",
            )
        known = self.compute_capabilities()
        for gpu in gpus:
            if gpu.upper() not in known:
                raise InvalidOption(
                    f"--gpu {gpu}: {self.module.__name__} {self.version} builds for "
                    f"{', '.join(known).lower()}",
                    option="--gpu",
                )
        config.num_compute_capabilities = len(gpus)
        for index, gpu in enumerate(gpus):
            config.set_compute_capability(known[gpu.upper()], index)

    def compute_capabilities(self) -> dict[str, Any]:
        """Return the GPUs that can be built for, "SM86" to TensorRT's value."""
        members: dict[str, Any] = self.module.ComputeCapability.__members__
        return {name: value for name, value in members.items() if name.startswith("SM")}


def load_adapter(target: str) -> Adapter:
    """Import a TensorRT.

    Raises:
        EngineUnavailable: If it is not installed or cannot be loaded.
    """
    try:
        return Adapter(importlib.import_module(MODULES[target]), target)
    except Exception as error:  # besides ImportError: missing libraries raise RuntimeError or OSError
        raise EngineUnavailable(
            f"{MODULES[target]} cannot be imported ({error})",
            hint=f"pip install 'qcompile[{target}]'",
            engine=target,
        ) from error


def why_no_gpu() -> str:
    """Return why no CUDA device can be used here; empty when one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 is missing)"
    if driver.cuInit(0):
        return "the NVIDIA driver finds no device"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no device"
    return ""
