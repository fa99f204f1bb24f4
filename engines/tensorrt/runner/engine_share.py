"""An engine on its device, held by one runner or by several: the last that lets go frees it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..adapter import Adapter
from ..plan import PlanNeeds
from .cuda_context import PrimaryContext
from .execution_contexts import ExecutionContexts
from .loaded_engine import LoadedEngine, load_engine
from .profile_choice import DeclaredProfiles, with_declared_values
from .runtime_cache import RuntimeCacheFile


@dataclass(frozen=True)
class EngineUse:
    """How an engine is loaded.

    Attributes:
        device: Number of the CUDA device.
        cuda_graph: Whether inferences are captured and replayed.
        profiles: The optimization profiles of its manifest, with the values of shape inputs.
        runtime_cache: Whether kernels that TensorRT-RTX compiles are kept beside it.
        digest: Its digest, where it is known and was checked.
        needs: What it needs beside TensorRT: plugins, host code; nothing by default.
    """

    device: int = 0
    cuda_graph: bool = False
    profiles: DeclaredProfiles = ()
    runtime_cache: bool = False
    digest: str = ""
    needs: PlanNeeds = field(default_factory=PlanNeeds)


class EngineShare:
    """An engine with its CUDA context and what makes its execution contexts.

    Args:
        adapter: The TensorRT that built it.
        path: Its file.
        use: How it is loaded.

    Attributes:
        context: The device's primary context.
        loaded: The engine.
        contexts: Makes its execution contexts.
        notes: What the user should know.

    Raises:
        EngineUnavailable, ArtifactError, ModelError: As `TensorRTRunner`.
    """

    def __init__(self, adapter: Adapter, path: Path, use: EngineUse) -> None:
        self._holders, self._lock = 1, threading.Lock()
        self.context = PrimaryContext(use.device, str(path), engine=adapter.target)
        self._loaded: LoadedEngine | None = None
        self._contexts: ExecutionContexts | None = None
        self.notes: Sequence[str] = ()
        cache = None
        try:
            with self.context.active("loading the engine"):
                self._loaded = loaded = load_engine(adapter, self.context, path, use.needs)
                loaded.profiles = with_declared_values(loaded.profiles, use.profiles, loaded.inputs)
                if use.runtime_cache and adapter.keeps_runtime_caches:
                    cache = RuntimeCacheFile(path, adapter.version, use.digest)
                self._contexts = ExecutionContexts(
                    loaded, cuda_graph=use.cuda_graph, cache=cache, allocation=use.needs.allocation
                )
        except BaseException:
            self.release()
            raise
        self.notes = (cache.note,) if cache is not None and cache.note else ()

    @property
    def loaded(self) -> LoadedEngine:
        """The engine; until `release`."""
        assert self._loaded is not None
        return self._loaded

    @property
    def contexts(self) -> ExecutionContexts:
        """Makes its execution contexts; until `release`."""
        assert self._contexts is not None
        return self._contexts

    def take(self) -> EngineShare:
        """Return this, for one holder more."""
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        """Let go of it: of its holders the last frees engine and runtime, then the CUDA context.

        The execution contexts of the holder must have been freed.
        """
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        with ExitStack() as stack:
            stack.callback(self.context.close)
            stack.enter_context(self.context.active("freeing"))
            stack.callback(self._drop)
            if self._contexts is not None:
                stack.callback(self._contexts.free)

    def _drop(self) -> None:
        loaded, self._loaded, self._contexts = self._loaded, None, None
        if loaded is not None:
            loaded.release()
