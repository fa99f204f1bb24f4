"""A loaded engine and the means to create its execution contexts, shared by one runner or several.

TensorRT-RTX compiles kernels on the machine that runs the engine. Its `IRuntimeConfig` controls compilation,
and stores the kernels in a runtime cache. TensorRT itself needs neither.
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
    """Options for loading an engine. `profiles` are the manifest's, with values of inputs that hold a shape.
    `runtime_cache` stores TensorRT-RTX's compiled kernels beside the engine. `digest` is already verified."""

    device: int = 0
    cuda_graph: bool = False
    profiles: DeclaredProfiles = ()
    runtime_cache: bool = False
    digest: str = ""
    needs: PlanNeeds = field(default_factory=PlanNeeds)


class LoadedEngine:
    """A deserialized engine in the memory of its device, freed when its last holder releases it.

    Attributes:
        captures_itself: Whether TensorRT captures and replays CUDA graphs (TensorRT-RTX 1.2 and newer),
            after a shape's kernels are compiled. A capture by the caller would need engines built with the
            flag REQUIRE_USER_ALLOCATION (release notes 1.2), and would contain the kernels of that moment.
        user_managed: Whether the caller that binds shapes allocates the memory of execution contexts.
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
        # The default, LAZY, uses other kernels until a shape's kernels are compiled. Times and last bits of
        # an output would change between calls, and the cache would lack kernels that are not yet compiled.
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
        """Return whether contexts may use the same profile: TensorRT permits it, or no shape is dynamic."""
        return not (self.profiles and self.profiles[0].ranges) or self.adapter.shares_profiles()

    @property
    def engine(self) -> Any:
        """The `ICudaEngine`; None after its release."""
        return self._opened.engine if self._opened is not None else None

    def said(self) -> str:
        return self._opened.said() if self._opened is not None else "no reason given"

    def make_context(self) -> Any:
        """Return a new execution context, without NVTX markers for its layers.

        With detailed profiling verbosity, an engine would mark each layer of each inference, which costs
        latency (NvInferRuntime.h, `setNvtxVerbosity`). Inspector and profiler do not need the markers.
        """
        options = self._config if self._config is not None else self._strategy
        context = self.engine.create_execution_context(*(() if options is None else (options,)))
        if context is None:
            raise ModelError(f"{self.path}: no execution context can be made: {self.said()}")
        context.nvtx_verbosity = self.adapter.module.ProfilingVerbosity.NONE
        return context

    def require(self, refusal: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call a method of an execution context; raise ModelError if TensorRT refuses.

        `set_optimization_profile_async` raises RuntimeError if C++ returns false. Other methods return False,
        or raise if the binding itself refuses, for instance more than 8 axes (pyCore.cpp,
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
        """Release a holder, after its contexts are freed; the last release writes the runtime cache and frees
        the engine."""
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
    """A file beside an engine with the kernels that TensorRT-RTX compiled, for later processes.

    TensorRT-RTX refuses a cache of another version, GPU or driver (`IRuntimeCache.deserialize` of 1.7). The
    file's header detects damage and another engine, which TensorRT-RTX cannot. `note` reports the file's use
    to the user.
    """

    def __init__(self, engine: Path, version: str, digest: str = "") -> None:
        self.path = engine.with_name(engine.name + SUFFIX)
        self.note = ""
        self._about = {"engine": digest or digest_files([engine]), "tensorrt_rtx": version}
        self._blob_digest = ""

    def load(self, cache: Any) -> None:
        """Fill a runtime cache from the file; leave it empty if the file is unusable. Set `note`."""
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
                self.note = f"kernels are read from {self.path.name}; without it they are compiled"
                return
            reason = "TensorRT-RTX refuses it, as of another GPU or driver"
        self.note = f"{self.path} is not used: {reason}; kernels are compiled again"

    def save(self, cache: Any) -> None:
        """Write newly compiled kernels. The last of several processes wins: each has the kernels it needs."""
        serialized = cache.serialize()
        blob = b"" if serialized is None else bytes(serialized)
        if not blob or _digest(blob) == self._blob_digest:
            return
        try:
            with writing(self.path) as temporary:
                temporary.write_bytes(self._header(blob) + blob)
        except (OSError, InvalidOption, StorageError):
            return  # the cache is optional: without it the next process compiles again
        self._blob_digest = _digest(blob)

    def _header(self, blob: bytes) -> bytes:
        return _MAGIC + json.dumps({**self._about, "sha256": _digest(blob)}).encode() + b"\n"


def _digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
