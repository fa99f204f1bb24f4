"""An engine on its device with what makes its execution contexts, held by one runner or by several.

TensorRT-RTX compiles kernels where an engine runs. Its `IRuntimeConfig` says how, and keeps what it compiled
in a runtime cache; other TensorRTs have nothing to say there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....core.files import digest_files, writing
from ....errors import InvalidOption, ModelError, StorageError, first_line
from ..adapter import Adapter
from ..plan import ALLOCATIONS, OpenPlan, PlanNeeds, open_plan
from .cuda import PrimaryContext
from .io_tensors import DeclaredProfiles, read_profiles, read_tensors

GRAPH_HINT = "leave cuda_graph off"


@dataclass(frozen=True)
class EngineUse:
    """How an engine is loaded: the profiles are its manifest's, with the values of shape inputs; kernels that
    TensorRT-RTX compiles are kept beside it with `runtime_cache`; the digest is one that was checked."""

    device: int = 0
    cuda_graph: bool = False
    profiles: DeclaredProfiles = ()
    runtime_cache: bool = False
    digest: str = ""
    needs: PlanNeeds = field(default_factory=PlanNeeds)


class LoadedEngine:
    """A deserialized engine in the memory of its device; the last holder that lets go frees it.

    Attributes:
        captures_itself: Whether TensorRT captures and replays: from TensorRT-RTX 1.2 on. It knows when its
            kernels for a shape are compiled; a capture from outside would need engines built with the flag
            REQUIRE_USER_ALLOCATION (release notes 1.2), and would keep the kernels of that moment.
        user_managed: Whether whoever binds shapes allocates the memory of execution contexts.
    """

    def __init__(self, adapter: Adapter, path: Path, use: EngineUse) -> None:
        self.adapter, self.path = adapter, path
        self.cuda_graph = use.cuda_graph
        self.captures_itself = use.cuda_graph and adapter.captures_by_itself
        self.user_managed = use.needs.allocation == "runtime"
        self._strategy = None
        if use.needs.allocation:
            strategies = adapter.module.ExecutionContextAllocationStrategy
            self._strategy = getattr(strategies, ALLOCATIONS[use.needs.allocation])
        self.notes: tuple[str, ...] = ()
        self._holders, self._lock = 1, threading.Lock()
        self._opened: OpenPlan | None = None
        self._config: Any = None
        self._cache: Any = None
        self._cache_file: RuntimeCacheFile | None = None
        self.context = PrimaryContext(use.device, str(path), engine=adapter.target)
        try:
            with self.context.active("loading the engine"):
                self._load(use)
        except BaseException:
            self.release()
            raise

    def _load(self, use: EngineUse) -> None:
        self._opened = open_plan(self.adapter, self.path.read_bytes(), use.needs, subject=str(self.path))
        self.tensors = read_tensors(self.adapter, self.engine, self.path)
        self.inputs = tuple(tensor for tensor in self.tensors if tensor.is_input)
        self.outputs = tuple(tensor for tensor in self.tensors if not tensor.is_input)
        self.profiles = read_profiles(self.adapter, self.engine, self.inputs, use.profiles)
        if self.adapter.keeps_runtime_caches:
            if use.runtime_cache:
                self._cache_file = RuntimeCacheFile(self.path, self.adapter.version, use.digest)
            self._configure(self.adapter.module)
        if self._cache_file is not None and self._cache_file.note:
            self.notes = (self._cache_file.note,)

    def _configure(self, module: Any) -> None:
        self._config = self.engine.create_runtime_config()
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
                problem = f"TensorRT-RTX takes no CUDA graphs here: {self.said()}"
                raise ModelError(f"{self.path}: {problem}", hint=GRAPH_HINT)
        if self._cache_file is not None:
            self._cache = self._config.create_runtime_cache()
            self._cache_file.load(self._cache)
            self._config.set_runtime_cache(self._cache)

    @property
    def contexts_share_profiles(self) -> bool:
        """Whether execution contexts need no profile of their own: TensorRT shares, or nothing is dynamic."""
        return not (self.profiles and self.profiles[0].ranges) or self.adapter.shares_profiles()

    @property
    def engine(self) -> Any:
        """The `ICudaEngine`; None once it is released."""
        return self._opened.engine if self._opened is not None else None

    def said(self) -> str:
        return self._opened.said() if self._opened is not None else "no reason given"

    def make_context(self) -> Any:
        """Return a new execution context, without NVTX markers of its layers.

        An engine built with detailed profiling verbosity would mark each layer of each inference, which costs
        latency (NvInferRuntime.h, `setNvtxVerbosity`). Inspector and profiler do not depend on it.
        """
        how = self._config if self._config is not None else self._strategy
        context = self.engine.create_execution_context(*(() if how is None else (how,)))
        if context is None:
            raise ModelError(f"{self.path}: no execution context can be made: {self.said()}")
        context.nvtx_verbosity = self.adapter.module.ProfilingVerbosity.NONE
        return context

    def require(self, refusal: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Make a call of an execution context that TensorRT may refuse.

        `set_optimization_profile_async` raises RuntimeError where C++ answers false; the others answer False,
        and raise where the binding itself refuses, as for more than 8 axes (pyCore.cpp,
        `context_set_optimization_profile_async` and `castDimsFromPyIterable`, release/8.5 to 11.1).
        """
        try:
            accepted = call(*arguments)
        except (RuntimeError, TypeError, ValueError) as error:
            message = self.said()
            reason = first_line(error) if message == "no reason given" else message
            raise ModelError(f"{self.path}: {refusal}: {reason}") from error
        if not accepted:
            raise ModelError(f"{self.path}: {refusal}: {self.said()}")

    def hold(self) -> LoadedEngine:
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        """Let go of it, its contexts freed: the last holder writes the runtime cache and frees all."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        with self.context.active("freeing"):
            try:
                if self._cache is not None and self._cache_file is not None:
                    self._cache_file.save(self._cache)
            finally:
                self._config = self._cache = self._opened = None


SUFFIX = ".runtime_cache"
_MAGIC = b"qcompile runtime cache 1\n"


class RuntimeCacheFile:
    """The kernels that TensorRT-RTX compiled for an engine, in a file beside it: the next process need not.

    TensorRT-RTX refuses a cache of another version, GPU or driver (`IRuntimeCache.deserialize` of 1.7). It
    cannot know whether the file is whole and which engine it is of: the header says both. `note` tells the
    user what became of the file that was there.
    """

    def __init__(self, engine: Path, version: str, digest: str = "") -> None:
        self.path = engine.with_name(engine.name + SUFFIX)
        self.note = ""
        self._about = {"engine": digest or digest_files([engine]), "tensorrt_rtx": version}
        self._blob_digest = ""

    def load(self, cache: Any) -> None:
        """Fill a runtime cache from the file; one that cannot be used is left empty, and `note` says why."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self.note = f"{self.path}: cannot be read ({error.strerror}); kernels are compiled again"
            return
        blob = content.removeprefix(_MAGIC).partition(b"\n")[2]
        reason = "it is of another engine or version, or damaged"
        if content == self._header(blob) + blob:
            if cache.deserialize(blob):
                self._blob_digest = _digest(blob)
                self.note = f"kernels are those of {self.path.name}; the first start without it compiles them"
                return
            reason = "TensorRT-RTX refuses it, as of another GPU or driver"
        self.note = f"{self.path} is not used: {reason}; kernels are compiled again"

    def save(self, cache: Any) -> None:
        """Write what was compiled since. Of several processes the last one wins: each has what it needs."""
        serialized = cache.serialize()
        blob = b"" if serialized is None else bytes(serialized)
        if not blob or _digest(blob) == self._blob_digest:
            return
        try:
            with writing(self.path) as temporary:
                temporary.write_bytes(self._header(blob) + blob)
        except (OSError, InvalidOption, StorageError):
            return  # a cache is no result: where it cannot be kept, the next process compiles again
        self._blob_digest = _digest(blob)

    def _header(self, blob: bytes) -> bytes:
        """What stands before the bytes that TensorRT-RTX wrote."""
        return _MAGIC + json.dumps({**self._about, "sha256": _digest(blob)}).encode() + b"\n"


def _digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
