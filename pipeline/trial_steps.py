"""`tune` on an executor: its trials are steps of a recipe of their own, as many at a time as it takes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EngineUnavailable
from ..model.source import parse_source
from ..progress import Progress, silent
from ..spec.words import Target, is_own_metric
from .recipe import Recipe, make_recipe
from .steps import Executor, Step
from .store import FOLDER, Store
from .trial_stages import read_ranks, read_score, trial_files, trial_text

if TYPE_CHECKING:
    from ..compiler.quantize.sensitivity import LayerSensitivity
    from ..tuning.making import Elsewhere, MadeElsewhere, TrialAsk, TrialSetting

RECIPE = "trials.toml"


def on_executor(
    executor: Executor, folder: str | Path, *, progress: Progress = silent
) -> Callable[[TrialSetting], Elsewhere]:
    """Return what `tune` takes as `elsewhere`."""
    return lambda setting: StepTrials(executor, setting, Path(folder), progress)


class StepTrials:
    """Has the trials of one setting carried out as steps, in a folder that no other tuning holds."""

    def __init__(
        self, executor: Executor, setting: TrialSetting, folder: Path, progress: Progress = silent
    ) -> None:
        self.executor, self.setting, self.progress = executor, setting, progress
        self.parallel = executor.parallel
        self.recipe = setting_recipe(setting, folder)
        self.store = Store(folder, folder=folder / FOLDER, published=False)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.store.locked())

    def make(self, ask: TrialAsk) -> MadeElsewhere:
        """As `Elsewhere.make`."""
        from ..tuning.making import MadeElsewhere

        text = trial_text(self.setting, ask)
        # Two mixes may have one name until it is known which of them counts.
        name = f"{ask.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        path = self._do(Step(kind="trial", artifact=name, trial=text))
        return MadeElsewhere(read_score(path, ask), trial_files(path, ask))

    def rank(self, target: Target, part: int, parts: int) -> list[LayerSensitivity]:
        """As `Elsewhere.rank`."""
        text = trial_text(self.setting)
        step = Step(kind="rank", artifact=target, shard=f"{part}/{parts}", trial=text)
        return read_ranks(self._do(step))

    def close(self) -> None:
        """Let another tuning have the folder."""
        self._stack.close()

    def _do(self, step: Step) -> Path:
        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{step.name}: {text}", done, total)

        done = self.executor.do(self.recipe, step, self.store, again=False, progress=told)
        if done is None:
            raise EngineUnavailable(f"{step.name}: no worker can make it", engine=step.artifact)
        return done.made.path


def setting_recipe(setting: TrialSetting, folder: Path) -> Recipe:
    """Return the recipe that the steps of a setting belong to; it has no file."""
    from ..data.batches import located

    own = parse_source(setting.metric).absolute if is_own_metric(setting.metric) else setting.metric
    values = {
        "version": 1,
        "name": "trials",
        "model": {"source": str(setting.model.resolve()), "simplify": False},
        "data": {"evaluation": located(setting.data, Path.cwd())},
        "calibrate": {"ranges": str(setting.ranges.resolve())},
        "artifact": [{"name": "float", "target": "onnxruntime"}],
        "bench": {"metric": own},
        "output": FOLDER,
    }
    return make_recipe(values, folder / RECIPE)
