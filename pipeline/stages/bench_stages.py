"""Stages that measure the artifacts and write the report page."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from ...core.artifact import tool_versions
from ...engines.registry import engine
from ...errors import DataError, QCompileError
from ...model.sources.archives import trust_files
from ...model.sources.source import TENSORFLOW_KINDS, Source, digest_source, parse_source
from ...spec.decode import key as options_key
from ...spec.decode import shared
from ...spec.measure import BenchSpec, Budget
from ...spec.words import BASELINE, ORIGINAL, TENSORRT_TARGETS, is_user_metric
from ..recipe.published import RESULTS
from ..recipe.recipe import Recipe, recipe_source
from ..recipe.trust import interpreters
from .stage import ANY, PROCESSOR, SOURCE, Key, Needs, Stage, StageFile, StageJob, find_artifact
from .stages import ONNX_TOOLS, data_of, located

if TYPE_CHECKING:
    from ...bench.results.row import Row
    from ...spec.measure import BenchSection

INTERRUPTED = "results.interrupted.json"
_NOT_MEASURED = (*options_key(Budget()), "metric", "models")
"""Options outside "settings" of the key: they judge results, or the key holds a digest in their place."""


def bench_inputs(recipe: Recipe, _: str) -> dict[str, str]:
    """Return role to kind of stage: the model, the artifacts, and the exported file of a TensorFlow model.

    The export has compared TensorFlow's outputs, so the measuring machine does not need TensorFlow.
    """
    converted = {"model": "export"} if recipe_source(recipe).kind in TENSORFLOW_KINDS else {}
    return {SOURCE: "", "built": "build", **converted}


def bench_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Measure the artifacts against the baseline; an artifact that was not built gets a row with the reason.

    An artifact without a usable runtime counts as not run, not as failed. If the baseline was not built, or
    not for this machine, the MODEL itself is the baseline.
    """
    from ...bench.benchmark import benchmark
    from ...bench.results.results import BenchInterrupted, save_results

    if stage.parts:
        return _merge_parts(stage, job)
    section, source, output = section_of(recipe), recipe_source(recipe), job.output
    model_path = (
        _short_path(output / f"{recipe.name}.onnx") if source.kind in TENSORFLOW_KINDS else source.absolute
    )
    model_name = ORIGINAL if source.kind in ("onnx", *TENSORFLOW_KINDS) else BASELINE
    artifacts = {model_name: model_path}
    artifacts |= {name: _short_path(output / file.path.name) for name, file in stage.built.items()}
    baseline = section.baseline if section.baseline in stage.built else model_name
    metric, evaluation = metric_of(recipe), located(recipe, recipe.data.evaluation)
    unbuilt = _unbuilt_rows(recipe, stage)
    if section.baseline not in (*stage.built, BASELINE, ORIGINAL) and unbuilt:
        warning = f"the recipe's baseline {section.baseline!r} was not built; {model_name!r} replaces it"
        unbuilt[0] = replace(unbuilt[0], warnings=(warning,))
    spec = shared(
        BenchSpec,
        section,
        baseline=baseline,
        output=job.path,
        data=evaluation,
        evaluation=evaluation,
        metric=metric.absolute if metric else section.metric,
        models={name: model.absolute for name, model in _bench_models(recipe, stage).items()},
        python=interpreters(section.python, recipe.folder),
    )
    try:
        with trust_files(output / file.path.name for file in stage.built.values()):
            return benchmark(
                artifacts,
                spec,
                unbuilt=unbuilt,
                history=output / results_file(recipe, stage),
                command=("qcompile", "run", _short_path(recipe.path)),
                recipe=recipe.path.read_text(encoding="utf-8"),
                progress=job.progress,
            )
    except BenchInterrupted as interruption:
        # The stage is not finished: partial results must not have the name of its file.
        save_results(interruption.results, output / INTERRUPTED)
        raise


def _unbuilt_rows(recipe: Recipe, stage: Stage) -> list[Row]:
    """Return a row per unbuilt artifact: in the recipe's order, then those expanded for a kind of GPU."""
    from ...bench.results.row import Row

    names = [artifact.name for artifact in recipe.artifact]
    names = [name for name in names if name in stage.why_not]
    rows = []
    for name in [*names, *(name for name in stage.why_not if name not in names)]:
        artifact = find_artifact(recipe, name)
        device = (
            f"GPU {', '.join(artifact.gpus)}".strip() if artifact.target.startswith("tensorrt") else "CPU"
        )
        status: Literal["not run", "failed"] = "not run" if name in stage.unavailable else "failed"
        reason = stage.why_not[name]
        rows.append(Row(name, "", artifact.target, artifact.precision, device, status=status, reason=reason))
    return rows


def is_complete(results_path: Path) -> bool:
    """Return whether no artifact failed while it was measured: load on the machine may be the cause."""
    from ...bench.results.results import load_results

    return not any(row.artifact and row.status == "failed" for row in load_results(results_path).rows)


def bench_key(recipe: Recipe, stage: Stage) -> Key:
    from ...core.processor import processor
    from ...engines.gpu import find_gpu, find_gpus, is_every_gpu, parse_devices

    if stage.parts:
        return {"parts": {machine: part.digest for machine, part in stage.parts.items()}}
    section, metric = section_of(recipe), metric_of(recipe)
    gpu = find_gpu(next((number for number in parse_devices(section.devices) if number is not None), 0))
    evaluation = recipe.data.evaluation
    depends = [recipe.folder / name for name in recipe.model.depends]
    models = _bench_models(recipe, stage).items()
    return {
        "artifacts": {name: file.digest for name, file in stage.built.items()},
        "failures": {**stage.why_not},
        "source": stage.source_digest,
        "evaluation": data_of(recipe, evaluation).digest() if evaluation else "",
        "metric": digest_source(metric) if metric else section.metric,
        "settings": measured_options(recipe, stage.built if gpu else (), without=_NOT_MEASURED),
        "models": {name: digest_source(model, depends=depends) for name, model in models},
        "machine": {**processor(), "cores": os.cpu_count(), "gpu": gpu.as_json() if gpu else None},
        **({"gpus": [device.as_json() for device in find_gpus()]} if is_every_gpu(section.devices) else {}),
        **({"kind": stage.machine} if stage.machine else {}),
        "tools": tool_versions("torch", "polygraphy", *ONNX_TOOLS),
    }


def bench_needs(recipe: Recipe, stage: Stage) -> Needs:
    """Require the stage's kind of GPU; prefer every measured runtime, and a GPU for TensorRT."""
    kind = () if stage.machine in (ANY, PROCESSOR) else (f"gpu-{stage.machine}",)
    targets = dict.fromkeys(find_artifact(recipe, name).target for name in stage.built)
    gpu = any(target.startswith("tensorrt") for target in targets)
    return Needs(kind, (*targets, "pytorch"), gpu=gpu)


def results_file(_: Recipe, stage: Stage) -> str:
    """Return the name of the results file, for all machines or for one kind."""
    return f"results.{stage.machine}.json" if stage.machine else RESULTS


def section_of(recipe: Recipe) -> BenchSection:
    assert recipe.bench is not None, "only a recipe with `[bench]` has the stage"
    return recipe.bench


def metric_of(recipe: Recipe) -> Source | None:
    """Return the user's metric function, or None for a built-in metric."""
    text = section_of(recipe).metric
    return parse_source(text, base=recipe.folder) if is_user_metric(text) else None


def metric_key(recipe: Recipe, model: StageFile) -> Key:
    """Return everything that `check_metric` depends on."""
    metric = metric_of(recipe)
    return {
        "model": model.digest,
        "evaluation": data_of(recipe, recipe.data.evaluation).digest(),
        "metric": digest_source(metric) if metric else section_of(recipe).metric,
        "tools": tool_versions(*ONNX_TOOLS),
    }


def check_metric(recipe: Recipe, model: Path) -> str:
    """Score the first samples with the float model, and return the metric's name.

    Raises:
        DataError: If the metric does not fit the outputs or the labels.
        InvalidOption: If the metric's package is missing.
    """
    from ...bench.metrics.accuracy import check_batch, read_metric
    from ...model.graph.onnx_file import read_weightless

    function = metric_of(recipe)
    metric = read_metric(function.absolute if function else section_of(recipe).metric)
    inputs = read_weightless(model).io.inputs
    batch = next(iter(data_of(recipe, recipe.data.evaluation, inputs)))
    try:
        with engine("onnxruntime").open(str(model)) as runner:
            outputs = runner.infer(batch.feeds)
    except QCompileError:  # a later stage reports it
        return metric.name
    try:
        checked = check_batch(lambda _: outputs, batch, metric.for_inputs(inputs), recipe.data.evaluation)
    except DataError as error:
        hint = error.hint or "change `bench.metric`, or the labels of `data.evaluation`"
        raise DataError(f"`bench.metric`: {error.message}", hint=hint, **error.data) from error
    return checked.name


def _bench_models(recipe: Recipe, stage: Stage) -> dict[str, Source]:
    """Return name to source of `bench.models`; empty on a machine for a GPU unless `bench.devices` is set."""
    section = section_of(recipe)
    is_measured_here = stage.machine in (ANY, PROCESSOR) or bool(section.devices)
    pairs = (text.split("=", 1) for text in (section.models if is_measured_here else ()))
    return {name: parse_source(model, base=recipe.folder) for name, model in pairs}


def measured_options(
    recipe: Recipe, on_gpu: Collection[str], *, without: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return `[bench]` options for a key; without TensorRT engines `on_gpu`, CUDA graphs count as off."""
    options = options_key(section_of(recipe), without=without)
    targets = {find_artifact(recipe, name).target for name in on_gpu}
    if options["cuda_graph"] is None and not targets & {*TENSORRT_TARGETS}:
        options["cuda_graph"] = False
    return options


def _merge_parts(stage: Stage, job: StageJob) -> object:
    """Merge the results of several kinds of machines into one file."""
    from ...bench.results.results import earlier_runs, join_results, load_results, save_results

    job.progress("merge results")
    results = {machine: load_results(part.path) for machine, part in stage.parts.items()}
    save_results(join_results(results, history=earlier_runs(job.output / RESULTS)), job.path)
    return job.path


def report_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Write the report page of the results."""
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


def _short_path(path: Path) -> str:
    """Return the path relative to the working folder if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
