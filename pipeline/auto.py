"""`qcompile auto`: write a recipe, run it, tune INT8 if needed, and recommend an artifact within a budget.

    init ─▶ FOLDER/recipe.toml ─▶ run ─▶ FOLDER/out ─▶ recommend
                  ▲                        │
                  └── one more artifact ── tune, if plain INT8 exceeds the budget or is no faster

Finished steps are skipped, so a second call continues an interrupted one. The request is stored beside the
finished stages; a different request for the same folder raises `InvalidOption`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.report.recommendation import Recommendation, recommend
from ..core.artifact import read_manifest
from ..core.files import digest_files, write_json, write_text
from ..core.notebook import html_of
from ..core.processor import isa_here
from ..core.progress import Progress, silent
from ..data.batches import SAME_SAMPLES
from ..data.memory import with_samples_beside
from ..errors import InvalidOption, QCompileError
from ..model.sources.source import parse_source
from ..spec.decode import key as options_key
from ..spec.decode import shared, spec_from_call
from ..spec.recipes import AutoSpec, InitSpec
from ..spec.words import CPU_TARGETS, Isa, Target
from .propose.init import init
from .propose.model_facts import plain_name
from .recipe.published import RESULTS, SIMPLIFIED
from .recipe.recipe import Recipe, read_recipe
from .recipe.trust import places_outside
from .run import RunReport, StageListener, run
from .stages.bench_stages import metric_of
from .stages.stage import Executor
from .stages.stages import data_of, located
from .stages.store import AUTO_STATE, read_auto_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import AutoKeywords

RECIPE = "recipe.toml"
TUNED = "tuned-int8"
"""Name of the artifact that `tune` adds."""
_MAX_TIME_S = 20.0  # limit of each measurement in the search; `run` applies the recipe's limit


@dataclass
class AutoResult:
    """The recommendation of `auto` and its evidence.

    Attributes:
        artifact: File of the recommended artifact; None if no artifact is recommended.
        report: The last run: stages, artifacts, failures, results and page.
        notes: Remarks on the model's export, the number of samples and the tuning.
        stages: Every step to "done", "skipped" or "failed", in order.
    """

    recommendation: Recommendation
    artifact: Path | None
    report: RunReport
    recipe: Path
    notes: list[str]
    stages: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.recommendation.as_json(),
            "file": str(self.artifact) if self.artifact else None,
            "report": str(self.report.page) if self.report.page else None,
            "results": str(self.report.output / RESULTS),
            "recipe": str(self.recipe),
            "stages": self.stages,
            "failures": {name: error.as_json() for name, error in self.report.failures.items()},
            "notes": self.notes,
        }

    def _repr_html_(self) -> str:
        return html_of(self.recommendation)


def auto(
    model: str,
    spec: AutoSpec | None = None,
    /,
    *,
    executor: Executor | None = None,
    progress: Progress = silent,
    listener: StageListener | None = None,
    **options: Unpack[AutoKeywords],
) -> AutoResult:
    """Return the recommended artifact of a model.

    Args:
        model: A MODEL spelling.
        spec: Budget, data and output folder.
        executor: Carries out the stages and the trials of tuning; this process by default.
        progress: Called at every step.
        listener: Called after every stage.
        options: Fields of `AutoSpec` by name; they override those of `spec`.

    Returns:
        The recommendation and its file, which is None if no artifact is faster within the budget.

    Raises:
        InvalidOption: If samples are missing, the folder belongs to another request, or inputs are unknown.
        QCompileError: If a stage fails on which every artifact depends.
    """
    spec = spec_from_call(AutoSpec, spec, options)
    if not (spec.data or spec.evaluation):
        raise InvalidOption(
            "`data`: is missing; an accuracy budget requires evaluation samples",
            hint="give `data`, or `evaluation` and `calibration`",
            option="data",
        )
    spec = with_samples_beside(spec, folder_of(model, spec.output))
    steps = _Auto(model, spec, executor, progress, listener)
    steps.init()
    report = steps.run()
    if steps.tune(report):
        report = steps.run()
    recipe = read_recipe(steps.recipe)
    exported = read_manifest(report.output / f"{recipe.name}.onnx")
    if recipe.data.calibration and recipe.data.calibration == recipe.data.evaluation:
        steps.notes.append(SAME_SAMPLES)
    steps.notes += exported.warnings if exported else ()  # e.g. random weights
    recommendation = recommend(report.output / RESULTS, budget=recipe.budget)
    artifact = report.artifacts.get(recommendation.artifact)
    return AutoResult(recommendation, artifact, report, steps.recipe, steps.notes, steps.stages)


def folder_of(model: str, output: Path | None) -> Path:
    """Return the output folder; by default it is named after the model."""
    return output or Path(f"auto-{plain_name(parse_source(model))}")


@dataclass
class _Auto:
    """The steps of one request and their states; `auto.json` beside the finished stages stores them."""

    model: str
    spec: AutoSpec
    executor: Executor | None
    progress: Progress
    listener: StageListener | None
    stages: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = folder_of(self.model, self.spec.output)
        self.recipe = self.folder / RECIPE

    def init(self) -> None:
        """Write the recipe. A recipe of the same request remains, with the user's edits, unless `force`."""
        start = time.monotonic()
        request_spec = dataclasses.replace(self.spec, output=None, force=False)
        request = json.loads(json.dumps({"model": self.model, **options_key(request_spec)}))
        recipe_exists = self.recipe.exists() and not self.spec.force
        if recipe_exists and self._state().get("request") != request:
            raise InvalidOption(
                f"`output` {self.folder}: holds the recipe of another request",
                hint="choose another folder, or `force` to overwrite the recipe",
                option="output",
            )
        if not recipe_exists:
            options = shared(InitSpec, self.spec, output=self.recipe, force=True)
            command = ("qcompile", "auto", self.model)
            init_result = init(
                self.model, self.recipe, options, command=command, progress=self._progress_of("init")
            )
            need = init_result.need
            if need is not None:
                self.progress(need.text)
            state = {"request": request, "too_few": need.text if need and need.is_met is False else ""}
            self._save({**state, "trusted": places_outside(init_result.recipe)})  # the user typed these names
        if too_few := self._state().get("too_few"):
            self.notes.append(too_few)
        self._note("init", "skipped" if recipe_exists else "done", start)

    def run(self) -> RunReport:
        spec = self.spec
        report = run(
            read_recipe(self.recipe),
            trust=spec.trust,
            typed=(self.model, spec.data, spec.calibration, spec.evaluation, spec.metric),
            executor=self.executor,
            progress=self.progress,
            listener=self.listener,
        )
        for stage, state in report.stages.items():  # "done" in either of two runs counts as done
            if self.stages.get(stage) != "done":
                self.stages[stage] = state
        return report

    def tune(self, report: RunReport) -> bool:
        """Add a mix of INT8 and float layers to the recipe if plain INT8 is unsuitable; return success."""
        start, recipe = time.monotonic(), read_recipe(self.recipe)
        targets = worth_tuning(recipe, report, self.spec.max_drop)
        if not targets or any(artifact.name == TUNED for artifact in recipe.artifact):
            return False
        model = report.output / f"{recipe.name}{SIMPLIFIED if recipe.model.simplify else '.onnx'}"
        key = _search_key(recipe, model, targets, self.spec.max_drop)
        state = self._state()
        tuned: Any = state.get("tuned")
        is_done = isinstance(tuned, dict) and tuned.get("key") == key
        if not is_done:
            tuned = {"key": key, **self._search(recipe, model, targets)}
            self._save({**state, "tuned": tuned})
        self.notes += tuned["notes"]
        self._note("tune", "skipped" if is_done else "done", start)
        if not tuned["lines"]:
            return False
        text = self.recipe.read_text(encoding="utf-8").rstrip("\n")
        judged = f"candidates = {tuned['trials']}  # judged by `tune` on the same samples"
        text = re.sub(r"^(\[bench\].*)$", rf"\1\n{judged}", text, count=1, flags=re.MULTILINE)
        write_text(self.recipe, "\n".join([text, "", "# Found by `tune`:", *tuned["lines"]]) + "\n")
        return True

    def _search(self, recipe: Recipe, model: Path, targets: Sequence[Target]) -> dict[str, Any]:
        """Return the recipe lines of the mix (may be empty), notes, and the number of INT8 trials."""
        from .tune.elsewhere import on_executor
        from .tune.tune import artifact_lines, tune

        bench, folder, isa = recipe.bench, self.folder / "tuned", _isa(recipe)
        progress = self._progress_of("tune")
        assert bench is not None, "only measured recipes are tuned"
        function = metric_of(recipe)
        try:
            tuned = tune(
                str(model),
                str(located(recipe, recipe.data.evaluation)),
                folder,
                max_drop=self.spec.max_drop,
                metric=function.absolute if function else bench.metric,
                calibration=located(recipe, recipe.data.calibration),
                targets=targets,
                method=recipe.calibrate.method,
                batch_size=bench.batch_size,
                threads=bench.threads,
                max_time_s=min(bench.max_time_s, _MAX_TIME_S),
                isa=isa,
                elsewhere=on_executor(self.executor, folder, progress=progress) if self.executor else None,
                progress=progress,
            )
        except QCompileError as error:  # a failed search does not end the run
            return {"lines": [], "notes": [f"tune: {error.message}"], "trials": 0}
        # A mix without float layers is plain INT8, which the recipe may already contain.
        is_plain = not tuned.best.in_float and any(
            artifact.precision == "int8" for artifact in recipe.artifact
        )
        is_new_mix = tuned.best.precision == "int8" and not is_plain
        return {
            "lines": artifact_lines(tuned.best, TUNED, isa=isa) if is_new_mix else [],
            "notes": [f"tune: {note}" for note in tuned.notes if note != SAME_SAMPLES],
            "trials": sum(trial.precision == "int8" for trial in tuned.trials.values()),
        }

    def _progress_of(self, step: str) -> Progress:
        return lambda text, *counts: self.progress(f"{step}: {text}", *counts)

    def _state(self) -> dict[str, Any]:
        return read_auto_state(self.folder)

    def _save(self, state: dict[str, Any]) -> None:
        path = self.folder / AUTO_STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, state)

    def _note(self, stage: str, state: str, start: float) -> None:
        self.stages[stage] = state
        if self.listener:
            self.listener(stage, state, time.monotonic() - start)


def worth_tuning(recipe: Recipe, report: RunReport, max_drop: float) -> list[Target]:
    """Return the CPU targets to tune, empty if plain INT8 is suitable on at least one target.

    Plain INT8 is suitable if its drop is within the budget and it is faster than the baseline and every float
    artifact on the CPU. The drop's confidence interval is ignored: samples narrow it, tuning does not.
    """
    sections = [artifact for artifact in recipe.artifact if artifact.target in CPU_TARGETS]
    plain = [artifact for artifact in sections if artifact.precision == "int8" and artifact.mode == "static"]
    if report.results is None or not recipe.data.calibration or not plain:
        return []
    rows = {row.name: row for row in report.results.rows}
    float_rows = [rows.get(artifact.name) for artifact in sections if artifact.precision != "int8"]
    float_ms = [row.latency.median_ms for row in float_rows if row and row.latency]
    for row in filter(None, (rows.get(artifact.name) for artifact in plain)):
        drop = row.accuracy.drop if row.accuracy else None
        meets_budget = drop is None or drop.value <= max_drop
        is_fastest = row.latency is not None and row.latency.median_ms < min(float_ms, default=float("inf"))
        if meets_budget and is_fastest and row.speedup and row.speedup.verdict == "faster":
            return []
    return [target for target in CPU_TARGETS if any(artifact.target == target for artifact in plain)]


def _search_key(recipe: Recipe, model: Path, targets: Sequence[Target], max_drop: float) -> str:
    assert recipe.bench is not None, "only measured recipes are tuned"
    isa = _isa(recipe)
    settings = {
        "model": digest_files([model]),
        "data": [
            data_of(recipe, spec).digest() for spec in (recipe.data.calibration, recipe.data.evaluation)
        ],
        "targets": list(targets),
        "max_drop": max_drop,
        "metric": recipe.bench.metric,
        "method": recipe.calibrate.method,
        "isa": isa_here() if isa == "auto" else isa,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _isa(recipe: Recipe) -> Isa:
    """Return the first instruction set that an INT8 artifact of the recipe names, else "auto"."""
    sections = [section for section in recipe.artifact if section.target in CPU_TARGETS]
    isas = (section.isa for section in sections if section.precision == "int8")
    return next((isa for isa in isas if isa != "auto"), "auto")
