"""A step that several recipes of a sweep share is done once: the others wait for it, and find it done."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

from ...progress import Progress
from ..executor import Done, Executor
from ..recipe import Recipe
from ..recipe_batches import measured_batches
from ..steps import Step, artifact
from ..store import Store


class Once:
    """An executor that asks another one for each step, and for equal ones one at a time.

    Args:
        executor: Carries the steps out.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}
        self._guard, self._drawing = threading.Lock(), threading.Lock()
        self._made_again: set[Hashable] = set()

    @property
    def parallel(self) -> int:
        """As the executor's."""
        return self.executor.parallel

    @property
    def shards(self) -> int:
        """As the executor's."""
        return self.executor.shards

    @property
    def kinds(self) -> Sequence[str]:
        """As the executor's."""
        return self.executor.kinds

    def cancel(self) -> None:
        """End what is carried out elsewhere."""
        self.executor.cancel()

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """As `Executor.is_done`."""
        return self.executor.is_done(recipe, step, store)

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """As `Executor.do`."""
        if step.kind == "bench":
            return self.executor.do(recipe, step, store, again=again, progress=progress)
        if step.kind == "report":  # is drawn in this process, and matplotlib knows one thread
            with self._drawing:
                return self.executor.do(recipe, step, store, again=again, progress=progress)
        identity = _identity(recipe, step, store)
        with self._alone(identity):
            again = again and identity not in self._made_again
            done = self.executor.do(recipe, step, store, again=again, progress=progress)
            if again:
                self._made_again.add(identity)
            return done

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a step; it is forgotten with the last that waits for it."""
        with self._guard:
            lock, count = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, count + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, count = self._locks[key]
                if count == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, count - 1


def _identity(recipe: Recipe, step: Step, store: Store) -> Hashable:
    """What tells steps apart that cannot be one; it may tell apart what turns out to be equal, too."""
    section = artifact(recipe, step.artifact) if step.artifact else None
    batches = measured_batches(recipe.bench) if section is not None and step.kind == "build" else {}
    return (
        store.folder,
        step.name,
        recipe.model,
        section,
        tuple(sorted(batches.items())),
        tuple(sorted((name, made.digest) for name, made in step.files.items())),
        tuple(made.digest for made in step.shards),
    )
