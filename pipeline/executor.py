"""What carries stages out: the driver hands an executor one stage after the other, or several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..progress import Progress
from .graph import carry_out, is_published, key_of
from .recipe import Recipe
from .stage import Machines, Made, Stage
from .store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """A stage that is done, by an earlier run or now, and its file, kept in the run's store and published.

    `where` is the worker that did it; empty for this process.
    """

    made: Made
    was_done: bool
    where: str = ""


class Executor(Machines, Protocol):
    """Carries out stages."""

    @property
    def parallel(self) -> int:
        """Stages of one run that may be asked for at a time, each from a thread of its own."""

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> Done | None:
        """Carry out a stage unless it is done, and publish its files; None where there is nothing to do."""

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        """Whether an earlier run did a stage, so that `do` would carry nothing out."""

    def cancel(self) -> None:
        """End what is carried out: `do` raises soon, in whatever thread it is."""


class ThisProcess:
    """Carries out one stage after the other, here."""

    parallel = 1
    shards = 1
    kinds: Sequence[str] = ()

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> Done | None:
        """As `Executor.do`."""
        key = key_of(recipe, stage)
        if key is None:
            return None
        stored = store.run(
            stage.name,
            key,
            lambda folder: carry_out(recipe, stage, folder, store.output, progress),
            again=again,
            publish=is_published(stage),
        )
        return Done(Made(stored.folder / key["file"], stored.files[key["file"]]), stored.was_done)

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        """As `Executor.is_done`, by the tools of this machine."""
        key = key_of(recipe, stage)
        return key is not None and store.find(stage.name, key) is not None

    def cancel(self) -> None:
        """Nothing runs in other threads."""


def each(executor: Executor, tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Do several things, as many at a time as an executor takes; an error ends all."""
    if (parallel := min(executor.parallel, len(tasks))) < 2:
        return [task() for task in tasks]
    with ThreadPoolExecutor(parallel, "qcompile") as threads:
        try:
            futures = [threads.submit(task) for task in tasks]
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        except BaseException:  # the threads cannot be interrupted, what they wait for can
            executor.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
