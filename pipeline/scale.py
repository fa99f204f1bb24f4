"""What the rules of `estimate` count with, of a recipe: weights, multiply-adds, samples."""

from __future__ import annotations

from ..data.batches import Data
from ..errors import QCompileError
from ..progress import Progress
from .estimate import Scale
from .recipe import Recipe
from .stages import Made, recipe_source

_ASSUMED_SAMPLES = 256  # of what only reading all of it would count


def read_scale(recipe: Recipe, model: Made | None, *, needed: bool, progress: Progress) -> Scale:
    """Return the sizes of a recipe.

    Args:
        recipe: The recipe.
        model: The exported model, if it is; else the source is looked at, which loads it.
        needed: Whether anything will be estimated.
        progress: Told of every step.
    """
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


def _model_sizes(recipe: Recipe, model: Made | None, progress: Progress) -> tuple[int | None, int | None]:
    from .propose.model_facts import look_at_model

    section, source = recipe.model, recipe_source(recipe)
    try:
        facts = look_at_model(
            str(model.path) if model else source.absolute,
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
