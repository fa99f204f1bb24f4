"""How long a stage will take, and how much memory and disk: what it took last time, else a rule.

| stage      | seconds                                                      | memory                        |
|------------|--------------------------------------------------------------|-------------------------------|
| export     | 4 + W / 100 MB                                               | 600 MB + 3 W                  |
| simplify   | 1 + W / 50 MB                                                | 300 MB + 3 W                  |
| calibrate  | 2 + 3 N M / rate                                             | 300 MB + 2 W                  |
| quantize   | 2 + W / 50 MB; INT8 10 x 32 M / rate more                    | 400 MB + 4 W                  |
| build      | 1 + W / 100 MB; tensorrt 30 + W / 5 MB                       | 400 MB + 4 W                  |
| bench      | max_time_s + 4 a row + (rows) (evaluated) M / rate           | rows x (120 MB + 2 W)         |
| report     | 3                                                            | 300 MB                        |

W are the bytes of the weights, M the multiply-adds of a sample, N the samples that are calibrated on, and
rate 20 G multiply-adds a second and core: a cautious share of what FP32 on ONNX Runtime reached on x86 with
AVX-512 (about 100 G). How near a rule comes was not measured; the last run's figures are better.

`graph.KINDS` holds the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.batches import Data
from ..errors import QCompileError
from ..progress import Progress
from ..spec.artifacts import ArtifactSection
from .recipe import Recipe, recipe_source

RATE = 20e9
"""Multiply-adds per second and core."""
CORRECTED_SAMPLES = 32
_MB = 1e6
_SHARE = {"fp16": 0.5, "bf16": 0.5, "int8": 0.3, "fp8": 0.3, "int4": 0.15, "nvfp4": 0.15}
"""Size of an artifact's weights against those of FP32."""


@dataclass(frozen=True)
class Scale:
    """What the rules count with; None where it is not known.

    Bytes of the FP32 weights, multiply-adds of a sample, cores that may be used, samples that are
    calibrated on and evaluated, artifacts that are measured here, and the measurement's time limit.
    """

    weight_bytes: int | None
    multiply_adds: int | None
    cores: int
    calibrated: int
    evaluated: int
    rows: int
    max_time_s: float


@dataclass(frozen=True)
class Estimate:
    """What a stage takes, None where nobody can know yet: "measured" the last time, or by "rule"."""

    seconds: float | None
    peak_bytes: int | None
    disk_bytes: int | None
    source: str


def measured(record: Mapping[str, Any]) -> Estimate | None:
    """Return what a stage took, of its record; None of one that older versions kept."""
    seconds = record.get("seconds")
    if not isinstance(seconds, int | float):
        return None
    peak = record.get("peak_bytes")
    size = sum(int(stat[0]) for stat in record.get("stats", {}).values())
    return Estimate(float(seconds), peak if isinstance(peak, int) else None, size, "measured")


@dataclass(frozen=True)
class Rule:
    """What the stages of a kind take.

    Attributes:
        seconds: Of the weights in MB, the seconds of a sample through the model, the sizes, and the artifact.
        runs_model: Whether the model runs, so that there are no seconds without its multiply-adds.
        memory_mb: Whatever the model's size.
        copies: Of the weights in memory.
        writes_weights: It writes them, in the precision of its artifact.
        of_rows: Memory is that of each artifact that is measured.
    """

    seconds: Callable[[float, float, Scale, ArtifactSection | None], float]
    runs_model: Callable[[ArtifactSection | None], bool] = lambda _: False
    memory_mb: float = 300
    copies: float = 0
    writes_weights: bool = True
    of_rows: bool = False


def by_rule(rule: Rule | None, scale: Scale, artifact: ArtifactSection | None = None) -> Estimate:
    """Return what the rule of a kind says of a stage."""
    weights, work = scale.weight_bytes or 0, scale.multiply_adds
    if rule is None or (scale.weight_bytes is None and rule.copies):
        return Estimate(None, None, None, "rule")
    inference_s = 0.0 if work is None else work / (RATE * scale.cores)
    unknown = work is None and rule.runs_model(artifact)
    seconds = None if unknown else rule.seconds(weights / _MB, inference_s, scale, artifact)
    peak = (rule.memory_mb * _MB + rule.copies * weights) * (scale.rows if rule.of_rows else 1)
    share = _SHARE.get(artifact.precision, 1.0) if artifact else 1.0
    return Estimate(seconds, int(peak), int(weights * share if rule.writes_weights else _MB), "rule")


def is_calibrated(artifact: ArtifactSection | None) -> bool:
    """Whether an artifact is static INT8 or FP8, whose quantization runs the model."""
    return artifact is not None and artifact.precision in ("int8", "fp8") and artifact.mode == "static"


_ASSUMED_SAMPLES = 256  # of what only reading all of it would count


def read_scale(recipe: Recipe, model: Path | None, *, needed: bool, progress: Progress) -> Scale:
    """Return the sizes of a recipe."""
    from ..model.session import usable_cores

    weights, work = _model_sizes(recipe, model, progress) if needed else (None, None)
    bench = recipe.bench
    rows = 1 + sum(not one.target.startswith("tensorrt") for one in recipe.artifact)
    return Scale(
        weights,
        work,
        usable_cores(),
        calibration_samples(recipe),
        _samples(recipe, recipe.data.evaluation),
        rows,
        bench.max_time_s if bench else 0.0,
    )


def calibration_samples(recipe: Recipe) -> int:
    """Return how many samples are calibrated on, as far as that is known without reading them all."""
    total = _samples(recipe, recipe.data.calibration)
    return min(total, recipe.calibrate.samples or total)


def _model_sizes(recipe: Recipe, model: Path | None, progress: Progress) -> tuple[int | None, int | None]:
    from .propose.model_facts import look_at_model

    section, source = recipe.model, recipe_source(recipe)
    try:
        facts = look_at_model(
            str(model) if model else source.absolute,
            inputs=() if model else section.inputs,
            trust=section.trust,
            progress=progress,
        )
    except QCompileError:  # the run says what is wrong with it
        return None, None
    return facts.weight_bytes or None, facts.multiply_adds or None


def _samples(recipe: Recipe, spec: str) -> int:
    if not spec:
        return 0
    try:
        total = Data(spec, (), base=recipe.folder, depends=recipe.data_depends).total
    except QCompileError:
        total = None
    return _ASSUMED_SAMPLES if total is None else total
