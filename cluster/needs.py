"""What a step needs of a worker, in the names of the resources that workers announce to Dask.

| step               | must have                                       | better with                         |
|--------------------|-------------------------------------------------|-------------------------------------|
| export             | `export`, of a model that PyTorch exports       | `onnxruntime`, which checks it      |
| simplify           |                                                 | `onnxruntime`                       |
| calibrate          | `onnxruntime`                                   |                                     |
| quantize           | the target                                      | `onnxruntime`                       |
| build              | the target; a GPU, for TensorRT of this machine | the processor that measures         |
| bench              | the kind of GPU that it is for                  | all targets, a GPU, `pytorch`       |
| trial, rank        | `onnxruntime`, the target                       |                                     |

A step takes one of `slots`, a measurement all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import EngineUnavailable
from ..model.source import TENSORFLOW_KINDS
from ..pipeline.kinds import ANY, PROCESSOR, named_artifact
from ..pipeline.recipe import Recipe
from ..pipeline.stages import recipe_source
from ..pipeline.steps import Step
from ..pipeline.trial_stages import trial_target
from .facts import Facts


@dataclass(frozen=True)
class Place:
    """Where a step may go: addresses, the best first, what it takes there, and whether it runs alone."""

    workers: tuple[str, ...]
    resources: dict[str, float]
    alone: bool = False


def place(recipe: Recipe, step: Step, workers: Sequence[Facts], home: Facts | None = None) -> Place:
    """Return the workers that a step may go to.

    Args:
        recipe: The recipe of the step.
        step: What is done.
        workers: Those that may be asked.
        home: The worker that will measure what is built: another processor may run it otherwise.
    """
    required, preferred, gpu = _needs(recipe, step)
    alone = step.kind == "bench"
    able = [facts for facts in sorted(workers, key=lambda facts: facts.name) if _has(facts, required)]
    if gpu and not alone:
        able = [facts for facts in able if gpus_of(facts)]
    if not able:
        raise _unavailable(step, required or ("a GPU",), workers)
    for name in preferred:
        able = [facts for facts in able if _has(facts, (name,))] or able
    if gpu and alone:
        able = [facts for facts in able if gpus_of(facts)] or able
    if home is not None and step.kind == "build" and not gpu:
        able = [facts for facts in able if _processor(facts) == _processor(home)] or able
    able = able[:1] if alone else able
    resources = {"slots": able[0].resources["slots"] if alone else 1.0, **dict.fromkeys(required, 1.0)}
    shared = set.intersection(*(set(gpus_of(facts)) for facts in able))
    if gpu and not alone and shared:  # else each has another kind, and Dask cannot count "any of them"
        resources[min(shared)] = 1.0
    return Place(tuple(facts.address for facts in able), resources, alone)


def gpus_of(facts: Facts) -> list[str]:
    """Return the resources of a worker's GPUs: "gpu-sm90"."""
    return sorted(name for name, number in facts.resources.items() if name.startswith("gpu-") and number >= 1)


def _needs(recipe: Recipe, step: Step) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """What a step must have, what it is better with, and whether it takes a GPU."""
    kind = () if step.machine in (ANY, PROCESSOR) else (f"gpu-{step.machine}",)
    if step.kind == "export":
        source = recipe_source(recipe).kind
        return (() if source in ("onnx", *TENSORFLOW_KINDS) else ("export",)), ("onnxruntime",), False
    if step.kind in ("simplify", "calibrate"):
        return (() if step.kind == "simplify" else ("onnxruntime",)), ("onnxruntime",), False
    if step.kind in ("trial", "rank"):
        return tuple({"onnxruntime", trial_target(step.trial, step.artifact)}), (), False
    if step.kind == "bench":
        targets = dict.fromkeys(named_artifact(recipe, name).target for name in step.built)
        return kind, (*targets, "pytorch"), any(target.startswith("tensorrt") for target in targets)
    section = named_artifact(recipe, step.artifact)
    if step.kind == "quantize":
        return (section.target,), ("onnxruntime",), False
    # TensorRT builds on the GPU that runs the engine; RTX builds for others ahead of time.
    return (section.target, *kind), (), section.target.startswith("tensorrt") and not section.gpus


def _has(facts: Facts, names: Sequence[str]) -> bool:
    return all(facts.resources.get(name, 0) >= 1 for name in names)


def _processor(facts: Facts) -> set[str]:
    return {name for name in facts.resources if name.startswith("cpu-")}


def _unavailable(step: Step, required: Sequence[str], workers: Sequence[Facts]) -> EngineUnavailable:
    missing = [name for name in required if not any(_has(facts, (name,)) for facts in workers)]
    words = " and ".join(missing or required)
    there = sorted({name for facts in workers for name in facts.resources if "=" not in name} - {"slots"})
    return EngineUnavailable(
        f"{step.name}: no worker has {words}; they announce {', '.join(there) or 'nothing'}",
        hint="start a worker that has it; `qcompile doctor` there says why it has not",
        engine=required[0],
        reason=f"no worker has {words}",
    )
