"""Trials of `tune` as stages of a recipe, so that an executor can run them in other processes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...compiler.quantize.sensitivity import LayerSensitivity
from ...core.files import read_json
from ...core.progress import Progress, silent
from ...data.spelling import parse_spelling
from ...model.sources.source import parse_source
from ...spec.words import Target, is_user_metric
from ..recipe.recipe import Recipe, make_recipe
from ..run import Visit
from ..stages.stage import Executor, Stage
from ..stages.store import FOLDER, Store
from ..stages.trial_stages import SCORE, trial_text
from .trials import Score, TrialExecutor, TrialRequest, TrialSetting

_TRIALS = "trials.toml"


def on_executor(
    executor: Executor, folder: str | Path, *, progress: Progress = silent
) -> Callable[[TrialSetting], TrialExecutor]:
    """Return the `elsewhere` argument of `tune` for an executor."""
    return lambda setting: StageTrials(executor, setting, Path(folder), progress)


class StageTrials:
    """Runs the trials of one setting as stages; locks its folder against another tuning."""

    def __init__(self, executor: Executor, setting: TrialSetting, folder: Path, progress: Progress) -> None:
        self.setting, self.parallel = setting, executor.parallel
        store = Store(folder, folder=folder / FOLDER)
        self._visit = Visit(setting_recipe(setting, folder), store, (), executor, progress)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(store.locked())

    def make(self, ask: TrialRequest) -> tuple[Score, list[Path]]:
        text = trial_text(self.setting, ask)
        # After a failed mix, the next mix gets the same name; the digest separates their stages.
        name = f"{ask.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        path = self._visit.file_of(Stage(kind="trial", artifact=name, trial=text)).path
        score = read_json(path.with_name(f"{ask.name}{SCORE}"), what="the score of a trial")
        files = [file for file in path.parent.iterdir() if file.name.startswith(f"{ask.name}.")]
        return msgspec.convert(score, Score), sorted(file for file in files if not file.name.endswith(SCORE))

    def rank(self, target: Target, part: int, parts: int) -> list[LayerSensitivity]:
        text = trial_text(self.setting)
        stage = Stage(kind="rank", artifact=target, shard=f"{part}/{parts}", trial=text)
        ranked = read_json(self._visit.file_of(stage).path, what="the damage of layers")
        return [LayerSensitivity(**layer) for layer in ranked["layers"]]

    def close(self) -> None:
        """Unlock the folder."""
        self._stack.close()


def setting_recipe(setting: TrialSetting, folder: Path) -> Recipe:
    """Return the recipe for the stages of a setting; it is not written to a file."""
    metric = parse_source(setting.metric).absolute if is_user_metric(setting.metric) else setting.metric
    values = {
        "version": 1,
        "name": "trials",
        "model": {"source": str(setting.model.resolve()), "simplify": False},
        "data": {"evaluation": str(parse_spelling(setting.data).located(Path.cwd()))},
        "calibrate": {"ranges": str(setting.ranges.resolve())},
        "artifact": [{"name": "float", "target": "onnxruntime"}],
        "bench": {"metric": metric},
        "output": FOLDER,
    }
    return make_recipe(values, folder / _TRIALS)
