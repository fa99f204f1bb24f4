"""The last stages of a recipe: what was built is measured, and what was measured becomes a page."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..artifact import tool_versions
from ..model.source import TENSORFLOW_KINDS, Source, digest_source, parse_source
from ..progress import Progress
from ..spec.decode import key as options_key
from ..spec.decode import shared
from ..spec.measure import BenchSpec, Budget
from ..spec.words import TENSORRT_TARGETS, is_own_metric
from .kinds import PROCESSOR, named_artifact
from .recipe import BASELINE, ArtifactSection, Recipe
from .stages import ONNX_TOOLS, Made, Stage, located, recipe_source
from .trust import interpreters

if TYPE_CHECKING:
    from .steps import Step

RESULTS = "results.json"
REPORT = "report.html"
INTERRUPTED = "results.interrupted.json"
_NOT_MEASURED = (*options_key(Budget()), "metric", "models")
"""Options that judge what is measured, or that the key has by their content: a spelling is none of it."""


def bench_stage(recipe: Recipe, step: Step, output: Path) -> Stage:
    """Measure what was built against the baseline; what was not built has a row that says why.

    Artifacts whose engine cannot be used here count as not run. A baseline that was not built, or not for
    this machine, is replaced by the MODEL itself.
    """
    from ..data.batches import Data
    from ..engines.gpu import find_gpu, find_gpus, is_every_gpu, parse_devices
    from ..processor import processor

    section, source = recipe.bench, recipe_source(recipe)
    assert section is not None, "the caller looks first"
    built, why_not, machine = step.built, step.why_not, step.machine
    evaluation = located(recipe, recipe.data.evaluation)
    function = parse_source(section.metric, base=recipe.folder) if is_own_metric(section.metric) else None
    gpu = find_gpu(next((number for number in parse_devices(section.devices) if number is not None), 0))
    # TensorFlow's own outputs were compared at the export; the file that it was converted to is measured.
    original = _shown(output / f"{recipe.name}.onnx") if source.kind in TENSORFLOW_KINDS else source.absolute
    artifacts = {BASELINE: original}
    artifacts |= {name: _shown(output / made.path.name) for name, made in built.items()}
    here = machine in ("", PROCESSOR) or bool(section.devices)  # models are measured once
    models = measured_models(recipe, section.models if here else ())
    baseline = section.baseline if section.baseline in artifacts else BASELINE
    file = f"results.{machine}.json" if machine else RESULTS

    def work(path: Path, progress: Progress) -> object:
        from ..bench.benchmark import benchmark
        from ..bench.results.results import BenchInterrupted, save_results
        from ..bench.results.row import Row

        unbuilt = [
            Row(
                one.name,
                "",
                one.target,
                one.precision,
                _runs_on(one),
                status="not run" if one.name in step.unavailable else "failed",
                reason=why_not[one.name],
            )
            for one in _in_order(recipe, why_not)
        ]
        if baseline != section.baseline and unbuilt:
            warning = f"the recipe's baseline {section.baseline!r} was not built: {BASELINE!r} is taken"
            unbuilt[0] = replace(unbuilt[0], warnings=(warning,))

        try:
            spec = shared(
                BenchSpec,
                section,
                baseline=baseline,
                output=path,
                data=evaluation,
                evaluation=evaluation,
                metric=function.absolute if function else section.metric,
                models={name: model.absolute for name, model in models.items()},
                python=interpreters(section.python, recipe.folder),
            )
            return benchmark(
                artifacts,
                spec,
                unbuilt=unbuilt,
                history=output / file,
                command=("qcompile", "run", _shown(recipe.path)),
                recipe=recipe.path.read_text(encoding="utf-8"),
                progress=progress,
            )
        except BenchInterrupted as stopped:
            # The stage is not done: what there is must not be taken for its result.
            save_results(stopped.results, output / INTERRUPTED)
            raise

    key: dict[str, object] = {
        "artifacts": {name: made.digest for name, made in built.items()},
        "failures": {**why_not},
        "source": step.source_digest,
        "evaluation": Data(evaluation, (), depends=recipe.data_depends).digest() if evaluation else "",
        "metric": digest_source(function) if function else section.metric,
        "settings": measured_options(recipe, built if gpu else (), without=_NOT_MEASURED),
        "models": {
            name: digest_source(model, depends=[recipe.folder / one for one in recipe.model.depends])
            for name, model in models.items()
        },
        "machine": {**processor(), "cores": os.cpu_count(), "gpu": gpu.as_json() if gpu else None},
        **({"gpus": [one.as_json() for one in find_gpus()]} if is_every_gpu(section.devices) else {}),
        **({"kind": machine} if machine else {}),
        "tools": tool_versions("torch", "polygraphy", *ONNX_TOOLS),
    }
    return Stage(step.name, file, key, work)


def measured_options(
    recipe: Recipe, on_gpu: Collection[str], *, without: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return the options of `[bench]` for the key of a stage that runs artifacts, some of them `on_gpu`.

    Where no engine of TensorRT runs they are as in keys of 0.2.0, which had no layer times, and no CUDA
    graphs by default: what was measured on a processor is not measured again.
    """
    assert recipe.bench is not None, "the caller looks first"
    options = options_key(recipe.bench, without=without)
    if not options["layer_times"]:
        del options["layer_times"]
    targets = {named_artifact(recipe, name).target for name in on_gpu}
    if options["cuda_graph"] is None and not targets & {*TENSORRT_TARGETS}:
        options["cuda_graph"] = False
    return options


def join_stage(parts: Mapping[str, Made], output: Path) -> Stage:
    """What several kinds of machines measured becomes one file of results."""

    def work(path: Path, progress: Progress) -> object:
        from ..bench.results.results import earlier_runs, join_results, load_results, save_results

        progress("put together")
        results = {machine: load_results(part.path) for machine, part in parts.items()}
        save_results(join_results(results, history=earlier_runs(output / RESULTS)), path)
        return path

    return Stage("bench", RESULTS, {"parts": {name: part.digest for name, part in parts.items()}}, work)


def report_stage(files: Mapping[str, Made], budget: Budget) -> Stage:
    """What was measured becomes a page."""
    results, ranges = files["results"], files.get("ranges")

    def work(path: Path, progress: Progress) -> object:
        from ..reporting import write_report

        progress("draw")
        return write_report(results.path, path, budget, ranges=ranges.path if ranges else None)

    key = {
        "results": results.digest,
        "ranges": ranges.digest if ranges else "",
        "budget": budget.limits,
        "tools": tool_versions("jinja2"),
    }
    return Stage("report", REPORT, key, work)


def _in_order(recipe: Recipe, names: Collection[str]) -> list[ArtifactSection]:
    """The artifacts of these names in the recipe's order; last those of a kind, which it does not name."""
    order = {one.name: at for at, one in enumerate(recipe.artifact)}
    ordered = sorted(names, key=lambda name: order.get(name, len(order)))
    return [named_artifact(recipe, name) for name in ordered]


def measured_models(recipe: Recipe, texts: Sequence[str]) -> dict[str, Source]:
    """Return `NAME=MODEL` of the recipe, their paths relative to it."""
    pairs = (text.split("=", 1) for text in texts)
    return {name: parse_source(model, base=recipe.folder) for name, model in pairs}


def _runs_on(one: ArtifactSection) -> str:
    return " ".join(("GPU", ", ".join(one.gpus))).strip() if one.target.startswith("tensorrt") else "CPU"


def _shown(path: Path) -> str:
    """Relative to the working folder where that is shorter: what a user would type."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
