"""`qcompile run --dry-run`: the stages of a recipe in order, what is done, and what the rest will take.

The stages are keyed as `run` keys them, and looked up; none runs, and nothing is written. What follows a
stage that is not done has no key yet, as that holds the digest of what it will be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import EngineUnavailable, QCompileError
from ..model.source import digest_source
from ..progress import Progress, silent
from ..spec.artifacts import ArtifactSection
from .bench_stages import bench_stage, report_stage
from .estimate import Estimate, Scale, by_rule, measured
from .kinds import for_every_kind
from .published import check_output
from .recipe import Recipe, read_recipe, refuse_matrix
from .scale import read_scale
from .stages import (
    Made,
    Stage,
    build_stage,
    calibrate_stage,
    export_stage,
    given_ranges,
    lower_stage,
    recipe_source,
    simplify_stage,
)
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

    Raises:
        RecipeError, InvalidOption, MissingFile: As `run` would at once.
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
    """As `run._Run`, which carries the stages out; one that is not done yields None in place of its file."""

    def __init__(self, recipe: Recipe, store: Store, again: tuple[str, ...]) -> None:
        self.recipe, self.store, self.again = recipe, store, again
        self.source = recipe_source(recipe)
        self.digest = digest_source(
            self.source, depends=[recipe.folder / name for name in recipe.model.depends]
        )
        self.found: list[tuple[str, State, str, ArtifactSection | None]] = []
        self.model: Made | None = None

    def drive(self) -> None:
        recipe = self.recipe
        model = self._step("export", lambda: export_stage(recipe, self.source, self.digest))
        self.model = model
        if recipe.model.simplify:
            model = self._step("simplify", lambda: simplify_stage(recipe, _made(model)), model)
        ranges, has_ranges = self._ranges(model)
        built = {one.name: self._artifact(one, model, ranges, has_ranges) for one in recipe.artifact}
        if recipe.bench:
            results = self._step("bench", lambda: self._bench_stage(built), *built.values())
            self._step("report", lambda: report_stage(_made(results), ranges, recipe.budget), results)

    def estimated(self, scale: Scale) -> Iterator[PlannedStage]:
        """The stages with what they take: as measured last time, else by rule."""
        for name, state, why, artifact in self.found:
            known = (measured(record) for record in self.store.records(name))
            last = next((one for one in known if one is not None), None)
            yield PlannedStage(name, state, why, last or by_rule(name, scale, artifact))

    def _ranges(self, model: Made | None) -> tuple[Made | None, bool]:
        recipe = self.recipe
        if not (any(one.needs_ranges for one in recipe.artifact) and recipe.has_ranges):
            return None, False
        if given := given_ranges(recipe):
            return given, True
        checkpoint = self.store.folder / "calibrate.checkpoint"
        return self._step("calibrate", lambda: calibrate_stage(recipe, _made(model), checkpoint), model), True

    def _artifact(
        self, one: ArtifactSection, model: Made | None, ranges: Made | None, has_ranges: bool
    ) -> Made | None:
        from ..engines.capabilities import capabilities
        from ..engines.registry import engine
        from ..lowering import writes_types

        recipe, chosen, build = self.recipe, engine(one.target), f"build-{one.name}"
        if chosen.takes == "pytorch":
            make = lambda: build_stage(recipe, one, self.source.absolute, self.digest)  # noqa: E731
            return self._step(build, make, artifact=one)
        needed = [model, ranges] if one.needs_ranges and has_ranges else [model]
        given = ranges if one.needs_ranges else None
        try:
            needs = capabilities(chosen)
            is_lowered = writes_types(one, needs)
        except EngineUnavailable as error:
            self.found.append((build, "to do", f"cannot be built here: {error.message}", one))
            return None
        graph: Made | None = None
        if is_lowered:
            graph = self._step(
                f"quantize-{one.name}",
                lambda: _stage(lower_stage(recipe, one, _made(model), given, needs)),
                *needed,
                artifact=one,
            )
            needed = [graph]
        return self._step(
            build,
            lambda: build_stage(
                recipe, one, str(_made(model).path), _made(model).digest, ranges=given, graph=graph
            ),
            *needed,
            artifact=one,
        )

    def _bench_stage(self, built: Mapping[str, Made | None]) -> Stage:
        done = {name: _made(made) for name, made in built.items()}
        return bench_stage(self.recipe, self.source, self.digest, done, self.store.output, {})

    def _step(
        self,
        name: str,
        make: Callable[[], Stage],
        *needed: Made | None,
        artifact: ArtifactSection | None = None,
    ) -> Made | None:
        """Look a stage up; None where it, or what it needs, is not done."""
        records = self.store.records(name)
        if None in needed:
            before = next((one for one, state, _, _ in self.found if state != "done"), "")
            state: State = "changed" if records else "to do"
            self.found.append((name, state, f"follows {before}", artifact))
            return None
        stage = make()
        key = {**stage.key, "file": stage.file}
        asked = any(name == one or name.startswith(f"{one}-") for one in self.again)
        stored = None if asked else self.store.find(name, key)
        if stored is not None:
            self.found.append((name, "done", "", artifact))
            return Made(stored.folder / stage.file, stored.files[stage.file])
        why = "asked for" if asked else difference(records[0].get("key", {}), key) if records else ""
        self.found.append((name, "changed" if records and not asked else "to do", why, artifact))
        return None


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


def _made(made: Made | None) -> Made:
    assert made is not None, "the caller looks first"
    return made


def _stage(stage: Stage | None) -> Stage:
    if stage is None:
        raise QCompileError("the graph stays in float")
    return stage
