"""`calibrate`: what quantization will scale (`tensors_to_calibrate`) is observed (`calibration/`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...artifact import Artifact
from ...calibration import calibrate as observe_and_write
from ...calibration.merge import merge_files
from ...data.batches import Data
from ...model.onnx_file import check_onnx
from ...model.weightless import read_weightless
from ...progress import Progress, silent
from ...spec.words import GRAPH_TARGETS
from .int8.tensors_to_calibrate import tensors_to_calibrate


def calibrate(
    model: str | Path,
    data: str | Data,
    output: str | Path,
    *,
    targets: Sequence[str] = GRAPH_TARGETS,
    method: str = "auto",
    samples: int | None = None,
    shard: str = "1/1",
    threads: int = 0,
    resume: bool = True,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Observe what quantization for the targets will scale, and write a ranges file.

    Args:
        model: Float ONNX file.
        data: Spelling of the samples, such as "images/" or "data.py:calibration".
        output: Ranges file to write.
        targets: What the model will be quantized for: "onnxruntime", "openvino", "tensorrt". Fewer are
            observed faster.
        method: Method that the file names for the thresholds: "minmax", "percentile[:NUMBER]", "entropy",
            "mse" or "auto". Quantization can choose another.
        samples: Use at most this many.
        shard: "2/8" observes the second of eight parts; `Ranges.merge` puts the parts together.
        threads: Threads in all; 0 takes one per core.
        resume: Whether to go on from the checkpoint of an interrupted calibration of the same.
        checkpoint: Where that is kept; beside the output by default.
        progress: Told of every sample.

    Returns:
        The ranges file and its manifest.

    Raises:
        DataError: If samples do not fit or hold NaN or infinity.
        CalibrationError: If the model has no float activation, or one becomes NaN or infinite.
        ModelError: If ONNX Runtime refuses the model.
        InvalidOption: If the method or the shard is misspelled.
    """
    weightless = read_weightless(Path(model))
    try:
        tensors = tensors_to_calibrate(weightless, targets)  # type: ignore[arg-type]  # checked there
    except (IndexError, KeyError, TypeError, ValueError):
        check_onnx(weightless.path)  # a damaged file says here what is wrong with it
        raise
    return observe_and_write(
        weightless,
        data,
        output,
        method=method,
        samples=samples,
        shard=shard,
        tensors=tensors,
        threads=threads,
        resume=resume,
        checkpoint=checkpoint,
        progress=progress,
    )


def merge(files: Sequence[Path], output: Path, data: Data, *, progress: Progress = silent) -> Artifact:
    """Merge the ranges of all shards of one calibration into the files that one whole run gives.

    Args:
        files: The ranges of every shard.
        output: Ranges file to write.
        data: What they were observed on.
        progress: Told of every file.

    Raises:
        CalibrationError, ArtifactError: As `calibration.merge.merge_files`.
    """
    return merge_files(files, output, all_of=data.notes(), progress=progress)
