"""`qcompile run`: a recipe becomes stages; each is done once, and again only when something changed.

export ─ simplify ─┬─ calibrate ─┐
                   └─────────────┴─ quantize, build (per artifact) ─ bench ─ report
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .errors import EngineUnavailable
from .model.source import digest_source, parse_source
from .progress import Progress, silent
from .recipe import ArtifactSection, Recipe, read_recipe
from .stages import (
    Made,
    Stage,
    balance_stage,
    bench_stage,
    build_stage,
    calibrate_stage,
    export_stage,
    quantize_stage,
    report_stage,
    simplify_stage,
)
from .store import Store

if TYPE_CHECKING:
    from .bench import Results


class StageListener(Protocol):
    """Told of every stage when it is over."""

    def __call__(self, stage: str, state: str, seconds: float, /) -> None:
        """`state` is "done" or "skipped"."""


@dataclass
class RunReport:
    """What a run did.

    Attributes:
        output: Folder of the artifacts.
        stages: Stage to "done" or "skipped", in order.
        artifacts: Artifact name to its file.
        results: What was measured; None for a recipe without `[bench]`.
        page: The report of it.
        why_no_page: Why there is none.
    """

    output: Path
    stages: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    results: Results | None = None
    page: Path | None = None
    why_no_page: str = ""


def run(
    recipe: str | Path | Recipe,
    *,
    output: str | Path | None = None,
    again: tuple[str, ...] = (),
    progress: Progress = silent,
    listener: StageListener | None = None,
) -> RunReport:
    """Carry out a recipe.

    Args:
        recipe: A recipe or its file.
        output: Folder for the artifacts, in place of the recipe's.
        again: Stages to carry out although nothing changed, such as "bench".
        progress: Told of every step.
        listener: Told of every stage when it is over.

    Returns:
        What was done and what was skipped.

    Raises:
        RecipeError: If the recipe is wrong.
        QCompileError: Of the stage that failed; what was done before stays done.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    folder = Path(output) if output is not None else recipe.folder / recipe.output
    store = Store(folder)
    with store.locked():
        report = _Run(recipe, store, again, progress, listener).drive()
        store.forget_old()
    return report


class _Run:
    """One run: the stages in order, each handing its file to the next."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        again: tuple[str, ...],
        progress: Progress,
        listener: StageListener | None,
    ) -> None:
        self.recipe, self.store, self.again = recipe, store, again
        self.progress, self.listener = progress, listener
        self.report = RunReport(store.output)
        self.source = parse_source(recipe.model.source, base=recipe.folder)
        self.source_digest = digest_source(
            self.source, depends=[recipe.folder / name for name in recipe.model.depends]
        )

    def drive(self) -> RunReport:
        recipe = self.recipe
        model = self._do(export_stage(recipe, self.source, self.source_digest))
        if recipe.model.simplify:
            model = self._do(simplify_stage(recipe, model))
        if recipe.calibrate.balance:
            model = self._do(balance_stage(recipe, model))
        ranges = None
        if any(one.needs_ranges for one in recipe.artifact):
            checkpoint = self.store.folder / "calibrate.checkpoint"
            ranges = self._do(calibrate_stage(recipe, model, checkpoint))
        built = {one.name: self._artifact(one, model, ranges) for one in recipe.artifact}
        if recipe.bench:
            self._bench(built, ranges)
        return self.report

    def _artifact(self, one: ArtifactSection, model: Made, ranges: Made | None) -> Made:
        from .engines.registry import engine

        if engine(one.target).takes == "pytorch":
            stage = build_stage(self.recipe, one, self.source.absolute, self.source_digest)
        else:
            # The others convert a float graph themselves: TensorRT by flags where it has no strong types.
            by_types = one.precision in ("fp16", "bf16") and one.target in ("onnxruntime", "tensorrt-rtx")
            ranges = ranges if one.needs_ranges else None
            typed = one.precision in ("int8", "int4", "fp8", "best") or by_types
            if typed and not one.calibrator:
                model = self._do(quantize_stage(self.recipe, one, model, ranges))
                one, ranges = replace(one, layers=()), None  # the graph holds what they say
            stage = build_stage(self.recipe, one, str(model.path), model.digest, ranges)
        self.report.artifacts[one.name] = self.store.output / stage.file
        return self._do(stage)

    def _bench(self, built: Mapping[str, Made], ranges: Made | None) -> None:
        from .bench import load_results

        stage = bench_stage(self.recipe, self.source, self.source_digest, built, self.store.output)
        measured = self._do(stage)
        self.report.results = load_results(measured.path)
        try:
            page = self._do(report_stage(measured, ranges)).path
            self.report.page = self.store.output / page.name
        except EngineUnavailable as error:  # the charts' library is an extra; everything else is done
            self.report.why_no_page = error.message

    def _do(self, stage: Stage) -> Made:
        """Carry out a stage unless it is done already."""
        start = time.monotonic()

        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{stage.name}: {text}", done, total)

        again = any(stage.name == wanted or stage.name.startswith(f"{wanted}-") for wanted in self.again)
        stored = self.store.run(
            stage.name,
            {**stage.key, "file": stage.file},
            lambda folder: stage.work(folder / stage.file, told),
            again=again,
        )
        state = "skipped" if stored.was_done else "done"
        self.report.stages[stage.name] = state
        if self.listener:
            self.listener(stage.name, state, time.monotonic() - start)
        return Made(stored.folder / stage.file, stored.files[stage.file])
