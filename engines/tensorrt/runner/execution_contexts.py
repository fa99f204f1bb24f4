"""Make the execution contexts of an engine, and translate what their calls answer.

TensorRT-RTX compiles kernels where an engine runs. Its `IRuntimeConfig` says how, and keeps what it compiled
in a runtime cache; other TensorRTs have nothing to say there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import ModelError, first_line
from ..compatibility import ALLOCATIONS
from .loaded_engine import LoadedEngine
from .runtime_cache import RuntimeCacheFile

GRAPH_HINT = "leave cuda_graph off"


class ExecutionContexts:
    """Makes execution contexts, all with one runtime configuration where there is one.

    Args:
        loaded: The engine; its CUDA context is active.
        cuda_graph: Whether inferences are captured in CUDA graphs.
        cache: Where the kernels that TensorRT-RTX compiles are kept; None: nowhere.
        allocation: What their memory is for, as `allocation_strategy` spells it.

    Attributes:
        cuda_graph: As given.
        captures_itself: Whether TensorRT captures and replays: from TensorRT-RTX 1.2 on. It knows when its
            kernels for a shape are compiled; a capture from outside would need engines built with the flag
            REQUIRE_USER_ALLOCATION (release notes 1.2), and would keep the kernels of that moment.
        user_managed: Whether whoever binds shapes allocates their memory.

    Raises:
        ModelError: If it takes no CUDA graphs.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        *,
        cuda_graph: bool,
        cache: RuntimeCacheFile | None,
        allocation: str = "",
    ) -> None:
        self._loaded, self.cuda_graph, self._allocation = loaded, cuda_graph, allocation
        self.user_managed = allocation == "runtime"
        self._strategy: Any = None
        if allocation:
            strategies = loaded.adapter.module.ExecutionContextAllocationStrategy
            self._strategy = getattr(strategies, ALLOCATIONS[allocation])
        self.captures_itself = cuda_graph and loaded.adapter.captures_by_itself
        self._config: Any = None
        self._cache: Any = None
        self._file = cache
        if loaded.adapter.keeps_runtime_caches:
            self._configure(loaded.adapter.module)

    def make(self) -> Any:
        """Return a new execution context.

        Raises:
            ModelError: If there can be none, with TensorRT's reason.
        """
        engine = self._loaded.engine
        given = self._config if self._config is not None else self._strategy
        context = engine.create_execution_context(*(() if given is None else (given,)))
        if context is None:
            raise ModelError(f"{self._loaded.path}: no execution context can be made: {self._loaded.said()}")
        return context

    def memory_bytes(self, context: Any) -> int:
        """Return the memory on the device that TensorRT allocated for an execution context."""
        engine = self._loaded.engine
        if self._allocation == "profile":
            return int(engine.get_device_memory_size_for_profile_v2(context.active_optimization_profile))
        return 0 if self.user_managed else self._loaded.adapter.memory_bytes(engine)

    def free(self) -> None:
        """Write the runtime cache and let go of it; every execution context must have been freed."""
        cache, self._cache, self._config = self._cache, None, None
        if cache is not None and self._file is not None:
            self._file.save(cache)

    def _configure(self, module: Any) -> None:
        self._config = self._loaded.engine.create_runtime_config()
        if self._strategy is not None:
            self._config.set_execution_context_allocation_strategy(self._strategy)
        strategies = module.DynamicShapesKernelSpecializationStrategy
        # The default, LAZY, computes with other kernels until those for a shape are compiled: times and last
        # bits of an output would change from call to call, and the cache would miss what is not ready yet.
        self._config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        if self.captures_itself:
            strategy = module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            self._config.cuda_graph_strategy = strategy
            if self._config.cuda_graph_strategy != strategy:
                raise ModelError(
                    f"{self._loaded.path}: TensorRT-RTX takes no CUDA graphs here: {self._loaded.said()}",
                    hint=GRAPH_HINT,
                )
        if self._file is not None:
            self._cache = self._config.create_runtime_cache()
            self._file.load(self._cache)
            self._config.set_runtime_cache(self._cache)


def require(loaded: LoadedEngine, refusal: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call of an execution context that TensorRT may refuse.

    In all versions `set_optimization_profile_async` raises RuntimeError where C++ answers false; the others
    answer False, and raise where the binding itself refuses, as for more than 8 axes (python/src/infer/
    pyCore.cpp: `context_set_optimization_profile_async` and `castDimsFromPyIterable`, release/8.5 to 11.1).

    Args:
        loaded: The engine.
        refusal: What to say where it is refused.
        call: The call.
        arguments: Its arguments.

    Raises:
        ModelError: With TensorRT's reason.
    """
    try:
        accepted = call(*arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        said = loaded.said()
        reason = first_line(error) if said == "no reason given" else said
        raise ModelError(f"{loaded.path}: {refusal}: {reason}") from error
    if not accepted:
        raise ModelError(f"{loaded.path}: {refusal}: {loaded.said()}")
