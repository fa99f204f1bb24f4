"""The samples of a comparison, written once for the runs of both sides, and how large they make tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...bench.outputs import try_extents
from ...bench.workers.arrays import load_array, save_arrays
from ...data.batches import Data
from ...errors import DataError
from ...model.graph import infer_shapes, without_weights
from ...model.random_input import RandomInput
from ...model.weightless import WeightlessModel
from ...tensors import Feeds, samples_in

if TYPE_CHECKING:
    import onnx


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
    """Write the samples one by one where the model allows it: what is tapped at once stays small.

    Raises:
        DataError: If the data does not fit the model.
    """
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
