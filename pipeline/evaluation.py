"""The evaluation of a recipe in parts: which artifacts are evaluated together, and the stage of one part.

Artifacts that the same machines can run are one group. A step evaluates a group and the baseline over a part
of the data: each worker computes the baseline once for all of them, and no outputs are kept or moved. What an
artifact fails on, or no worker runs, `bench` evaluates itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import tool_versions
from ..engines.gpu import is_every_gpu
from ..model.source import TENSORFLOW_KINDS, Source, digest_source, parse_source
from ..progress import Progress
from ..spec.words import TENSORRT_TARGETS, is_own_metric
from .bench_stages import measured_models, measured_options
from .kinds import named_artifact
from .recipe import BASELINE, Recipe
from .stages import ONNX_TOOLS, Made, Stage, located, recipe_source
from .trust import interpreters

if TYPE_CHECKING:
    from .steps import Step

_OF_SCORES = ("metric", "baseline", "batch_size", "threads", "torch_modes", "devices", "cuda_graph")
"""Options of `[bench]` that scores depend on."""


def evaluation_steps(recipe: Recipe, bench: Step, number: int) -> list[Step]:
    """Return the steps that evaluate what a bench will measure, in so many parts; none where nothing is.

    Each has the artifacts of its group in `built`, and in `artifact` what the group needs: the engine of
    GPUs, or "" for what runs on a processor.
    """
    section = recipe.bench
    if section is None or not recipe.data.evaluation or recipe_source(recipe).kind in TENSORFLOW_KINDS:
        return []
    if is_every_gpu(section.devices):
        return []  # each evaluates for itself
    groups: dict[str, dict[str, Made]] = {"": {}}
    for name, made in bench.built.items():
        groups.setdefault(_engine_of_gpus(recipe, name), {})[name] = made
    if section.baseline in bench.built:
        for group in groups.values():
            group[section.baseline] = bench.built[section.baseline]
    evaluated = replace(bench, kind="evaluate", why_not={}, unavailable=())
    return [
        replace(evaluated, artifact=kind, built=group, shard=f"{part}/{number}")
        for kind, group in groups.items()
        for part in range(1, number + 1)
    ]


def _engine_of_gpus(recipe: Recipe, name: str) -> str:
    """The engine of an artifact that needs a GPU; empty for another."""
    target = named_artifact(recipe, name).target
    return target if target in TENSORRT_TARGETS else ""


def evaluate_stage(
    recipe: Recipe, source: Source, source_digest: str, built: Mapping[str, Made], shard: str, name: str
) -> Stage:
    """Evaluate a group of artifacts and the baseline over a part of the data.

    The MODEL itself belongs to the group of the processor, and to any other where it is the baseline.
    """
    from ..calibration.calibrate import parse_shard
    from ..data.batches import Data
    from ..engines.gpu import find_gpu, parse_devices
    from ..processor import processor

    section = recipe.bench
    assert section is not None, "the caller looks first"
    evaluation = located(recipe, recipe.data.evaluation)
    assert evaluation is not None, "the caller looks first"
    function = parse_source(section.metric, base=recipe.folder) if is_own_metric(section.metric) else None
    gpu = find_gpu(next((number for number in parse_devices(section.devices) if number is not None), 0))
    baseline = section.baseline if section.baseline in built else BASELINE  # as bench has it
    on_gpu = any(_engine_of_gpus(recipe, one) for one in built if one != baseline)
    artifacts = {one: str(made.path) for one, made in built.items()}
    if not on_gpu or baseline == BASELINE:
        artifacts = {BASELINE: source.absolute, **artifacts}
    models = {} if on_gpu else measured_models(recipe, section.models)
    part = parse_shard(shard)

    def work(path: Path, progress: Progress) -> object:
        from ..bench.evaluate import evaluate

        evaluate(
            artifacts,
            path,
            baseline=baseline,
            evaluation=evaluation,
            metric=function.absolute if function else section.metric,
            part=(part.part, part.shards),
            batch_size=section.batch_size,
            threads=section.threads,
            torch_modes=() if on_gpu else section.torch_modes,
            models={name: model.absolute for name, model in models.items()},
            devices=section.devices,
            cuda_graph=section.cuda_graph and on_gpu,
            pythons=interpreters(section.python, recipe.folder),
            timeout_s=section.timeout_s,
            progress=progress,
        )
        return path

    options = measured_options(recipe, built if gpu else ())
    key: dict[str, Any] = {
        "artifacts": {one: made.digest for one, made in built.items()},
        "source": source_digest if BASELINE in artifacts else "",
        "evaluation": Data(evaluation, (), depends=recipe.data_depends).digest(),
        "metric": digest_source(function) if function else section.metric,
        "settings": {option: options[option] for option in _OF_SCORES if option in options},
        "models": {
            one: digest_source(model, depends=[recipe.folder / path for path in recipe.model.depends])
            for one, model in models.items()
        },
        "shard": shard,
        "machine": {**processor(), "gpu": gpu.as_json() if gpu else None},
        "tools": tool_versions("torch", *ONNX_TOOLS),
    }
    return Stage(name, f"{recipe.name}.{name.removeprefix('evaluate-')}.scores", key, work)
