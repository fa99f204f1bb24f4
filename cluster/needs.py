"""What a step needs of a worker, and which workers have it.

| step               | must have                                       | better with                         |
|--------------------|-------------------------------------------------|-------------------------------------|
| export             | `export`, of a model that PyTorch exports       | `onnxruntime`, which checks it      |
| simplify           |                                                 | onnxsim, `onnxruntime`              |
| calibrate          | `onnxruntime`                                   |                                     |
| quantize           | the target                                      | `onnxruntime`                       |
| build              | the target; a GPU, for TensorRT of this machine | the kind of machine that measures   |
| bench              | the kind of GPU that it is for                  | all targets, a GPU, `pytorch`       |
| trial, rank        | `onnxruntime`, the target                       |                                     |

Names are those of the resources that a worker announces to Dask (`cluster.facts`). Every step takes one of
`slots`, a measurement all of them, and the `memory` that `pipeline.estimate` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import EngineUnavailable
from ..files import side_files
from ..model.source import TENSORFLOW_KINDS
from ..pipeline.estimate import Scale, by_rule, measured
from ..pipeline.kinds import ANY, PROCESSOR
from ..pipeline.recipe import ArtifactSection, Recipe
from ..pipeline.stages import recipe_source
from ..pipeline.steps import Step, artifact
from ..pipeline.store import Store
from ..pipeline.trial_stages import trial_target
from .facts import Facts

_LEAST_BYTES = 300_000_000
_RULES = {"trial": "bench", "rank": "calibrate"}
"""Steps without a rule of their own to those that they take as much memory as."""


@dataclass(frozen=True)
class Needs:
    """What a step needs.

    Attributes:
        required: Resources without which it cannot be done.
        preferred: Resources and packages that are asked for where any worker has them.
        gpu: Whether it takes a GPU of the worker.
        memory_bytes: What it is thought to take.
        alone: Whether nothing else may run beside it.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    gpu: bool = False
    memory_bytes: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Place:
    """Where a step may go.

    Attributes:
        workers: Addresses, the best first.
        resources: What it takes there, as Dask counts it.
        alone: Whether nothing else may run beside it.
        warning: What its user should know; empty for nothing.
    """

    workers: tuple[str, ...]
    resources: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False
    warning: str = ""


def needs_of(recipe: Recipe, step: Step, store: Store) -> Needs:
    """Return what a step needs; nothing is imported or loaded for it."""
    memory = memory_bytes(recipe, step, store)
    if step.kind == "export":
        kind = recipe_source(recipe).kind
        exported = kind != "onnx" and kind not in TENSORFLOW_KINDS
        return Needs(("export",) if exported else (), ("onnxruntime",), memory_bytes=memory)
    if step.kind == "simplify":
        return Needs((), ("onnxsim", "onnxruntime"), memory_bytes=memory)
    if step.kind == "calibrate":
        return Needs(("onnxruntime",), memory_bytes=memory)
    if step.kind == "quantize":
        return Needs((artifact(recipe, step.artifact).target,), ("onnxruntime",), memory_bytes=memory)
    if step.kind == "build":
        one = artifact(recipe, step.artifact)
        return Needs((one.target, *_kind(step)), gpu=_needs_gpu(one), memory_bytes=memory)
    if step.kind in ("trial", "rank"):
        names = dict.fromkeys(("onnxruntime", trial_target(step.trial, step.artifact)))
        return Needs(tuple(names), memory_bytes=memory)
    targets = dict.fromkeys(artifact(recipe, name).target for name in step.built)
    gpu = any(one.target.startswith("tensorrt") for one in recipe.artifact if one.name in step.built)
    return Needs(_kind(step), (*targets, "pytorch"), gpu=gpu, memory_bytes=memory, alone=True)


def place(step: Step, needs: Needs, workers: Iterable[Facts], home: Facts | None = None) -> Place:
    """Return the workers that a step may go to.

    Args:
        step: What is done.
        needs: What it needs.
        workers: Those that may be asked.
        home: The worker that will measure what is built: another processor may run it otherwise.

    Raises:
        EngineUnavailable: If none has what it needs.
    """
    everyone = sorted(workers, key=lambda one: (one.name, one.address))
    anywhere = not needs.gpu or needs.alone
    able = [one for one in everyone if _has(one, needs.required) and (anywhere or gpus_of(one))]
    if not able:
        raise _unavailable(step, needs, everyone)
    for wish in (*needs.preferred, *(["gpu"] if needs.gpu else [])):
        able = [one for one in able if _grants(one, wish)] or able
    if home is not None and step.kind == "build" and not needs.gpu:
        able = [one for one in able if kind_of_machine(one) == kind_of_machine(home)] or able
    able, memory, warning = _with_memory(step, able, needs.memory_bytes)
    if needs.alone:
        able = able[:1]
    return Place(tuple(one.address for one in able), _resources(needs, able, memory), needs.alone, warning)


def kind_of_machine(facts: Facts) -> frozenset[str]:
    """Return the instruction sets of a worker's processor."""
    return frozenset(name for name in facts.resources if name.startswith("cpu-"))


def memory_bytes(recipe: Recipe, step: Step, store: Store) -> int:
    """Return the memory that a step took last time, else what the rule tells of the size of its files."""
    for record in store.records(step.name):
        last = measured(record)
        if last is not None and last.peak_bytes:
            return last.peak_bytes
    weights = _weight_bytes(recipe, step)
    scale = Scale(weights, None, 1, 0, 0, max(1, len(step.built) + 1), 0.0)
    rule = _RULES.get(step.kind, step.name)
    chosen = artifact(recipe, step.artifact) if step.artifact and rule == step.name else None
    return max(_LEAST_BYTES, by_rule(rule, scale, chosen).peak_bytes or 0)


def _weight_bytes(recipe: Recipe, step: Step) -> int | None:
    model = step.files.get("model")
    if model is not None:
        return _size(model.path)
    if step.built:
        return max(_size(made.path) for made in step.built.values())
    source = recipe_source(recipe)
    weights = recipe.folder / recipe.model.weights if recipe.model.weights else None
    paths = [path for path in (weights, source.path) if path is not None and path.is_file()]
    return sum(map(_size, paths)) if paths else None


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in (path, *side_files(path)) if one.is_file())


def _needs_gpu(one: ArtifactSection) -> bool:
    """Whether it is built on the GPU that runs it; RTX builds for others ahead of time."""
    return one.target.startswith("tensorrt") and not one.gpus


def _kind(step: Step) -> tuple[str, ...]:
    """The GPU of the machines that a step is for."""
    return () if step.machine in (ANY, PROCESSOR) else (f"gpu-{step.machine}",)


def _has(facts: Facts, names: Sequence[str]) -> bool:
    return all(facts.resources.get(name, 0) >= 1 for name in names)


def gpus_of(facts: Facts) -> list[str]:
    """Return the resources of a worker's GPUs: "gpu-sm90"."""
    return sorted(name for name, number in facts.resources.items() if name.startswith("gpu-") and number >= 1)


def _grants(facts: Facts, wish: str) -> bool:
    return bool(gpus_of(facts)) if wish == "gpu" else _has(facts, [wish]) or wish in facts.versions


def _with_memory(step: Step, able: list[Facts], needed: int) -> tuple[list[Facts], int, str]:
    """Those with enough memory; else the one with the most, and a warning."""
    fitting = [one for one in able if one.resources.get("memory", 0) >= needed]
    if fitting:
        return fitting, needed, ""
    largest = max(able, key=lambda one: one.resources.get("memory", 0))
    there = int(largest.resources.get("memory", 0))
    warning = (
        f"{step.name} may take {needed / 1e9:.1f} GB of memory; worker {largest.name} has the most, "
        f"{there / 1e9:.1f} GB: it is tried there"
    )
    return [largest], there, warning


def _resources(needs: Needs, able: Sequence[Facts], memory: int) -> dict[str, float]:
    slots = min(one.resources.get("slots", 1.0) for one in able) if needs.alone else 1.0
    taken = {"slots": slots, **dict.fromkeys(needs.required, 1.0)}
    if memory:
        taken["memory"] = float(memory)
    if needs.gpu and not needs.alone:
        shared = set.intersection(*(set(gpus_of(one)) for one in able))
        if shared:  # else each has another kind, and Dask cannot count "any of them"
            taken[min(shared)] = 1.0
    return taken


def _unavailable(step: Step, needs: Needs, workers: Sequence[Facts]) -> EngineUnavailable:
    missing = [name for name in needs.required if not any(_has(one, [name]) for one in workers)]
    if not missing and needs.gpu:
        missing = ["a GPU"]
    words = " and ".join(missing or needs.required)
    reasons = [
        f"{one.name}: {one.why_not[name]}" for one in workers for name in missing if one.why_not.get(name)
    ]
    there = sorted({name for one in workers for name in one.resources} - {"slots", "memory"})
    return EngineUnavailable(
        f"{step.name}: no worker has {words}; they announce {', '.join(there) or 'nothing'}",
        hint=f"start a worker that has it{f' ({reasons[0]})' if reasons else ''}",
        engine=needs.required[0] if needs.required else "",
        reason=reasons[0] if reasons else f"no worker has {words}",
    )
