"""Kinds of machines: an artifact for every GPU of a cluster, and where each is built and measured.

A kind is a compute capability ("sm90"): machines with such a GPU. The empty kind is any machine.

    gpus = ["cluster"]   NAME ─▶ NAME-sm86, NAME-sm90      on a cluster with GPUs of these kinds
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RecipeError
from ..spec.artifacts import ArtifactSection
from ..spec.decode import Refused
from ..spec.words import CLUSTER, TENSORRT_TARGETS
from .recipe import Recipe, check_names

if TYPE_CHECKING:
    from .stage import Stage

ANY = ""
PROCESSOR = "cpu"
"""Name of the measurement without a GPU where there are others."""


def for_every_kind(recipe: Recipe, kinds: Sequence[str]) -> Recipe:
    """Return the recipe with one artifact for each kind in place of each that is for the cluster's GPUs."""
    clustered = [one for one in recipe.artifact if one.gpus == (CLUSTER,)]
    if not clustered:
        return recipe
    key = f"artifact[{recipe.artifact.index(clustered[0])}].gpus"
    if not kinds:
        name = clustered[0].name
        raise RecipeError(
            f"{recipe.path}: key '{key}' is {CLUSTER!r}; there is no cluster with a GPU for {name!r}",
            hint="run it with `scheduler`, or name compute capabilities, such as sm86",
            file=recipe.path,
            key=key,
        )
    try:
        for_cluster = {one.name: [for_kind(one, kind) for kind in kinds] for one in clustered}
        artifacts = (for_cluster.get(one.name, [one]) for one in recipe.artifact)
        expanded = replace(recipe, artifact=tuple(itertools.chain.from_iterable(artifacts)))
        check_names(expanded)
    except Refused as error:
        raise RecipeError(
            f"{recipe.path}: with artifacts for {', '.join(kinds)}, key '{error.key}' {error.sentence}",
            hint=error.hint,
            file=recipe.path,
            key=error.key,
        ) from error
    return expanded


def for_kind(one: ArtifactSection, kind: str) -> ArtifactSection:
    """Return the artifact of one kind: "NAME-sm86"."""
    return replace(one, name=f"{one.name}-{kind}", gpus=(kind,))


def named_artifact(recipe: Recipe, name: str) -> ArtifactSection:
    """Return the artifact of a name, also of one that is for the cluster's GPUs and of this kind.

    So a worker reads the recipe as it was written, whatever the cluster has.
    """
    for one in recipe.artifact:
        if one.name == name:
            return one
    for one in recipe.artifact:
        kind = name.removeprefix(f"{one.name}-")
        if one.gpus == (CLUSTER,) and kind != name:
            return for_kind(one, kind)
    raise KeyError(name)


def built_on(one: ArtifactSection) -> str:
    """Return the kind of machine that an artifact must be built on: TensorRT builds for the GPU it finds."""
    return one.gpus[0] if one.target == "tensorrt" and len(one.gpus) == 1 else ANY


def measured_on(
    recipe: Recipe, built_for: Mapping[str, Sequence[str]], kinds: Sequence[str]
) -> dict[str, list[str]]:
    """Return kind of machine to the artifacts that are measured there, beside the baseline.

    An engine goes to each of `kinds`, the cluster's GPUs, that it was built for; where none is there, it
    stays with the others, where its row says why it does not run. The rest goes where no GPU is needed;
    where `bench.devices` names a GPU, to the machines with the first kind. The kinds are in order, the one
    without a GPU first; without any, all is measured together.
    """
    section, rest = recipe.bench, kind_of_others(recipe, kinds)
    assert section is not None, "the caller looks first"
    groups: dict[str, list[str]] = {}
    for name, gpus in built_for.items():
        for kind in [kind for kind in kinds if kind in gpus] or [rest]:
            groups.setdefault(kind, []).append(name)
    if not groups or (section.models and rest not in groups):
        groups[rest] = []
    return {kind: groups[kind] for kind in sorted(groups)}


def kind_of_others(recipe: Recipe, kinds: Sequence[str]) -> str:
    """Return the kind of machine that measures what is for no kind of GPU."""
    devices = recipe.bench.devices if recipe.bench else ()
    return kinds[0] if kinds and any(device != "cpu" for device in devices) else ANY


def measured_apart(recipe: Recipe, whole: Stage, kinds: Sequence[str]) -> list[Stage]:
    """Return the stage that measures all, or one for each kind of machine, that of the processor first.

    The first of them has the rows of what was not built.
    """
    targets = {name: named_artifact(recipe, name).target for name in whole.built}
    built_for = {
        name: gpus_of(made.path) if targets[name] in TENSORRT_TARGETS else ()
        for name, made in whole.built.items()
    }
    groups = measured_on(recipe, built_for, kinds)
    if list(groups) == [ANY]:
        return [whole]
    assert recipe.bench is not None, "the caller looks first"
    stages: list[Stage] = []
    baseline = recipe.bench.baseline
    for kind, names in groups.items():
        beside = {baseline} if kind in built_for.get(baseline, ()) or not built_for.get(baseline) else set()
        stage = replace(
            whole,
            machine=kind or PROCESSOR,
            built={name: made for name, made in whole.built.items() if name in {*names, *beside}},
        )
        stages.append(replace(stage, why_not={}, unavailable=()) if stages else stage)
    return stages


def gpus_of(path: Path) -> tuple[str, ...]:
    """Return the GPUs that an artifact was built for, as its manifest says."""
    from ..artifact import read_manifest

    manifest = read_manifest(path)
    listed = manifest.device.get("gpus") if manifest else None
    return tuple(str(one) for one in listed) if isinstance(listed, list) else ()
