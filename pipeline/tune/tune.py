"""`qcompile tune`: measure mixes of INT8 and float layers to find the fastest within an accuracy budget."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.metrics.accuracy import read_metric
from ...bench.report.svg import Scale, axes, labels, line, mark, picture, polyline, text
from ...bench.results.drop import samples_for_budget
from ...compiler.export import export
from ...compiler.quantize.calibrate import calibrate
from ...compiler.quantize.sensitivity import LayerSensitivity
from ...compiler.simplify.simplify import simplify
from ...core.files import write_json, write_text
from ...core.installation import install_hint
from ...core.plain_text import toml_table
from ...core.processor import isa_here
from ...core.progress import Progress, silent
from ...data.spelling import parse_spelling
from ...engines.registry import engine
from ...errors import DataError, EngineUnavailable, IntentNotReached, InvalidOption, QuantizationError
from ...model.graph.graph import graph_precision
from ...model.graph.graph_rules import graph_target
from ...model.graph.onnx_file import read_graph
from ...model.sources.source import parse_source
from ...spec.decode import spec_from_call
from ...spec.models import CalibrateSpec
from ...spec.recipes import TuneSpec
from ...spec.words import CPU_TARGETS, FloatPrecision, Isa, Target
from .trials import Trial, TrialExecutor, TrialMaker, TrialRunner, TrialSetting, slower_layers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import TuneKeywords

_SLOW_ROUNDS = 2  # rounds that move slow INT8 layers to floating point
_MAX_RETRIES = 8  # float layers that are retried in INT8
_MAX_TRIALS = 2 + 12 + _MAX_RETRIES + _SLOW_ROUNDS
"""Maximum of INT8 trials per target with 4096 layers: whole, bisection, retried layers, slow layers."""


@dataclass(frozen=True)
class TuneResult:
    """Result of `tune`.

    Attributes:
        best: The fastest trial within the budget, which `recipe` reproduces; float if no INT8 is faster.
        front: Names of the Pareto-optimal trials in latency and accuracy, by latency.
        damage: Target to its layers, the most damaging first.
        float_value: The metric of the float model.
        slow_layers: Layers that are slower in INT8 than in floating point, and were moved to it.
    """

    best: Trial
    trials: dict[str, Trial]
    front: list[str]
    damage: dict[str, list[LayerSensitivity]]
    float_value: float
    slow_layers: list[str]
    recipe: Path
    notes: list[str]
    metric: str

    @property
    def timed(self) -> list[Trial]:
        """The trials with a latency, the fastest first."""
        timed = [trial for trial in self.trials.values() if trial.latency_ms]
        return sorted(timed, key=lambda trial: trial.latency_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "best": self.best.as_json(),
            "metric": self.metric,
            "float_value": self.float_value,
            "trials": [trial.as_json() for trial in self.timed],
            "front": self.front,
            "damage": {target: list(map(_damage, ranked)) for target, ranked in self.damage.items()},
            "slow_layers": self.slow_layers,
            "recipe": str(self.recipe),
            "notes": self.notes,
        }


def _damage(layer: LayerSensitivity) -> dict[str, Any]:
    snr_db = layer.snr_db if layer.noise > 0 else None  # JSON cannot represent infinity
    return {"layer": layer.layer, "operator": layer.operator, "noise": layer.noise, "snr_db": snr_db}


def tune(
    model: str,
    data: str,
    output: str | Path,
    spec: TuneSpec | None = None,
    /,
    *,
    isa: Isa = "auto",
    elsewhere: Callable[[TrialSetting], TrialExecutor] | None = None,
    progress: Progress = silent,
    **options: Unpack[TuneKeywords],
) -> TuneResult:
    """Find the fastest mix of INT8 and float layers with a drop of at most `max_drop`, and write its recipe.

    Args:
        model: Float ONNX file, used without changes, or a MODEL, which is exported and simplified.
        data: Evaluation samples, with labels if the metric requires them.
        output: Folder for the artifacts, `recipe.toml` and `tune.json`.
        spec: Options of the budget, the search and the measurement.
        isa: Target instruction set of INT8; "auto" is that of this processor, which measures.
        elsewhere: Returns a `TrialExecutor` for a setting: trials run concurrently in other processes or on
            other machines. The result is that of one process; latency is measured here.
        progress: Called at every step.
        options: Fields of `TuneSpec` by name; they override those of `spec`.

    Returns:
        The best trial, all trials, and the ranking of the layers.

    Raises:
        InvalidOption, DataError: If options or data are invalid.
        EngineUnavailable: If no target can be built and run here.
        QuantizationError: If no layer of the model can be quantized for a target.
    """
    spec = spec_from_call(TuneSpec, spec, options)
    read_metric(spec.metric)  # raises for an invalid metric before the first file is written
    targets, method = _targets(spec.targets), spec.method or None
    calibration = spec.calibration or data
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    source = parse_source(model)
    path = source.file if source.kind == "onnx" else folder / "model.onnx"
    if source.kind != "onnx":
        raw = folder / "exported.onnx"
        export(source, raw, inputs=spec.inputs, progress=progress)
        simplify(raw, path, progress=progress)
    proto = read_graph(path).load()
    if (precision := graph_precision(proto)) != "fp32":
        raise InvalidOption(f"{path}: its graph is {precision} already", hint="tune the float model instead")
    ranges, placements = folder / "model.ranges", tuple(sorted(set(map(graph_target, targets))))
    observed = CalibrateSpec(method=method or "auto", targets=placements)
    calibrate(path, calibration, ranges, observed, progress=progress)
    setting = TrialSetting(
        path, ranges, data, spec.metric,
        spec.samples, method, spec.exclude, spec.threads, isa_here() if isa == "auto" else isa,
        _MAX_TRIALS * len(targets),
    )  # fmt: skip
    maker = TrialMaker(setting, progress)
    runner = TrialRunner(maker, folder, progress, elsewhere(setting) if elsewhere else None)
    time = functools.partial(runner.time, max_time_s=spec.max_time_s, batch_size=spec.batch_size)
    # With few samples, even zero changed predictions cannot prove the budget.
    need = samples_for_budget(spec.max_drop, setting.candidates, maker.samples)
    in_points = maker.metric.unit == "points"
    tuning = _Tuning(runner, spec.max_drop, time, uses_interval=need.is_met is True or not in_points)
    if in_points:
        progress(need.text)
    if not tuning.uses_interval:
        tuning.notes.append(f"{need.text}: the drop alone is compared with the budget")
    if maker.metric.note:
        tuning.notes.append(f"accuracy is {maker.metric.note}")
    damage: dict[str, list[LayerSensitivity]] = {}
    with contextlib.closing(runner):
        runner.begin(targets)
        for target in targets:
            damage[target] = runner.rank(target)
            tuning.try_target(target, damage[target])
        best = tuning.choose()
    recipe = folder / "recipe.toml"
    write_text(recipe, recipe_text(best, path, calibration, data, method, spec.exclude, folder, isa))
    tuned = TuneResult(
        best, runner.trials, tuning.front(), damage, maker.float_value, tuning.slow_layers, recipe,
        tuning.notes, maker.metric.name,
    )  # fmt: skip
    write_json(folder / "tune.json", tuned.as_json())
    return tuned


def fewest_in_float(
    order: Sequence[str], meets_budget: Callable[[frozenset[str]], bool], *, tries: int = _MAX_RETRIES
) -> frozenset[str] | None:
    """Return the layers to leave in floating point, or None if even all layers exceed the budget.

    Bisects the number of layers from the front of `order`, assuming that more float layers never increase the
    drop. Then retries the float layers in INT8, the least damaging first, at most `tries` of them.
    """
    if meets_budget(frozenset()):
        return frozenset()
    low, high = 0, len(order)  # `low` float layers exceed the budget
    if not meets_budget(frozenset(order)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if meets_budget(frozenset(order[:middle])):
            high = middle
        else:
            low = middle
    in_float = frozenset(order[:high])
    # The bisection has tested the set without its last layer.
    for layer in list(reversed(order[: high - 1]))[:tries]:
        if meets_budget(in_float - {layer}):
            in_float -= {layer}
    return in_float


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto-optimal points (latency, quality) by latency; of equals, the first."""
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


class _Tuning:
    """The trials of one tuning: float, whole INT8, the fewest float layers, and slow layers in float, too."""

    def __init__(
        self,
        bench: TrialRunner,
        max_drop: float,
        time: Callable[[list[Trial]], None],
        *,
        uses_interval: bool = False,
    ) -> None:
        self.bench, self.max_drop, self.time, self.uses_interval = bench, max_drop, time, uses_interval
        self.slow_layers: list[str] = []
        self.layers: dict[str, list[str]] = {}
        self.notes: list[str] = []

    def try_target(self, target: Target, damage: Sequence[LayerSensitivity]) -> None:
        """Try float and INT8 for one target; if whole INT8 exceeds the budget, search for a mix."""
        self.bench.in_float(target, "fp32")
        has_bfloat16 = "bf16" in engine(target).tuned_floats
        if has_bfloat16:
            try:
                self.bench.in_float(target, "bf16")
            except IntentNotReached:
                self.notes.append(f"{target}: this processor does not compute in bfloat16")
                has_bfloat16 = False
        self.layers[target] = order = [layer.layer for layer in damage]
        if not order:
            self.notes.append(f"{target}: no layer can be quantized")
            return

        def meets_budget(in_float: frozenset[str]) -> bool:
            if len(in_float) == len(order):
                return True  # a float model
            trial = self._int8(target, in_float)
            return trial is not None and self._meets_budget(trial)

        in_float = fewest_in_float(order, meets_budget)
        if in_float is None or len(in_float) == len(order):
            self.notes.append(f"{target}: no mix meets the budget; only float does")
        elif in_float and has_bfloat16:
            self._int8(target, in_float, float_precision="bf16")

    def choose(self) -> Trial:
        """Time the trials within the budget, move slow INT8 layers to floating point, return the fastest."""
        self._time()
        for _ in range(_SLOW_ROUNDS):
            best_int8 = self._fastest("int8")
            best_float = self._fastest("fp32", "bf16")
            if best_int8 is None or best_int8.latency_ms < best_float.latency_ms:
                break
            self.bench.progress("time every layer")
            feeds, threads = self.bench.maker.batches[0].feeds, self.bench.maker.setting.threads
            try:
                slow = slower_layers(best_int8, best_float, self.layers[best_int8.target], feeds, threads)
            except EngineUnavailable:
                break  # the runtime cannot time layers
            new_layers = [layer for layer in slow if layer not in best_int8.in_float]
            if not new_layers:
                break
            self.slow_layers += [layer for layer in new_layers if layer not in self.slow_layers]
            in_float = best_int8.in_float | set(new_layers)
            try:
                self.bench.int8(best_int8.target, in_float, float_precision=best_int8.float_precision)
            except QuantizationError:
                break  # every layer is slower in INT8
            self._time()
        int8, best_float = self._fastest("int8"), self._fastest("fp32", "bf16")
        if int8 is not None and int8.latency_ms < best_float.latency_ms:
            return int8
        why = "No INT8 model meets the budget." if int8 is None else "INT8 is not faster than float."
        self.notes.append(f"{why} The best model is {best_float.name}.")
        return best_float

    def front(self) -> list[str]:
        """Return the names of the Pareto-optimal timed trials."""
        timed = self._timed()
        return [timed[index].name for index in pareto([(trial.latency_ms, -trial.drop) for trial in timed])]

    def _int8(
        self, target: Target, in_float: frozenset[str], *, float_precision: FloatPrecision = "fp32"
    ) -> Trial | None:
        """Return the trial of a mix, or None and one note if the runtime deviates or outputs are NaN."""
        try:
            return self.bench.int8(target, in_float, float_precision=float_precision)
        except (QuantizationError, IntentNotReached, DataError) as error:
            problem = f"{target}: some mixes cannot be made"
            if not any(note.startswith(problem) for note in self.notes):
                self.notes.append(f"{problem}: {error.message}")
            return None

    def _meets_budget(self, trial: Trial) -> bool:
        """Return whether the drop, or its upper bound if `uses_interval`, meets the budget; FP32 always."""
        is_bounded = self.uses_interval and trial.drop_high is not None
        drop = trial.drop_high if is_bounded and trial.drop_high is not None else trial.drop
        return trial.precision == "fp32" or drop <= self.max_drop

    def _time(self) -> None:
        """Time float, whole INT8 and every mix within the budget, in one interleaved run."""
        trials = self.bench.trials.values()
        self.time([trial for trial in trials if not trial.in_float or self._meets_budget(trial)])

    def _fastest(self, *precisions: str) -> Trial | Any:
        """Return the fastest timed trial of these precisions within the budget, or None."""
        trials = [
            trial for trial in self._timed() if trial.precision in precisions and self._meets_budget(trial)
        ]
        return min(trials, key=lambda trial: trial.latency_ms, default=None)

    def _timed(self) -> list[Trial]:
        return [trial for trial in self.bench.trials.values() if trial.latency_ms]


def _targets(names: Sequence[str]) -> list[Target]:
    """Return the targets to tune, by default all runnable ones; raise if one cannot be built and run here."""
    for target in names:
        runtime = engine(target)
        runtime.require_builder()
        reason = runtime.why_not_run()
        if reason or target not in CPU_TARGETS:
            why = reason or "tune measures on the CPU"
            raise EngineUnavailable(f"target {target} cannot be tuned here: {why}", engine=target)
    named: list[Target] = [target for name in names for target in CPU_TARGETS if target == name]
    runnable = named or [name for name in CPU_TARGETS if not engine(name).why_not_run()]
    if not runnable:
        raise EngineUnavailable("no runtime is installed", hint=install_hint("cpu"), engine="")
    return runnable


# Output: the recipe of the best trial, and the plot of all trials.


def recipe_text(
    best: Trial,
    model: Path,
    calibration: str,
    evaluation: str,
    method: str | None,
    exclude: Sequence[str],
    folder: Path,
    isa: Isa = "auto",
) -> str:
    """Return the TOML of a recipe in `folder` with which `qcompile run` builds the best trial again."""
    names = "the names of layers below are those of this file"
    lines = [
        f"# {best.name}: {best.latency_ms:.3g} ms, {best.drop:+.3g} lost. Made by qcompile tune.",
        *toml_table("", [("version", 1, ""), ("name", model.stem, "")]),
        *toml_table("[model]", [("source", os.path.relpath(model, folder), ""), ("simplify", False, names)]),
        *toml_table(
            "[data]",
            [
                ("calibration", str(parse_spelling(calibration).relative_to(folder)), ""),
                ("evaluation", str(parse_spelling(evaluation).relative_to(folder)), ""),
            ],
        ),
        *toml_table("[calibrate]", [("method", method or "auto", "")]),
        "",
        *artifact_lines(best, best.name, exclude, isa),
    ]
    return "\n".join(lines) + "\n"


def artifact_lines(best: Trial, name: str, exclude: Sequence[str] = (), isa: Isa = "auto") -> list[str]:
    """Return the `[[artifact]]` of a trial, for a recipe of the same graph."""
    lines: list[tuple[str, object, str]] = [
        ("name", name, ""),
        ("target", best.target, ""),
        ("precision", best.precision, ""),
    ]
    lines += [("isa", isa, "")] if isa != "auto" else []
    lines += [("float_precision", best.float_precision, "")] if best.float_precision != "fp32" else []
    if best.precision == "int8":
        lines += [
            ("correct_bias", False, "as it was measured"),
            ("search", False, ""),
            ("allow_loss", True, ""),
        ]
        in_float = [*exclude, *sorted(best.in_float)]
        lines += [("exclude", in_float, "")] if in_float else []
    return [*toml_table("[[artifact]]", lines)][1:]


_FAMILIES = {"int8": "int8", "bf16": "half", "fp32": "float"}
_PLOT = (60, 50, 560, 330)  # pixels


def plot_front(tuned: TuneResult, path: Path, *, max_drop: float, unit: str) -> None:
    """Draw the timed trials by latency and drop, and the Pareto front, to `path` (inside `files.writing`)."""
    timed = tuned.timed
    drops = [*(trial.drop for trial in timed), max_drop, 0.0]
    space = max((max(drops) - min(drops)) * 0.12, 0.05)
    x = Scale.over([trial.latency_ms for trial in timed] or [1.0])
    y = Scale(min(drops) - space, max(drops) + space, "symlog" if max(drops) > 10 else "linear")
    places = {trial.name: (x.at(trial.latency_ms), y.at(trial.drop)) for trial in timed}
    drawing = axes(x, y, ("latency, ms (median)", f"drop, {unit} (up is better)"))
    drawing += line((0, y.at(max_drop)), (100, y.at(max_drop)), "mixed", dashes="6 4")
    drawing += text(100, y.at(max_drop), f"budget {max_drop:g}", shift=(0, -5), anchor="end", colour="mixed")
    points = [places[trial.name] for trial in timed if trial.name in tuned.front]
    drawing += polyline(points, "muted", width=1.2) if points else ""
    rows = []
    for number, trial in enumerate(timed, 1):
        is_best = trial is tuned.best
        label = f"{trial.latency_ms:.3g} ms  {trial.drop:+.2f}  {trial.name}{'  (best)' if is_best else ''}"
        size = 1.8 if is_best else 1
        drawing += mark(_FAMILIES[trial.precision], *places[trial.name], size=size, tip=label)
        kind = "label" if is_best else ""
        shift = (0.0, 17.0 * number)
        rows.append(text(0, 0, f"{number}  {label}", shift=shift, anchor="start", colour="ink", kind=kind))
    for index, (precision, family) in enumerate(_FAMILIES.items()):
        at = 100 * (index + 0.5) / len(_FAMILIES) * 0.4
        drawing += text(at, 0, precision, shift=(10, -31), anchor="start", colour=family)
    drawing += labels([(*places[trial.name], str(number)) for number, trial in enumerate(timed, 1)], _PLOT[3])
    panels = [(_PLOT, drawing), ((660, 30, 340, 400), "".join(rows))]
    path.write_text(picture(panels, (1010, max(440, 17 * len(timed) + 60))), encoding="utf-8")
