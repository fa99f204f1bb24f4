"""Run an engine by named I/O tensors (TensorRT 8.5 and newer), with memory from CUDA's driver.

    feeds ──check──▶ profile ──▶ page-locked ──copy──▶ device ──execute_async_v3──▶ device ──copy──▶ outputs
                                  (host only)             ▲     or a CUDA graph of it
          on the device already ──────────────────────────┘

The runner uses the device's primary context, as PyTorch does, and makes it current only during its calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidOption, ModelError
from ....spec.tensors import Feeds, ModelIO, check_feeds
from ...base import InFlight, Runner
from ...gpu import GpuTimes
from ...libcuda import CudaOutOfMemory
from ..adapter import Adapter
from .bound_context import BoundContext, Values
from .cuda import Stream
from .io_tensors import FeedShapes, Profile, WideIntegers, fitting_profiles, model_io, refused_input
from .loaded_engine import EngineUse, LoadedEngine
from .memory import DeviceInput, make_listener, read_device_input

_WARMUP = 2
_ENQUEUE = "execute_async_v3"
_OWN_PROFILE = (
    "before TensorRT 8.6 each execution context of an engine with dynamic shapes needs an optimization "
    "profile of its own"
)
MAX_GRAPHS = 4
"""Maximum of CUDA graphs per stream, each with input shapes, an execution context and buffers."""


class StreamSlot:
    """A stream with one execution context or, with CUDA graphs, one for each recent set of input shapes.

    "Use one execution context per captured graph" (NVIDIA, TensorRT best practices, CUDA graphs): replaying a
    graph after its context has changed is undefined. TensorRT-RTX itself manages the graphs of one context.
    Each context has the memory of its profile. If memory is short, fewer contexts are used, with a note.
    """

    def __init__(self, loaded: LoadedEngine, notes: list[str]) -> None:
        self._loaded, self._notes = loaded, notes
        captured_here = loaded.cuda_graph and not loaded.captures_itself
        self._max_contexts = MAX_GRAPHS if captured_here and loaded.contexts_share_profiles else 1
        self._contexts: OrderedDict[object, BoundContext] = OrderedDict()
        self.stream: Any = Stream(loaded.context.cuda)
        try:
            self._contexts[None] = BoundContext(loaded, self.stream)
        except BaseException:
            self.stream = None
            raise

    def bind(self, values: Values, feed_shapes: FeedShapes, profile: Profile, *, graph: bool) -> BoundContext:
        """Return a context bound to the values; at the limit, a new one replaces the least recently used."""
        key = feed_shapes.key if self._max_contexts > 1 else None
        while True:
            try:
                bound = self._context(key)
                bound.bind(values, feed_shapes, profile, graph=graph)
            except (ModelError, CudaOutOfMemory) as error:
                older = [shape for shape in self._contexts if shape != key]
                if not older or (key in self._contexts and isinstance(error, ModelError)):
                    raise
                self._contexts.pop(older[0]).free()
                self._max_contexts = len(older)
                self._notes.append(
                    f"memory suffices for CUDA graphs of {self._max_contexts} input shapes, not "
                    f"{MAX_GRAPHS}; other shapes are captured again"
                )
            else:
                return bound

    def _context(self, key: object) -> BoundContext:
        if key not in self._contexts:
            if None in self._contexts:  # the first context, still unused
                self._contexts[key] = self._contexts.pop(None)
            else:
                if len(self._contexts) == self._max_contexts:
                    self._contexts.popitem(last=False)[1].free()
                self._contexts[key] = BoundContext(self._loaded, self.stream)
        self._contexts.move_to_end(key)
        return self._contexts[key]

    def free(self) -> None:
        with ExitStack() as stack:
            stack.callback(setattr, self, "stream", None)
            while self._contexts:
                stack.callback(self._contexts.popitem()[1].free)


class StreamSlots:
    """All streams of a runner. The engine's context must be active. `notes` are shown to the user."""

    def __init__(self, loaded: LoadedEngine, streams: int, notes: list[str]) -> None:
        self._loaded = loaded
        if streams < 1:
            raise InvalidOption(f"`streams` {streams}: 1 or more is required", option="streams")
        self._exclusive = streams > 1 and not loaded.contexts_share_profiles
        if self._exclusive and streams > len(loaded.profiles):
            problem = f"`streams` {streams}: {_OWN_PROFILE}, and {loaded.path} has {len(loaded.profiles)}"
            hint = "give no more streams than profiles, or build with TensorRT 10 or newer"
            raise InvalidOption(problem, hint=hint, option="streams")
        self.all: list[StreamSlot] = []
        try:
            for _ in range(streams):
                self.all.append(StreamSlot(loaded, notes))
        except BaseException:
            self.free()
            raise
        self._profiles = list(range(streams))  # each stream's profile, if contexts cannot share a profile

    def choose(self, turn: int, feed_shapes: FeedShapes) -> tuple[StreamSlot, Profile]:
        fitting = fitting_profiles(self._loaded.profiles, feed_shapes)
        index = turn % len(self.all)
        if not self._exclusive:
            return self.all[index], fitting[0]
        usable = [profile for profile in fitting if profile.index in self._profiles]
        if not usable:
            self._profiles[index], usable = fitting[0].index, fitting[:1]
        profile = usable[turn % len(usable)]
        return self.all[self._profiles.index(profile.index)], profile

    def free(self) -> None:
        with ExitStack() as stack:
            while self.all:
                stack.callback(self.all.pop().free)


class TensorRTRunner(Runner):
    """An engine with its execution contexts, streams and buffers on one device. Not thread-safe.

    A feed is a NumPy array, or an array on the same device with `__cuda_array_interface__`, for instance a
    CUDA tensor of PyTorch. A device array is used in place, after its producer has written it.

    With `cuda_graph`, `execute_async_v3` is captured once for each set of input shapes, after one ordinary
    run, and replayed. Each stream holds the graphs of up to four recent sets of shapes; inputs on the device
    are copied to the captured addresses. TensorRT-RTX captures and replays itself. Inputs that are int64
    in `declared` and int32 in the engine are narrowed if their values fit.
    """

    def __init__(
        self,
        adapter: Adapter,
        path: Path,
        use: EngineUse = EngineUse(),  # noqa: B008 (frozen)
        *,
        streams: int = 1,
        declared: ModelIO | None = None,
        share: LoadedEngine | None = None,
    ) -> None:
        self._adapter, self._path, self._use, self._declared = adapter, path, use, declared
        self._is_open = False
        self._slots: Any = None
        self._loaded = share.hold() if share is not None else LoadedEngine(adapter, path, use)
        self._context = self._loaded.context
        self.notes: list[str] = [*self._loaded.notes]
        self._is_open = True
        graphs = (f"a CUDA graph of {_ENQUEUE}", f"{_ENQUEUE} with CUDA graphs by TensorRT-RTX")
        enqueued = graphs[self._loaded.captures_itself] if use.cuda_graph else _ENQUEUE
        self.contains = (
            f"host to host, in page-locked memory: copies to the GPU, {enqueued}, copies back, synchronize"
        )
        try:
            with self._context.active("loading the engine"):
                self._slots = StreamSlots(self._loaded, streams, self.notes)
            self._integers = WideIntegers(model_io(self._loaded.tensors), declared)
            self.io = self._integers.io
        except BaseException:
            self.close()
            raise

    def share(self, *, streams: int = 1) -> TensorRTRunner:
        """Return another runner of the same engine, for instance for another thread. Both use the same
        weights on the device; either may be closed first."""
        self._require_open()
        if not self.can_be_shared:
            raise InvalidOption(f"{self._path}: {_OWN_PROFILE}", hint="load the engine again")
        return TensorRTRunner(
            self._adapter, self._path, self._use, streams=streams, declared=self._declared, share=self._loaded
        )

    @property
    def can_be_shared(self) -> bool:
        return self._loaded.contexts_share_profiles

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run once on host or device arrays, and return copies that outlive the runner."""
        self._require_open()
        with self._context.active("inference"):
            bound = self._bind(feeds)
            bound.start()
            bound.synchronize()
            return self._on_host(bound)

    def infer_many(self, many: Sequence[Feeds]) -> list[dict[str, NDArray[Any]]]:
        """Run on each of several feeds, up to one per stream at once, and return the outputs in order."""
        self._require_open()
        outputs: list[dict[str, NDArray[Any]]] = [{} for _ in many]
        under_way: dict[StreamSlot, tuple[int, BoundContext]] = {}

        def gather(slot: StreamSlot) -> None:
            index, bound = under_way.pop(slot)
            bound.synchronize()
            outputs[index] = self._on_host(bound)

        with self._context.active("inference"):
            for index, feeds in enumerate(many):
                values, feed_shapes = self._check(feeds)
                slot, profile = self._slots.choose(index, feed_shapes)
                if slot in under_way:
                    gather(slot)
                bound = slot.bind(values, feed_shapes, profile, graph=True)
                bound.start()
                under_way[slot] = (index, bound)
            for slot in list(under_way):
                gather(slot)
        return outputs

    def prepare(self, feeds: Feeds) -> Callable[[], dict[str, NDArray[Any]]]:
        """Bind the feeds and return a function that copies, runs and copies back. CUDA graphs are captured
        here. The next run overwrites the returned arrays."""

        def bind() -> tuple[BoundContext, object]:
            self._require_open()
            with self._context.active("inference"):
                bound = self._bind(feeds)
            return bound, bound.binding

        bound, binding = bind()

        def run() -> dict[str, NDArray[Any]]:
            nonlocal bound, binding
            self._require_open()
            if bound.binding is not binding:  # the runner was bound to other feeds in between
                bound, binding = bind()
            with self._context.active("inference"):
                bound.start()
                bound.synchronize()
            return self._on_host(bound, copied=False)

        return run

    @contextmanager
    def in_flight(self, feeds: Feeds, count: int) -> Iterator[Sequence[InFlight]]:
        """Yield `count` inferences on separate streams; the CUDA context is current in the block."""
        with self.share(streams=count) as runner, self._context.active("inferences in flight"):
            contexts = [runner._bind(feeds, stream=index) for index in range(count)]
            yield [InFlight(bound.start, bound.synchronize) for bound in contexts]

    def gpu_times(self, feeds: Feeds, iterations: int) -> GpuTimes:
        """Return durations from CUDA events; `GpuTimes` defines each."""
        self._require_open()
        with self._context.active("timing"):
            return self._bind(feeds).gpu_times(iterations)

    def layer_times(self, feeds: Feeds, iterations: int = 10) -> dict[str, float]:
        """Return the median time of each layer in milliseconds, by TensorRT's profiler, without CUDA graphs.
        Layer names depend on the engine's profiling verbosity."""
        self._require_open()
        if iterations < 1:
            raise InvalidOption(f"iterations: {iterations}; 1 or more is required")
        with self._context.active("profiling"):
            return self._bind(feeds, graph=False).layer_times(iterations, _WARMUP)

    def debug_tensors(self, feeds: Feeds, names: Collection[str]) -> dict[str, NDArray[Any]]:
        """Run once; return the outputs, and the debug tensors in `names` that the engine shows.

        The build determines which tensors an engine shows (`BuildRequest.debug_tensors`). TensorRT does not
        report whether a tensor is in row-major order.
        """
        self._require_open()
        with self._context.active("reading debug tensors"):
            listener = make_listener(self._adapter.module, self._context, names)
            bound = self._bind(feeds, graph=False)
            bound.run_listened(listener)
            listener.raise_stored_error()
            return {**listener.tensors, **self._on_host(bound)}

    def close(self) -> None:
        """Free buffers and execution contexts, then the engine unless another runner holds it."""
        if not self._is_open:
            return
        self._is_open = False
        with ExitStack() as stack:
            stack.callback(self._loaded.release)
            stack.enter_context(self._context.active("freeing"))
            if self._slots is not None:
                stack.callback(self._slots.free)
            self._slots = None

    def _require_open(self) -> None:
        if not self._is_open:
            raise ModelError(f"{self._path}: its runner is closed", hint="load it again")

    def _bind(self, feeds: Feeds, *, stream: int = 0, graph: bool = True) -> BoundContext:
        values, feed_shapes = self._check(feeds)
        slot, profile = self._slots.choose(stream, feed_shapes)
        bound: BoundContext = slot.bind(values, feed_shapes, profile, graph=graph)
        return bound

    def _on_host(self, bound: BoundContext, *, copied: bool = True) -> dict[str, NDArray[Any]]:
        return self._integers.widen(bound.outputs_on_host(copied=copied))

    def _check(self, feeds: Feeds) -> tuple[Values, FeedShapes]:
        values = {name: self._value(name, value) for name, value in feeds.items()}
        check_feeds(self.io.inputs, values, "feeds")
        values = self._integers.narrow(values)
        shape_values = {}
        for tensor in self._loaded.inputs:
            value = values[tensor.name]
            if tensor.on_host:
                if isinstance(value, DeviceInput):
                    reason = "TensorRT reads it on the host, because shapes depend on its values"
                    raise refused_input(tensor.name, f"is on the device; {reason}", "give a numpy array")
                shape_values[tensor.name] = tuple(value.reshape(-1).tolist())
        return values, FeedShapes({name: tuple(value.shape) for name, value in values.items()}, shape_values)

    def _value(self, name: str, value: Any) -> NDArray[Any] | DeviceInput:
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        return read_device_input(name, value, self._context)
