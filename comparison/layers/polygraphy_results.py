"""Save the values around the first bad tensor as Polygraphy's `RunResults`, which its own tools open."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineUnavailable
from ...files import writing
from ...progress import quiet

if TYPE_CHECKING:
    from .taps import LayerRuns


def require_polygraphy() -> None:
    """Find out early whether results can be saved.

    Raises:
        EngineUnavailable: If Polygraphy is missing.
    """
    try:
        import polygraphy.comparator  # noqa: F401
    except ImportError as error:
        raise EngineUnavailable(
            f"`save_results`: Polygraphy cannot be imported ({error})",
            hint="pip install 'qcompile[cpu]'",
            engine="polygraphy",
        ) from error


def save_results(runs: LayerRuns, chosen: Sequence[int], path: Path) -> None:
    """Run both sides once more and save the values of pairs, under the names of the reference.

    The runners are "reference" and "artifact"; one iteration is one batch.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.logger import G_LOGGER

    by_name = {runs.pairs.pairs[index].reference: index for index in reversed(chosen)}
    ours, theirs = runs.keep(sorted(by_name.values()))
    results = RunResults()
    results.add(_iterations(runs, by_name, ours, scaled=False), runner_name="reference")
    results.add(_iterations(runs, by_name, theirs, scaled=True), runner_name="artifact")
    with writing(path) as place, quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        results.save(str(place))
    for folder in (ours, theirs):
        shutil.rmtree(folder)


def _iterations(
    runs: LayerRuns, by_name: dict[str, int], folder: Path, *, scaled: bool
) -> list[dict[str, NDArray[Any]]]:
    iterations = []
    for number in range(len(runs.samples.where)):
        outputs = {}
        for name, index in by_name.items():
            array = np.load(folder / runs.tap_file(index) / f"{number}.npy", allow_pickle=False)
            if scaled:
                form = runs.pairs.pairs[index].form
                array = form.ordered(array)
                pieces = [np.asarray(piece) for piece in form.pieces(array, max(array.size, 1))]
                array = np.concatenate(pieces).reshape(array.shape) if pieces else array.astype(np.float32)
            outputs[name] = array
        iterations.append(outputs)
    return iterations
