"""The trials of `tune` as stages that any executor carries out: a candidate, and the damage of some layers.

They are steps of a recipe of their own, as many at a time as the executor takes. It names model, ranges, data
and metric, so they travel as those of any recipe. What differs from trial to trial is the JSON of its step.

    NAME.onnx  NAME.graph.onnx  NAME.trial.json     of "trial", with their manifests
    rank-TARGET-2-of-4.json                         of "rank"
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..artifact import tool_versions
from ..errors import EngineUnavailable
from ..files import read_json, write_json
from ..model.source import Source, digest_source, parse_source
from ..progress import Progress, silent
from ..spec.words import Target, is_own_metric
from .recipe import Recipe, make_recipe
from .stages import ONNX_TOOLS, Made, Stage, given_ranges, located, recipe_source
from .store import FOLDER, Store

if TYPE_CHECKING:
    from ..compiler.quantize.sensitivity import LayerSensitivity
    from ..tuning.making import Elsewhere, MadeElsewhere, Score, TrialAsk, TrialMaker, TrialSetting
    from .steps import Executor

_SCORE = ".trial.json"
_kept: dict[str, TrialMaker] = {}


def trial_text(setting: TrialSetting, ask: TrialAsk | None = None) -> str:
    """Return the JSON of a step: what the recipe does not say of the setting, and the ask of a trial."""
    shared = {name: getattr(setting, name) for name in ("samples", "method", "exclude", "threads", "isa")}
    return json.dumps(shared | ({"ask": ask.as_json()} if ask else {}), sort_keys=True)


def trial_target(trial: str, artifact: str) -> str:
    """Return the target that a step of "trial" or "rank" is for."""
    ask = json.loads(trial).get("ask")
    return str(ask["target"]) if ask else artifact


def trial_stage(recipe: Recipe, name: str, trial: str) -> Stage:
    """One candidate is quantized, built and scored: its artifact, and the score beside it."""
    from ..tuning.making import read_ask

    told = json.loads(trial)
    ask = read_ask(told["ask"])

    def work(path: Path, progress: Progress) -> object:
        score = _maker(recipe, told).make(ask, path.parent, progress)
        write_json(path.with_name(f"{ask.name}{_SCORE}"), msgspec.to_builtins(score))
        return path

    return Stage(name, ask.file, _key(recipe, told, ask.target), work, published=False)


def rank_stage(recipe: Recipe, name: str, trial: str, target: str, shard: str) -> Stage:
    """The damage of the layers of one part of the graph."""
    part, parts = map(int, shard.split("/"))

    def work(path: Path, progress: Progress) -> object:
        from ..tuning.making import rank_part

        setting = _setting(recipe, json.loads(trial))
        ranked = rank_part(setting, target, part, parts, progress=progress)
        write_json(path, {"layers": [vars(layer) for layer in ranked]})
        return path

    key = {**_key(recipe, json.loads(trial), target), "shard": shard}
    return Stage(name, f"{name}.json", key, work, published=False)


def read_score(artifact: Path, ask: TrialAsk) -> Score:
    """Return the score beside the artifact of a trial."""
    from ..tuning.making import Score

    value = read_json(artifact.with_name(f"{ask.name}{_SCORE}"), what="the score of a trial")
    return msgspec.convert(value, Score)


def trial_files(artifact: Path, ask: TrialAsk) -> list[Path]:
    """Return the files of a trial that its user keeps."""
    found = sorted(artifact.parent.glob("*"))
    return [one for one in found if one.name.startswith(f"{ask.name}.") and not one.name.endswith(_SCORE)]


def read_ranks(path: Path) -> list[LayerSensitivity]:
    """Return the layers of a part."""
    from ..compiler.quantize.sensitivity import LayerSensitivity

    return [LayerSensitivity(**one) for one in read_json(path, what="the damage of layers")["layers"]]


def _maker(recipe: Recipe, told: Mapping[str, Any]) -> TrialMaker:
    """What makes the trials of a setting: a process keeps the float model's outputs for the next one."""
    from ..tuning.making import TrialMaker

    shared = {name: value for name, value in told.items() if name != "ask"}
    key = json.dumps([str(recipe.folder), _key(recipe, shared, "onnxruntime")])
    if key not in _kept:
        _kept.clear()  # one is enough: its outputs are as large as the data
        _kept[key] = TrialMaker(_setting(recipe, shared))
    return _kept[key]


def _setting(recipe: Recipe, shared: Mapping[str, Any]) -> TrialSetting:
    from ..tuning.making import TrialSetting

    ranges, metric, own = _named(recipe)
    model, data = recipe_source(recipe).file, str(located(recipe, recipe.data.evaluation))
    options = {**shared, "exclude": tuple(shared["exclude"])}
    return TrialSetting(model, ranges.path, data, own.absolute if own else metric, **options)


def _key(recipe: Recipe, told: Mapping[str, Any], target: str) -> dict[str, Any]:
    """All that the outcome of a trial depends on."""
    from ..data.batches import Data
    from ..processor import processor

    ranges, metric, own = _named(recipe)
    data = Data(recipe.data.evaluation, (), base=recipe.folder, depends=recipe.data_depends)
    return {
        "model": digest_source(recipe_source(recipe)),
        "ranges": ranges.digest,
        "data": data.digest(),
        "metric": digest_source(own) if own else metric,
        "trial": dict(told),
        "processor": processor(),
        "tools": tool_versions(target, *ONNX_TOOLS),
    }


def _named(recipe: Recipe) -> tuple[Made, str, Source | None]:
    """What the recipe of a setting names: its ranges, its metric, and the metric's function, if it is one."""
    ranges, section = given_ranges(recipe), recipe.bench
    assert ranges is not None, "the recipe of a setting names them"
    assert section is not None, "the recipe of a setting names its metric"
    own = parse_source(section.metric, base=recipe.folder) if is_own_metric(section.metric) else None
    return ranges, section.metric, own


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
        path = self._do(kind="trial", artifact=name, trial=text)
        return MadeElsewhere(read_score(path, ask), trial_files(path, ask))

    def rank(self, target: Target, part: int, parts: int) -> list[LayerSensitivity]:
        """As `Elsewhere.rank`."""
        text = trial_text(self.setting)
        return read_ranks(self._do(kind="rank", artifact=target, shard=f"{part}/{parts}", trial=text))

    def close(self) -> None:
        """Let another tuning have the folder."""
        self._stack.close()

    def _do(self, **options: Any) -> Path:
        from .steps import Step

        step = Step(**options)

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
