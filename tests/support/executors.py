"""This process in place of a cluster, which notes what it was asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from qcompile.core.progress import Progress
from qcompile.pipeline.recipe.recipe import Recipe
from qcompile.pipeline.stages.graph import ThisProcess
from qcompile.pipeline.stages.stage import FinishedStage, Stage
from qcompile.pipeline.stages.store import Store


class Noting(ThisProcess):
    """Takes so many stages at a time, cuts a calibration into so many parts, and has these kinds of GPU.

    Attributes:
        asked: Every stage that it was asked for.
        done: Name of the recipe and of the stage, of those that were carried out.
        most: Stages that it carried out at a time.
    """

    def __init__(self, parallel: int = 1, shards: int = 1, kinds: Sequence[str] = ()) -> None:
        self.parallel, self.shards, self.kinds = parallel, shards, kinds
        self.asked: list[Stage] = []
        self.done: list[tuple[str, str]] = []
        self.most = self._running = 0
        self._lock = threading.Lock()

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> FinishedStage | None:
        with self._lock:
            self.asked.append(stage)
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            done = self.do_here(recipe, stage, store, again=again, progress=progress)
        finally:
            with self._lock:
                self._running -= 1
        if done is not None and not done.was_done:
            self.done.append((recipe.name, stage.name))
        return done

    def do_here(self, recipe: Recipe, stage: Stage, store: Store, **options: Any) -> FinishedStage | None:
        """Do a stage here; tests change it."""
        return super().do(recipe, stage, store, **options)
