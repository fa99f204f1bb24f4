"""`qcompile run --dry-run`: the stages of a recipe in order, what is done, and what the rest will take.

The stages are keyed as `run` keys them, and looked up; none runs, and nothing is written. What follows a
stage that is not done has no key yet, as that holds the digest of what it will be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import EngineUnavailable
from ..progress import Progress, silent
from ..spec.artifacts import ArtifactSection
from .estimate import Estimate, Scale, by_rule, measured, read_scale
from .kinds import for_every_kind
from .published import check_output
from .recipe import Recipe, read_recipe, refuse_matrix
from .stages import Made, given_ranges
from .steps import Step, source_digest, stage_of, takes_pytorch
from .store import Store
from .trust import trusted

State = Literal["done", "changed", "to do"]


@dataclass(frozen=True)
class PlannedStage:
    """One stage.

    Attributes:
        name: As `run` names it.
        state: "done"; "changed" where it was done with another key; "to do".
        why: Which keys changed, or what it follows.
        estimate: What it takes, or took.
    """

    name: str
    state: State
    why: str
    estimate: Estimate

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {"stage": self.name, "state": self.state, "why": self.why, **vars(self.estimate)}


@dataclass(frozen=True)
class Plan:
    """The stages of a recipe, and where they are kept."""

    output: Path
    stages: tuple[PlannedStage, ...]

    @property
    def pending(self) -> list[PlannedStage]:
        """The stages that a run would carry out."""
        return [one for one in self.stages if one.state != "done"]

    def total(self, of: str) -> float | None:
        """Return the sum of `seconds` or `disk_bytes` of what is pending; None where one is not known."""
        values = [getattr(one.estimate, of) for one in self.pending]
        return None if None in values else float(sum(values))

    @property
    def peak_bytes(self) -> int | None:
        """The largest memory of what is pending; None where one is not known."""
        values = [one.estimate.peak_bytes for one in self.pending]
        return None if None in values else max((one for one in values if one is not None), default=0)

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "output": str(self.output),
            "stages": [one.as_json() for one in self.stages],
            "seconds": self.total("seconds"),
            "peak_bytes": self.peak_bytes,
            "disk_bytes": self.total("disk_bytes"),
        }


def plan(
    recipe: str | Path | Recipe,
    *,
    output: str | Path | None = None,
    again: tuple[str, ...] = (),
    trust: bool = False,
    shared: Path | None = None,
    progress: Progress = silent,
) -> Plan:
    """Return what `run` would do.

    Args:
        recipe, output, again, trust, shared: As `run`.
        progress: Told of every step.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    refuse_matrix(recipe)
    given = Path(output) if output is not None else None
    recipe = for_every_kind(trusted(recipe, trust=trust, output=given), ())
    folder = given or recipe.folder / recipe.output
    check_output(recipe, recipe.folder, folder)
    planner = _Planner(recipe, Store(folder, folder=shared), again)
    planner.drive()
    pending = any(state != "done" for _, state, _, _ in planner.found)
    scale = read_scale(recipe, planner.model, needed=pending, progress=progress)
    return Plan(folder, tuple(planner.estimated(scale)))


class _Planner:
    """As `run._Run`, which carries the steps out; one that is not done yields None in place of its file."""

    def __init__(self, recipe: Recipe, store: Store, again: tuple[str, ...]) -> None:
        self.recipe, self.store, self.again = recipe, store, again
        self.digest = source_digest(recipe)
        self.found: list[tuple[str, State, str, ArtifactSection | None]] = []
        self.model: Made | None = None

    def drive(self) -> None:
        recipe = self.recipe
        self.model = model = self._look(Step(kind="export", source_digest=self.digest), {})
        if recipe.model.simplify:
            model = self._look(Step(kind="simplify"), {"model": model})
        ranges: dict[str, Made | None] = {}
        if any(one.needs_ranges for one in recipe.artifact) and recipe.has_ranges:
            ranges = {"ranges": given_ranges(recipe) or self._look(Step(kind="calibrate"), {"model": model})}
        built = {one.name: self._artifact(one, model, ranges) for one in recipe.artifact}
        if recipe.bench:
            results = self._look(Step(kind="bench", source_digest=self.digest), {}, built)
            self._look(Step(kind="report"), {"results": results, **{k: v for k, v in ranges.items() if v}})

    def estimated(self, scale: Scale) -> Iterator[PlannedStage]:
        """The stages with what they take: as measured last time, else by rule."""
        for name, state, why, artifact in self.found:
            known = (measured(record) for record in self.store.records(name))
            last = next((one for one in known if one is not None), None)
            yield PlannedStage(name, state, why, last or by_rule(name, scale, artifact))

    def _artifact(
        self, one: ArtifactSection, model: Made | None, ranges: Mapping[str, Made | None]
    ) -> Made | None:
        from ..engines.capabilities import capabilities
        from ..engines.registry import engine
        from ..lowering import writes_types

        build = Step(kind="build", artifact=one.name, source_digest=self.digest)
        if takes_pytorch(one):
            return self._look(build, {}, artifact=one)
        files = {"model": model, **(ranges if one.needs_ranges else {})}
        try:
            is_lowered = writes_types(one, capabilities(engine(one.target)))
        except EngineUnavailable as error:
            self.found.append((build.name, "to do", f"cannot be built here: {error.message}", one))
            return None
        if is_lowered:
            files["graph"] = self._look(Step(kind="quantize", artifact=one.name), files, artifact=one)
        return self._look(build, files, artifact=one)

    def _look(
        self,
        step: Step,
        files: Mapping[str, Made | None],
        built: Mapping[str, Made | None] | None = None,
        artifact: ArtifactSection | None = None,
    ) -> Made | None:
        """Look a step up; None where it, or what it needs, is not done."""
        name, built = step.name, built or {}
        records = self.store.records(name)
        if None in [*files.values(), *built.values()]:
            before = next((one for one, state, _, _ in self.found if state != "done"), "")
            state: State = "changed" if records else "to do"
            self.found.append((name, state, f"follows {before}", artifact))
            return None
        step = replace(step, files=_all_made(files), built=_all_made(built))
        stage = stage_of(self.recipe, step, self.store.output)
        assert stage is not None, "it was asked whether the graph is lowered"
        key = {**stage.key, "file": stage.file}
        asked = any(name == one or name.startswith(f"{one}-") for one in self.again)
        stored = None if asked else self.store.find(name, key)
        if stored is not None:
            self.found.append((name, "done", "", artifact))
            return Made(stored.folder / stage.file, stored.files[stage.file])
        why = "asked for" if asked else difference(records[0].get("key", {}), key) if records else ""
        self.found.append((name, "changed" if records and not asked else "to do", why, artifact))
        return None


def _all_made(files: Mapping[str, Made | None]) -> dict[str, Made]:
    return {name: made for name, made in files.items() if made is not None}


def difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> str:
    """Return the keys in which two differ, by their path, such as "data, options.samples"."""
    names: list[str] = []
    for key in [*now, *(key for key in before if key not in now)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names += filter(None, [difference(old, new, f"{prefix}{key}.")])
        elif _plain(old) != _plain(new):
            names.append(f"{prefix}{key}")
    return ", ".join(names)


def _plain(value: Any) -> Any:
    """A tuple as the list that JSON made of it."""
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
