"""Write the samples of a comparison once for both sides, and infer the sizes of tensors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...bench.outputs import try_extents
from ...bench.workers.arrays import load_array, save_arrays
from ...data.batches import Data
from ...errors import DataError, EngineUnavailable
from ...files import writing
from ...model.graph import infer_shapes, without_weights
from ...model.random_input import RandomInput
from ...model.weightless import WeightlessModel
from ...progress import quiet
from ...tensors import Feeds, samples_in

if TYPE_CHECKING:
    import onnx

    from .taps import LayerRuns


@dataclass(frozen=True)
class Samples:
    """Batches on disk.

    Attributes:
        folder: Where `N.npz` lie.
        where: What each batch is called in errors.
        count: Samples in all of them.
        shapes: Input to its shape in the first batch.
    """

    folder: Path
    where: tuple[str, ...]
    count: int
    shapes: Mapping[str, tuple[int, ...]]

    def read(self, number: int, name: str) -> NDArray[Any]:
        """Return one input of a batch."""
        return load_array(self.folder / f"{number}.npz", name)


def write_samples(reference: WeightlessModel, data: str | None, folder: Path, *, limit: int) -> Samples:
    """Write the samples one by one where the model allows it: what is tapped at once stays small."""
    folder.mkdir()
    where: list[str] = []
    count = 0
    shapes: dict[str, tuple[int, ...]] = {}
    for name, feeds in _batches(reference, data, limit):
        shapes = shapes or {key: array.shape for key, array in feeds.items()}
        _check_plain(feeds, name)
        save_arrays(folder / f"{len(where)}.npz", feeds)
        where.append(name)
        count += samples_in(feeds)
    return Samples(folder, tuple(where), count, shapes)


def _batches(reference: WeightlessModel, data: str | None, limit: int) -> Any:
    if data is not None:
        for batch in Data(data, reference.io.inputs, batch_size=1, limit=limit):
            yield batch.where, batch.feeds
        return
    made = RandomInput(reference.model)
    try_extents(made, reference.path)
    for seed in range(limit):
        yield f"made input {seed + 1}", made.feeds(seed=seed)


def _check_plain(feeds: Feeds, where: str) -> None:
    for name, array in feeds.items():
        if array.dtype.name == "bfloat16" or array.dtype.kind in "OSU":
            raise DataError(
                f"{where}: input {name!r} is of {array.dtype.name}, which layers are not compared on",
                hint="leave `layers` out to compare the outputs",
                tensor=name,
            )


def tensor_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return tensor name to its number of elements, inputs of these shapes, where it can be inferred."""
    light = without_weights(model)
    for value in light.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, extent in zip(dims, shapes[value.name], strict=False):
                dim.dim_value = extent
    for values in (light.graph.value_info, light.graph.output):
        kept = [value for value in values if values is light.graph.output or not _is_symbolic(value)]
        for value in kept:
            if _is_symbolic(value):
                value.type.tensor_type.ClearField("shape")
        del values[:]
        values.extend(kept)
    sizes: dict[str, int] = {}
    for name, shape in infer_shapes(light).items():
        extents = [extent for extent in shape if isinstance(extent, int)]
        if len(extents) == len(shape):
            sizes[name] = int(np.prod(extents, dtype=np.int64))
    return sizes


def _is_symbolic(value: onnx.ValueInfoProto) -> bool:
    return any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)


def require_polygraphy() -> None:
    """Find out early whether results can be saved."""
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
