"""Choose the stream, the execution context and the optimization profile of an inference."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

from ....errors import InvalidOption, ModelError
from .bound_context import BoundContext, Values
from .cuda import OutOfMemory
from .loaded_engine import LoadedEngine
from .profile_choice import FeedShapes, Profile, fitting_profiles

GRAPHS_KEPT = 4
"""Input shapes per stream whose CUDA graphs are kept, each with an execution context and buffers."""


class StreamSlot:
    """One stream with its execution contexts: one, or with CUDA graphs one for each of the last shapes.

    "Use one execution context per captured graph" (NVIDIA, TensorRT best practices, CUDA graphs): changing a
    context whose graph is replayed later is undefined. TensorRT-RTX keeps the graphs of one context itself.
    Each has the memory of its profile: where that does not suffice, fewer are kept, and a note says so.
    """

    def __init__(self, loaded: LoadedEngine, notes: list[str]) -> None:
        self._loaded, self._notes = loaded, notes
        captured_here = loaded.cuda_graph and not loaded.captures_itself
        self._kept = GRAPHS_KEPT if captured_here and loaded.contexts_share_profiles else 1
        self._contexts: OrderedDict[object, BoundContext] = OrderedDict()
        self.stream: Any = loaded.context.cuda.stream()
        try:
            self._contexts[None] = BoundContext(loaded, self.stream)
        except BaseException:
            self.stream = None
            raise

    @property
    def contexts(self) -> tuple[BoundContext, ...]:
        """Its execution contexts."""
        return tuple(self._contexts.values())

    def bind(self, values: Values, feed_shapes: FeedShapes, profile: Profile, *, graph: bool) -> BoundContext:
        """Bind the context for these shapes: a new one if there is room, else the oldest's place."""
        key = feed_shapes.key if self._kept > 1 else None
        while True:
            try:
                bound = self._context(key)
                bound.bind(values, feed_shapes, profile, graph=graph)
            except (ModelError, OutOfMemory) as error:
                others = [other for other in self._contexts if other != key]
                if not others or (key in self._contexts and isinstance(error, ModelError)):
                    raise
                self._contexts.pop(others[0]).free()
                self._keep(len(others))
            else:
                return bound

    def _context(self, key: object) -> BoundContext:
        if key not in self._contexts:
            if None in self._contexts:  # the first, which nothing has used yet
                self._contexts[key] = self._contexts.pop(None)
            else:
                if len(self._contexts) == self._kept:
                    self._contexts.popitem(last=False)[1].free()
                self._contexts[key] = BoundContext(self._loaded, self.stream)
        self._contexts.move_to_end(key)
        return self._contexts[key]

    def _keep(self, count: int) -> None:
        self._kept = count
        self._notes.append(
            f"CUDA graphs of {count} input shapes are kept in place of {GRAPHS_KEPT}: memory does not "
            "suffice for more; other shapes are captured again"
        )

    def free(self) -> None:
        """Free everything, the stream last."""
        with ExitStack() as stack:
            stack.callback(self._drop_stream)
            while self._contexts:
                stack.callback(self._contexts.popitem()[1].free)

    def _drop_stream(self) -> None:
        self.stream = None


class StreamSlots:
    """All streams of a runner.

    Args:
        loaded: The engine; its context is active.
        streams: How many inferences can be under way at once.
        notes: Where the user reads what became of them.
    """

    def __init__(self, loaded: LoadedEngine, streams: int, notes: list[str]) -> None:
        self._loaded = loaded
        if streams < 1:
            raise InvalidOption(f"`streams` {streams}: 1 or more is required", option="streams")
        self._exclusive = streams > 1 and not loaded.contexts_share_profiles
        if self._exclusive and streams > len(loaded.profiles):
            raise InvalidOption(
                f"`streams` {streams}: before TensorRT 8.6 each execution context of an engine with dynamic "
                f"shapes needs an optimization profile of its own, and {loaded.path} has "
                f"{len(loaded.profiles)}",
                hint="give no more streams than profiles, or build with TensorRT 10 or newer",
                option="streams",
            )
        self.all: list[StreamSlot] = []
        try:
            for _ in range(streams):
                self.all.append(StreamSlot(loaded, notes))
        except BaseException:
            self.free()
            raise
        self._owners = dict(enumerate(self.all)) if self._exclusive else {}

    def choose(self, turn: int, feed_shapes: FeedShapes) -> tuple[StreamSlot, Profile]:
        """Return stream and profile for the inference of this turn."""
        fitting = fitting_profiles(self._loaded.profiles, feed_shapes)
        slot = self.all[turn % len(self.all)]
        if not self._exclusive:
            return slot, fitting[0]
        owned = [profile for profile in fitting if profile.index in self._owners]
        if owned:
            profile = owned[turn % len(owned)]
            return self._owners[profile.index], profile
        given_up = next(index for index, owner in self._owners.items() if owner is slot)
        self._owners[fitting[0].index] = self._owners.pop(given_up)
        return slot, fitting[0]

    def free(self) -> None:
        """Free everything, each even if another one fails to be."""
        with ExitStack() as stack:
            while self.all:
                stack.callback(self.all.pop().free)
