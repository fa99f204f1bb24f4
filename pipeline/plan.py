"""`qcompile run --dry-run`: the stages of a recipe in order, what is done, and what the rest will take.

The stages are keyed as `run` keys them, and looked up; none runs, and nothing is written. What follows a
stage that is not done has no key yet, as that holds the digest of what it will be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import EngineUnavailable
from ..progress import Progress, silent
from ..spec.decode import spec_from_call
from ..spec.recipes import RunSpec
from .estimate import Estimate, Scale, by_rule, measured, read_scale
from .graph import ThisProcess, key_of, kind_of
from .kinds import named_artifact
from .recipe import Recipe
from .run import Visit, prepared
from .stage import Done, Made, Stage
from .store import FOLDER, Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import RunKeywords

State = Literal["done", "changed", "to do"]


@dataclass(frozen=True)
class PlannedStage:
    """One stage: "changed" is one that was done with another key.

    `why` says which keys changed, or what it follows; the estimate is what it takes, or took.
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
    spec: RunSpec | None = None,
    /,
    *,
    shared: Path | None = None,
    progress: Progress = silent,
    **options: Unpack[RunKeywords],
) -> Plan:
    """Return what `run` would do with these options."""
    spec = spec_from_call(RunSpec, spec, options)
    recipe, folder = prepared(recipe, spec)
    store, looks = Store(folder, folder=shared), _Looks()
    for error in Visit(recipe, store, spec.again, looks).drive().failures.values():
        raise error
    pending = any(state != "done" for _, state, _ in looks.stages)
    scale = read_scale(recipe, looks.model, needed=pending, progress=progress)
    return Plan(folder, tuple(looks.planned(recipe, store, scale)))


_PENDING = Done(Made(Path(FOLDER, "pending"), ""), was_done=False)
"""What stands for the file of a stage that is not done: it has no digest."""


class _Looks(ThisProcess):
    """Looks each stage up that `run` would carry out, and carries none out."""

    def __init__(self) -> None:
        self.stages: list[tuple[Stage, State, str]] = []
        self.model: Path | None = None

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> Done | None:
        """As `Executor.do`, with `_PENDING` for a stage that it would carry out."""
        kind = kind_of(stage)
        try:
            if not kind.applies(recipe, stage):
                return None
        except EngineUnavailable as error:
            if kind.optional:
                return None
            return self._pending(stage, "to do", f"cannot be built here: {error.message}")
        records = store.records(stage.name)
        before: State = "changed" if records else "to do"
        if any(not made.digest for made in stage.inputs()):
            return self._pending(stage, before, f"follows {next(self._names_to_do())}")
        key = key_of(recipe, stage)
        assert key is not None, "it was asked whether there is something to do"
        if again:
            return self._pending(stage, "to do", "asked for")
        stored = store.find(stage.name, key)
        if stored is None:
            return self._pending(stage, before, difference(records[0].get("key", {}), key) if records else "")
        self.stages.append((stage, "done", ""))
        made = Made(stored.folder / key["file"], stored.files[key["file"]])
        self.model = made.path if stage.kind == "export" else self.model
        return Done(made, was_done=True)

    def planned(self, recipe: Recipe, store: Store, scale: Scale) -> Iterator[PlannedStage]:
        """Yield the stages with what they take: as measured last time, else by rule."""
        for stage, state, why in self.stages:
            known = (measured(record) for record in store.records(stage.name))
            last = next((one for one in known if one is not None), None)
            artifact = named_artifact(recipe, stage.artifact) if stage.artifact else None
            yield PlannedStage(stage.name, state, why, last or by_rule(kind_of(stage).rule, scale, artifact))

    def _pending(self, stage: Stage, state: State, why: str) -> Done:
        self.stages.append((stage, state, why))
        return _PENDING

    def _names_to_do(self) -> Iterator[str]:
        return (stage.name for stage, state, _ in self.stages if state != "done")


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
