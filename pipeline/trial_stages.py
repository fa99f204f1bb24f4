"""The trials of `tune` as stages that any executor carries out: a candidate, and the damage of some layers.

They are stages of a recipe of their own, which names model, ranges, data and metric, so they travel as those
of any recipe. What differs from trial to trial is the JSON of its stage.

    NAME.onnx  NAME.graph.onnx  NAME.trial.json     of "trial", with their manifests
    rank-TARGET-2-of-4.json                         of "rank"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..artifact import tool_versions
from ..files import read_json, write_json
from ..model.source import Source, digest_source, parse_source
from ..spec.words import is_own_metric
from .recipe import Recipe, recipe_source
from .stage import Job, Key, Made, Needs, Stage
from .stages import ONNX_TOOLS, given_ranges, located

if TYPE_CHECKING:
    from ..compiler.quantize.sensitivity import LayerSensitivity
    from ..tuning.making import Score, TrialAsk, TrialMaker, TrialSetting

_SCORE = ".trial.json"
_kept: dict[str, TrialMaker] = {}


def trial_text(setting: TrialSetting, ask: TrialAsk | None = None) -> str:
    """Return the JSON of a stage: what the recipe does not say of the setting, and the ask of a trial."""
    shared = {name: getattr(setting, name) for name in ("samples", "method", "exclude", "threads", "isa")}
    return json.dumps(shared | ({"ask": ask.as_json()} if ask else {}), sort_keys=True)


def trial_file(_: Recipe, stage: Stage) -> str:
    """Return the name of the artifact of a trial."""
    return _ask(stage).file


def trial_work(recipe: Recipe, stage: Stage, job: Job) -> object:
    """One candidate is quantized, built and scored: its artifact, and the score beside it."""
    from ..tuning.making import TrialMaker

    ask = _ask(stage)
    shared = {name: value for name, value in json.loads(stage.trial).items() if name != "ask"}
    key = json.dumps([str(recipe.folder), _key(recipe, shared, "onnxruntime")])
    if key not in _kept:  # a process keeps the float model's outputs for the next trial of a setting
        _kept.clear()  # they are as large as the data
        _kept[key] = TrialMaker(_setting(recipe, shared))
    score = _kept[key].make(ask, job.path.parent, job.progress)
    write_json(job.path.with_name(f"{ask.name}{_SCORE}"), msgspec.to_builtins(score))
    return job.path


def trial_key(recipe: Recipe, stage: Stage) -> Key:
    return _key(recipe, json.loads(stage.trial), _ask(stage).target)


def trial_needs(_: Recipe, stage: Stage) -> Needs:
    """The target, and ONNX Runtime, which the float model runs on."""
    return Needs(tuple({"onnxruntime", _ask(stage).target}))


def rank_work(recipe: Recipe, stage: Stage, job: Job) -> object:
    """The damage of the layers of one part of the graph."""
    from ..tuning.making import rank_part

    part, parts = map(int, stage.shard.split("/"))
    setting = _setting(recipe, json.loads(stage.trial))
    ranked = rank_part(setting, stage.artifact, part, parts, progress=job.progress)
    write_json(job.path, {"layers": [vars(layer) for layer in ranked]})
    return job.path


def rank_key(recipe: Recipe, stage: Stage) -> Key:
    return {**_key(recipe, json.loads(stage.trial), stage.artifact), "shard": stage.shard}


def rank_needs(_: Recipe, stage: Stage) -> Needs:
    """The target, and ONNX Runtime, which observes the layers."""
    return Needs(tuple({"onnxruntime", stage.artifact}))


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


def _ask(stage: Stage) -> TrialAsk:
    from ..tuning.making import read_ask

    return read_ask(json.loads(stage.trial)["ask"])


def _setting(recipe: Recipe, shared: Mapping[str, Any]) -> TrialSetting:
    from ..tuning.making import TrialSetting

    ranges, metric, own = _named(recipe)
    model, data = recipe_source(recipe).file, str(located(recipe, recipe.data.evaluation))
    options = {**shared, "exclude": tuple(shared["exclude"])}
    return TrialSetting(model, ranges.path, data, own.absolute if own else metric, **options)


def _key(recipe: Recipe, told: Mapping[str, Any], target: str) -> Key:
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
