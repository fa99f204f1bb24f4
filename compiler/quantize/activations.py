"""Collect activations of a float model sample by sample: the largest magnitude per channel, or all values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...calibration.one_by_one import one_by_one
from ...errors import CalibrationError, ModelError
from ...files import temporary_folder
from ...model.onnx_file import copy_model, load_onnx, save_onnx
from ...model.session import make_session, run_session, session_options
from ...progress import Progress, silent

if TYPE_CHECKING:
    import onnx

    from ...data.batches import Data
    from ...data.readers import Batch


def channel_amax(
    model_path: Path,
    tensors: Collection[str] | Mapping[str, int],
    data: Data,
    limit: int | None = None,
    progress: Progress = silent,
) -> dict[str, NDArray[np.float32]]:
    """Return the largest magnitude of each channel of some float activations over samples.

    Memory holds these tensors for one sample at a time.

    Args:
        tensors: Names, or names with the axis of their channels, which is else the last.

    Raises:
        CalibrationError: If a tensor becomes NaN or infinite, naming tensor and sample.
        ModelError: If a tensor is not in the model, or ONNX Runtime refuses the model.
    """
    axes = tensors if isinstance(tensors, Mapping) else dict.fromkeys(tensors, -1)
    largest: dict[str, NDArray[np.float32]] = {}
    model = load_onnx(model_path)
    for where, arrays in run_samples(model, model_path, sorted(axes), data, limit, progress):
        for name, array in arrays.items():
            others = tuple(i for i in range(array.ndim) if i != axes[name] % array.ndim)
            amax = np.abs(array).max(axis=others, initial=0.0)
            if not np.isfinite(amax).all():
                raise CalibrationError(
                    f"{where}: tensor {name!r} becomes NaN or infinite; finite values are required",
                    hint="check the sample and the float model",
                    tensor=name,
                )
            largest[name] = np.maximum(largest[name], amax) if name in largest else amax
    return largest


def run_samples(
    model: onnx.ModelProto,
    path: Path,
    tensors: Collection[str],
    data: Data,
    limit: int | None = None,
    progress: Progress = silent,
    *,
    doing: str = "look at channels",
    integers: bool = True,
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Yield what some tensors of a model hold, sample by sample, and where the sample came from.

    Args:
        tensors: Names of float32 tensors, which need not be outputs.
        integers: Whether Q/DQ pairs may become integer kernels; without, they are computed as they are
            written, whatever the kernels of this processor make of them.

    Raises:
        ModelError: If a tensor is not in the model, or ONNX Runtime refuses the model.
    """
    if not tensors:
        return
    names = list(tensors)
    made = {name for node in model.graph.node for name in node.output}
    absent = [name for name in names if name not in made]
    if absent:
        raise ModelError(f"{path}: no node makes the tensor {absent[0]!r}", file=path, tensor=absent[0])
    session = _session_returning(model, names, integers=integers)
    done, total = 0, data.total
    total = limit if total is None or (limit is not None and limit < total) else total

    def run(batch: Batch) -> list[NDArray[Any]]:
        return run_session(session, names, batch.feeds, batch.where)

    for batch in one_by_one(data, run, limit):
        yield batch.where, dict(zip(names, run(batch), strict=True))
        done += batch.samples
        progress(doing, done, total)


def _session_returning(model: onnx.ModelProto, names: list[str], *, integers: bool) -> Any:
    """A session of the model with these outputs alone."""
    import onnx

    copy = copy_model(model)
    del copy.graph.output[:]
    kind = onnx.TensorProto.FLOAT
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in names)
    with temporary_folder("channels") as folder:
        file = folder / "model.onnx"
        save_onnx(copy, file)  # a model over 2 GB cannot be handed over as bytes
        without = [] if integers else ["WeightBiasQuantization"]
        return make_session(file, session_options(integers=integers), without=without)
