"""Where the stages of a run are carried out: in this process, or elsewhere by another `Executor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import QCompileError
from ..machine_memory import out_of_memory
from ..progress import Progress
from .recipe import Recipe
from .stages import Made, Stage
from .steps import Step, stage_of
from .store import Store


@dataclass(frozen=True)
class Done:
    """A stage that is done.

    Attributes:
        made: The file, kept in the store of the run and published.
        was_done: Whether an earlier run did it.
        where: Name of the worker that did it; empty for this process.
    """

    made: Made
    was_done: bool
    where: str = ""


class Executor(Protocol):
    """Carries out steps."""

    @property
    def parallel(self) -> int:
        """Steps of one run that may be asked for at a time, each from a thread of its own."""

    @property
    def shards(self) -> int:
        """Parts that a calibration is cut into; 1 keeps it whole."""

    @property
    def kinds(self) -> Sequence[str]:
        """GPUs of the cluster by compute capability ("sm86"), each once, sorted; none without a cluster."""

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """Carry out a step unless it is done, and publish its files; None where it means no stage.

        Args:
            recipe: The recipe that it belongs to.
            step: The step; its files lie in `store`.
            store: Keeps what is done.
            again: Carry it out even if it is done.
            progress: Told of what it does.

        Raises:
            QCompileError: If the step fails; what was done before stays done.
        """

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """Whether an earlier run did a step, so that `do` would carry nothing out."""

    def cancel(self) -> None:
        """End what is carried out: `do` raises soon, in whatever thread it is."""


class ThisProcess:
    """Carries out one step after the other, here."""

    parallel = 1
    shards = 1
    kinds: Sequence[str] = ()

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """As `Executor.do`."""
        stage = stage_of(recipe, step, store.output)
        if stage is None:
            return None
        stored = store.run(
            stage.name,
            {**stage.key, "file": stage.file},
            lambda folder: carry_out(stage, folder, store.output, progress),
            again=again,
            publish=not step.shard,
        )
        return Done(Made(stored.folder / stage.file, stored.files[stage.file]), stored.was_done)

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """As `Executor.is_done`, by the tools of this machine."""
        stage = stage_of(recipe, step, store.output)
        return stage is not None and store.find(stage.name, {**stage.key, "file": stage.file}) is not None

    def cancel(self) -> None:
        """Nothing runs in other threads."""


def carry_out(stage: Stage, folder: Path, output: Path, progress: Progress) -> None:
    """Do the work of a stage in a folder.

    Args:
        stage: The stage.
        folder: Where it writes its file.
        output: Where that file will be published: errors name it there.
        progress: Told of what it does.

    Raises:
        OutOfMemory: If it gets no memory.
        QCompileError: If it fails.
    """
    try:
        stage.work(folder / stage.file, progress)
    except Exception as error:
        shortage = out_of_memory(error, stage.name)
        if shortage is not None and shortage is not error:
            raise shortage from error
        if not isinstance(error, QCompileError):
            raise
        # The folder has another name each time, and is gone: say where the file would be.
        error.message = error.message.replace(str(folder), str(output))
        raise
