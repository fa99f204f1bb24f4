"""The trials of `tune` as stages of a recipe that names model, ranges, data and metric.

They can therefore be sent to workers like other stages. The JSON in `Stage.trial` differs between trials.

    NAME.onnx  NAME.graph.onnx  NAME.trial.json     of "trial", with their manifests
    rank-TARGET-2-of-4.json                         of "rank": the damage of some layers
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.artifact import tool_versions
from ...core.files import write_json
from ...model.sources.source import Source, digest_source
from ..recipe.recipe import Recipe, recipe_source
from .bench_stages import metric_of, section_of
from .stage import Key, Needs, Stage, StageFile, StageJob
from .stages import ONNX_TOOLS, data_of, located, recipe_ranges

if TYPE_CHECKING:
    from ...spec.measure import BenchSection
    from ..tune.trials import TrialMaker, TrialRequest, TrialSetting

SCORE = ".trial.json"
_makers: dict[str, TrialMaker] = {}


def trial_text(setting: TrialSetting, ask: TrialRequest | None = None) -> str:
    """Return the JSON of a stage: values of the setting that the recipe lacks, and the request of a trial."""
    names = ("samples", "method", "exclude", "threads", "isa", "candidates")
    values = {name: getattr(setting, name) for name in names}
    if ask is not None:
        values["ask"] = msgspec.to_builtins(ask, order="deterministic")
    return json.dumps(values, sort_keys=True)


def trial_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Quantize, build and score one candidate; write its artifact, and the score beside it."""
    from ..tune.trials import TrialMaker

    request = trial_request(stage)
    options = {name: value for name, value in json.loads(stage.trial).items() if name != "ask"}
    key = json.dumps([str(recipe.folder), _key(recipe, options, "onnxruntime")])
    if key not in _makers:  # a process caches the float model's outputs for the next trial of a setting
        _makers.clear()  # they are as large as the data
        _makers[key] = TrialMaker(_setting(recipe, options))
    score = _makers[key].make(request, job.path.parent, job.progress)
    write_json(job.path.with_name(f"{request.name}{SCORE}"), msgspec.to_builtins(score))
    return job.path


def trial_key(recipe: Recipe, stage: Stage) -> Key:
    shared_key = _key(recipe, json.loads(stage.trial), _target(stage))
    return {**shared_key, "shard": stage.shard} if stage.shard else shared_key


def trial_needs(_: Recipe, stage: Stage) -> Needs:
    """Require the target, and ONNX Runtime to run the float model and to observe the layers."""
    return Needs(tuple({"onnxruntime", _target(stage)}))


def _target(stage: Stage) -> str:
    return stage.artifact if stage.kind == "rank" else trial_request(stage).target


def rank_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Write the damage of the layers in one part of the graph."""
    from ..tune.trials import rank_part

    part, parts = map(int, stage.shard.split("/"))
    setting = _setting(recipe, json.loads(stage.trial))
    ranked = rank_part(setting, stage.artifact, part, parts, progress=job.progress)
    write_json(job.path, {"layers": [vars(layer) for layer in ranked]})
    return job.path


def trial_request(stage: Stage) -> TrialRequest:
    """Return the request of a trial."""
    from ..tune.trials import TrialRequest

    return msgspec.convert(json.loads(stage.trial)["ask"], TrialRequest)


def _setting(recipe: Recipe, options: Mapping[str, Any]) -> TrialSetting:
    from ..tune.trials import TrialSetting

    ranges, section, function = _scoring(recipe)
    model, data = recipe_source(recipe).file, str(located(recipe, recipe.data.evaluation))
    metric = function.absolute if function else section.metric
    options = {**options, "exclude": tuple(options["exclude"])}
    return TrialSetting(model, ranges.path, data, metric, **options)


def _key(recipe: Recipe, trial: Mapping[str, Any], target: str) -> Key:
    from ...core.processor import processor

    ranges, section, function = _scoring(recipe)
    return {
        "model": digest_source(recipe_source(recipe)),
        "ranges": ranges.digest,
        "data": data_of(recipe, recipe.data.evaluation).digest(),
        "metric": digest_source(function) if function else section.metric,
        "trial": dict(trial),
        "processor": processor(),
        "tools": tool_versions(target, *ONNX_TOOLS),
    }


def _scoring(recipe: Recipe) -> tuple[StageFile, BenchSection, Source | None]:
    """Return the ranges, bench section and metric function (or None) of a setting's recipe."""
    ranges = recipe_ranges(recipe)
    assert ranges is not None, "the recipe of a setting names them"
    return ranges, section_of(recipe), metric_of(recipe)
