"""TensorRT-RTX's runtime configuration and runtime cache, as far as a runner needs them.

Source: the docstrings of tensorrt_rtx 1.7.1.116 (`help(tensorrt_rtx.IRuntimeConfig)`, `IRuntimeCache`,
`CudaGraphStrategy`, `DynamicShapesKernelSpecializationStrategy`), its documentation "Working with RTX CUDA
Graphs" and "Working with Runtime Cache", and samples/apiUsage of NVIDIA/TensorRT-RTX (main).
"""

from __future__ import annotations

import json
from typing import Any

from simulated_cuda import SimulatedGpu


def behaviours(gpu: SimulatedGpu) -> dict[str, Any]:
    """Return what the classes do; a cache holds the names of what was compiled, one for each kernel."""

    class IRuntimeConfig:
        def __init__(self) -> None:
            # Source: RTX CUDA graphs are "disabled by default"; api_usage.py: "the default strategy is LAZY".
            strategies = getattr(self._module, "CudaGraphStrategy", None)
            self._graphs = strategies and strategies.DISABLED
            self._kernels = self._module.DynamicShapesKernelSpecializationStrategy.LAZY
            self._cache: Any = None

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

        Source: "Working with RTX CUDA Graphs": "valid capture begins on the second iteration and replay on
        the third".
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
