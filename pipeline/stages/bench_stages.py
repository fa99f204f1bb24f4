"""Stages that measure what was built, and draw the page of it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from ...core.artifact import tool_versions
from ...model.sources.archives import trusting
from ...model.sources.source import TENSORFLOW_KINDS, Source, digest_source, parse_source
from ...spec.decode import key as options_key
from ...spec.decode import shared
from ...spec.measure import BenchSpec, Budget
from ...spec.words import BASELINE, ORIGINAL, TENSORRT_TARGETS, is_own_metric
from ..recipe.published import RESULTS
from ..recipe.recipe import Recipe, recipe_source
from ..recipe.trust import interpreters
from .stage import ANY, PROCESSOR, SOURCE, Key, Needs, Stage, StageJob, named_artifact
from .stages import ONNX_TOOLS, data_of, located

if TYPE_CHECKING:
    from ...bench.results.row import Row
    from ...spec.measure import BenchSection

INTERRUPTED = "results.interrupted.json"
_NOT_MEASURED = (*options_key(Budget()), "metric", "models")
"""Options that judge what is measured, or that the key has by their content: a spelling is none of it."""


def bench_inputs(recipe: Recipe, _: str) -> dict[str, str]:
    """The model itself and all that is built; in place of TensorFlow's model the file that it became.

    TensorFlow's own outputs were compared at the export, and the machine that measures need not have it.
    """
    converted = {"model": "export"} if recipe_source(recipe).kind in TENSORFLOW_KINDS else {}
    return {SOURCE: "", "built": "build", **converted}


def bench_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Measure what was built against the baseline; what was not built has a row that says why.

    Artifacts whose engine cannot be used here count as not run. A baseline that was not built, or not for
    this machine, is replaced by the MODEL itself.
    """
    from ...bench.benchmark import benchmark
    from ...bench.results.results import BenchInterrupted, save_results

    if stage.parts:
        return _join(stage, job)
    section, source, output = section_of(recipe), recipe_source(recipe), job.output
    original = _shown(output / f"{recipe.name}.onnx") if source.kind in TENSORFLOW_KINDS else source.absolute
    itself = ORIGINAL if source.kind in ("onnx", *TENSORFLOW_KINDS) else BASELINE
    artifacts = {itself: original}
    artifacts |= {name: _shown(output / file.path.name) for name, file in stage.built.items()}
    baseline = section.baseline if section.baseline in stage.built else itself
    function, evaluation = metric_of(recipe), located(recipe, recipe.data.evaluation)
    unbuilt = _unbuilt(recipe, stage)
    if section.baseline not in (*stage.built, BASELINE, ORIGINAL) and unbuilt:
        warning = f"the recipe's baseline {section.baseline!r} was not built: {itself!r} is taken"
        unbuilt[0] = replace(unbuilt[0], warnings=(warning,))
    spec = shared(
        BenchSpec,
        section,
        baseline=baseline,
        output=job.path,
        data=evaluation,
        evaluation=evaluation,
        metric=function.absolute if function else section.metric,
        models={name: model.absolute for name, model in _models(recipe, stage).items()},
        python=interpreters(section.python, recipe.folder),
    )
    try:
        with trusting(output / file.path.name for file in stage.built.values()):
            return benchmark(
                artifacts,
                spec,
                unbuilt=unbuilt,
                history=output / results_file(recipe, stage),
                command=("qcompile", "run", _shown(recipe.path)),
                recipe=recipe.path.read_text(encoding="utf-8"),
                progress=job.progress,
            )
    except BenchInterrupted as stopped:
        # The stage is not done: what there is must not be taken for its result.
        save_results(stopped.results, output / INTERRUPTED)
        raise


def _unbuilt(recipe: Recipe, stage: Stage) -> list[Row]:
    """Rows of what was not built, in the recipe's order; last those of a kind, which it does not name."""
    from ...bench.results.row import Row

    names = [artifact.name for artifact in recipe.artifact]
    names = [name for name in names if name in stage.why_not]
    rows = []
    for name in [*names, *(name for name in stage.why_not if name not in names)]:
        artifact = named_artifact(recipe, name)
        device = (
            f"GPU {', '.join(artifact.gpus)}".strip() if artifact.target.startswith("tensorrt") else "CPU"
        )
        status: Literal["not run", "failed"] = "not run" if name in stage.unavailable else "failed"
        reason = stage.why_not[name]
        rows.append(Row(name, "", artifact.target, artifact.precision, device, status=status, reason=reason))
    return rows


def bench_key(recipe: Recipe, stage: Stage) -> Key:
    from ...core.processor import processor
    from ...engines.gpu import find_gpu, find_gpus, is_every_gpu, parse_devices

    if stage.parts:
        return {"parts": {machine: part.digest for machine, part in stage.parts.items()}}
    section, function = section_of(recipe), metric_of(recipe)
    gpu = find_gpu(next((number for number in parse_devices(section.devices) if number is not None), 0))
    evaluation = recipe.data.evaluation
    depends = [recipe.folder / name for name in recipe.model.depends]
    models = _models(recipe, stage).items()
    return {
        "artifacts": {name: file.digest for name, file in stage.built.items()},
        "failures": {**stage.why_not},
        "source": stage.source_digest,
        "evaluation": data_of(recipe, evaluation).digest() if evaluation else "",
        "metric": digest_source(function) if function else section.metric,
        "settings": measured_options(recipe, stage.built if gpu else (), without=_NOT_MEASURED),
        "models": {name: digest_source(model, depends=depends) for name, model in models},
        "machine": {**processor(), "cores": os.cpu_count(), "gpu": gpu.as_json() if gpu else None},
        **({"gpus": [device.as_json() for device in find_gpus()]} if is_every_gpu(section.devices) else {}),
        **({"kind": stage.machine} if stage.machine else {}),
        "tools": tool_versions("torch", "polygraphy", *ONNX_TOOLS),
    }


def bench_needs(recipe: Recipe, stage: Stage) -> Needs:
    """The kind of GPU that it is for; better with every engine that is measured, and a GPU for TensorRT's."""
    kind = () if stage.machine in (ANY, PROCESSOR) else (f"gpu-{stage.machine}",)
    targets = dict.fromkeys(named_artifact(recipe, name).target for name in stage.built)
    gpu = any(target.startswith("tensorrt") for target in targets)
    return Needs(kind, (*targets, "pytorch"), gpu=gpu)


def results_file(_: Recipe, stage: Stage) -> str:
    """Return the name of the file of results of all machines, or of one kind."""
    return f"results.{stage.machine}.json" if stage.machine else RESULTS


def section_of(recipe: Recipe) -> BenchSection:
    assert recipe.bench is not None, "only a recipe with `[bench]` has the stage"
    return recipe.bench


def metric_of(recipe: Recipe) -> Source | None:
    """The function that the metric is; None for one of ours."""
    text = section_of(recipe).metric
    return parse_source(text, base=recipe.folder) if is_own_metric(text) else None


def _models(recipe: Recipe, stage: Stage) -> dict[str, Source]:
    """Models that are measured beside the artifacts, on one machine."""
    section = section_of(recipe)
    is_measured_here = stage.machine in (ANY, PROCESSOR) or bool(section.devices)
    pairs = (text.split("=", 1) for text in (section.models if is_measured_here else ()))
    return {name: parse_source(model, base=recipe.folder) for name, model in pairs}


def measured_options(
    recipe: Recipe, on_gpu: Collection[str], *, without: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return the options of `[bench]` for the key of a stage that runs artifacts, some of them `on_gpu`.

    Without an engine of TensorRT, CUDA graphs change nothing: they are as good as off.
    """
    options = options_key(section_of(recipe), without=without)
    targets = {named_artifact(recipe, name).target for name in on_gpu}
    if options["cuda_graph"] is None and not targets & {*TENSORRT_TARGETS}:
        options["cuda_graph"] = False
    return options


def _join(stage: Stage, job: StageJob) -> object:
    """What several kinds of machines measured becomes one file of results."""
    from ...bench.results.results import earlier_runs, join_results, load_results, save_results

    job.progress("put together")
    results = {machine: load_results(part.path) for machine, part in stage.parts.items()}
    save_results(join_results(results, history=earlier_runs(job.output / RESULTS)), job.path)
    return job.path


def report_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """What was measured becomes a page."""
    from ...bench.report import write_report

    job.progress("draw")
    results, ranges = stage.files["results"], stage.files.get("ranges")
    return write_report(results.path, job.path, recipe.budget, ranges=ranges.path if ranges else None)


def report_key(recipe: Recipe, stage: Stage) -> Key:
    ranges = stage.files.get("ranges")
    return {
        "results": stage.files["results"].digest,
        "ranges": ranges.digest if ranges else "",
        "budget": recipe.budget.limits,
        "tools": tool_versions("jinja2"),
    }


def _shown(path: Path) -> str:
    """Relative to the working folder where that is shorter: what a user would type."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
