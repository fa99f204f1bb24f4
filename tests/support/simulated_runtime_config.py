"""TensorRT-RTX's runtime configuration and runtime cache, as far as a runner needs them.

Source: the docstrings of tensorrt_rtx 1.7.1.116 (`help(tensorrt_rtx.IRuntimeConfig)`, `IRuntimeCache`,
`CudaGraphStrategy`, `DynamicShapesKernelSpecializationStrategy`), its documentation "Working with RTX CUDA
Graphs" and "Working with Runtime Cache", and samples/apiUsage of NVIDIA/TensorRT-RTX (main).
"""

from __future__ import annotations

import json
import math
from typing import Any

from simulated_cuda import SimulatedGpu

CONTEXT_BYTES = 4096


def behaviours(gpu: SimulatedGpu) -> dict[str, Any]:
    """Return what the classes do; a cache holds the names of what was compiled, one for each kernel."""

    class IRuntimeConfig:
        def __init__(self) -> None:
            # Source: RTX CUDA graphs are "disabled by default"; api_usage.py: "the default strategy is LAZY".
            strategies = getattr(self._module, "CudaGraphStrategy", None)
            self._graphs = strategies and strategies.DISABLED
            self._kernels = self._module.DynamicShapesKernelSpecializationStrategy.LAZY
            self._cache: Any = None
            self._strategy = self._module.ExecutionContextAllocationStrategy.STATIC

        @property
        def cuda_graph_strategy(self) -> Any:
            return self._graphs

        @cuda_graph_strategy.setter
        def cuda_graph_strategy(self, value: Any) -> None:
            # Source: C++ `setCudaGraphStrategy` answers a bool, which the Python attribute cannot tell.
            if not gpu.enter("cuda_graph_strategy"):
                self._graphs = value

        @property
        def dynamic_shapes_kernel_specialization_strategy(self) -> Any:
            return self._kernels

        @dynamic_shapes_kernel_specialization_strategy.setter
        def dynamic_shapes_kernel_specialization_strategy(self, value: Any) -> None:
            self._kernels = value

        def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
            self._strategy = strategy

        def create_runtime_cache(self) -> Any:
            return self._module.IRuntimeCache()

        def set_runtime_cache(self, cache: Any = None) -> bool:
            self._cache = cache
            return True

    class IRuntimeCache:
        def __init__(self) -> None:
            self._kernels: set[str] = set()

        def deserialize(self, blob: Any) -> bool:
            # Source: "is rejected (leaving this cache unchanged) on any mismatch"; "a current CUDA context
            # must be present so the environment can be captured for comparison".
            gpu.require_context()
            stored = json.loads(bytes(blob))
            if stored["gpu"] != gpu.name:
                return False
            self._kernels = set(stored["kernels"])
            return True

        def serialize(self) -> Any:
            content = json.dumps({"gpu": gpu.name, "kernels": sorted(self._kernels)}).encode()
            return self._module.IHostMemory(content)

    class IHostMemory(bytes):
        """Has the buffer protocol, and so becomes bytes."""

    return {"IRuntimeConfig": IRuntimeConfig, "IRuntimeCache": IRuntimeCache, "IHostMemory": IHostMemory}


class RtxKernels:
    """The part of an execution context that compiles kernels, and captures and replays by itself.

    Args:
        gpu: Counts what is compiled, captured and replayed.
        config: The context's `IRuntimeConfig`; None where it was made without.
    """

    def __init__(self, gpu: SimulatedGpu, config: Any) -> None:
        self._gpu, self._config = gpu, config
        self._runs: dict[object, int] = {}

    def run(self, shapes: object) -> None:
        """Note one `execute_async_v3` at these shapes.

        Source: documentation, "Working with RTX CUDA Graphs": "valid capture begins on the second iteration
        and replay on the third".
        """
        if self._config is None:
            return
        cache = self._config._cache
        if cache is not None and repr(shapes) not in cache._kernels:
            cache._kernels.add(repr(shapes))
            self._gpu.made["compiled kernel"] += 1
        if self._config._graphs and self._config._graphs.name == "WHOLE_GRAPH_CAPTURE":
            self._runs[shapes] = self._runs.get(shapes, 0) + 1
            self._gpu.made["RTX capture"] += self._runs[shapes] == 2
            self._gpu.made["RTX replay"] += self._runs[shapes] > 2


class EngineMemory:
    """What an engine tells of the memory of its execution contexts: twice as much for each further profile.

    Source: NvInferRuntime.h of release/10.16, getDeviceMemorySizeV2: the maximum "across all profiles", and
    getDeviceMemorySizeForProfileV2.
    """

    @property
    def device_memory_size(self) -> int:
        return self._of_profile(self.num_optimization_profiles - 1)  # type: ignore[attr-defined]

    @property
    def device_memory_size_v2(self) -> int:
        return self._of_profile(self.num_optimization_profiles - 1)  # type: ignore[attr-defined]

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return self._of_profile(profile_index)

    def _of_profile(self, index: int) -> int:
        return CONTEXT_BYTES << index


class ContextMemory:
    """How an execution context gets its memory: USER_MANAGED takes it from its user, for the shapes of now.

    Source: NvInferRuntime.h of release/10.16, ExecutionContextAllocationStrategy; setDeviceMemoryV2: the size
    "must be large enough for performing inference with the given network inputs";
    updateDeviceMemorySizeForShapes: "must specify all input shapes", 0 if an error occurred.
    """

    def _allocated_by(self, config: Any) -> Any:
        """Keep the strategy of a configuration, or the strategy itself; return the configuration."""
        strategy = getattr(config, "_strategy", config)
        self._user_managed = strategy is not None and strategy.name == "USER_MANAGED"
        self._provided = 0
        return config if hasattr(config, "_strategy") else None

    def update_device_memory_size_for_shapes(self) -> int:
        self._provided = 0
        return self._needed()

    def set_device_memory(self, memory: int, size: int) -> None:
        self._provided = size if memory else 0

    def _needed(self) -> int:
        return sum(256 * math.prod(shape) for shape in self._shapes.values())  # type: ignore[attr-defined]

    def _too_little_memory(self) -> str:
        if not self._user_managed or self._provided >= self._needed():
            return ""
        return f"{self._provided} bytes of device memory are too few, {self._needed()} are needed"
