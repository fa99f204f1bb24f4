"""`qcompile calibrate`: run the samples through the model once and count the values of its tensors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import Artifact, commit, tool_versions
from ..data.batches import Data
from ..data.readers import Batch
from ..errors import CalibrationError, InvalidOption, QCompileError
from ..files import check_output, writing
from ..model.onnx_graph import Graph, read_weightless
from ..progress import Progress, silent
from ..spec.decode import spec_from_call
from ..spec.models import CalibrateSpec
from .one_by_one import numbered_units, one_by_one
from .ranges import Portion, Ranges
from .ranges_file import Checkpoint, load_checkpoint, ranges_manifest, save_checkpoint, save_ranges
from .taps import choose_taps
from .thresholds import parse_method
from .workers import Workers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import CalibrateKeywords

CHECKPOINT_EVERY_S = 10.0


@dataclass(frozen=True)
class Shard:
    """Every `shards`-th sample, beginning with number `part`, which counts from 1."""

    part: int = 1
    shards: int = 1

    def __str__(self) -> str:
        return f"{self.part}/{self.shards}"

    def holds(self, unit: int) -> bool:
        """Whether a unit of the data, counted from 0, belongs to it."""
        return unit % self.shards == self.part - 1


def parse_shard(text: str) -> Shard:
    """Read "2/8", the second of eight parts."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    part, shards = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= shards:
        raise InvalidOption(
            f"`shard` {text!r}: PART/PARTS is required, as 2/8 for the second of eight", option="shard"
        )
    return Shard(part, shards)


def calibrate(
    model: str | Path | Graph,
    data: str | Data,
    output: str | Path,
    spec: CalibrateSpec | None = None,
    /,
    *,
    tensors: Collection[str] | None = None,
    checkpoint: Path | None = None,
    progress: Progress = silent,
    **options: Unpack[CalibrateKeywords],
) -> Artifact:
    """Observe the float activations of an ONNX model over samples and write a ranges file.

    Samples are run one by one and memory does not grow with their number. The counts depend on the values
    alone: batches, order, shards and interruptions leave no trace in them.

    Args:
        model: ONNX file, or its weightless form where that was read already.
        data: Spelling of the samples (`batches`), or `Data`.
        output: Ranges file to write.
        spec: How they are observed; its targets are the caller's business.
        tensors: Tensors that get a scale; None observes those of every quantizable operator.
        checkpoint: Where that of an interrupted calibration is kept; beside the output by default.
        progress: Told of every sample.
        options: Fields of `CalibrateSpec` by name, in place of those of `spec`.

    Raises:
        DataError: If samples do not fit or hold NaN or infinity.
        CalibrationError: If the model has no float activation, or one becomes NaN or infinite.
        ModelError: If ONNX Runtime refuses the model.
    """
    output = Path(output)
    spec = spec_from_call(CalibrateSpec, spec, options)
    method, part = parse_method(spec.method), parse_shard(spec.shard)
    check_output(output)
    weightless = _weightless(model)
    if not isinstance(data, Data):
        data = Data(str(data), weightless.io.inputs, batch_size=1, limit=spec.samples or None)
    beside = checkpoint or output.with_name(f".{output.name}.checkpoint")
    if not spec.resume:
        beside.unlink(missing_ok=True)
    ranges = observe(
        weightless, data, tensors=tensors, shard=part, threads=spec.threads, checkpoint=beside,
        progress=progress,
    )  # fmt: skip
    ranges.method = method
    progress("choose thresholds")
    with writing(output) as path:
        save_ranges(ranges, path)
        manifest = commit(path, ranges_manifest(ranges, "calibrate", data.notes(), shard=spec.shard))
    beside.unlink(missing_ok=True)
    return Artifact(output, manifest)


def observe(
    model: Path | Graph,
    data: Data,
    *,
    tensors: Collection[str] | None = None,
    shard: Shard = Shard(),
    threads: int = 0,
    checkpoint: Path | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    infinite: bool = False,
    progress: Progress = silent,
) -> Ranges:
    """Return the ranges of a model's float activations over samples, without writing a ranges file.

    With `infinite` activations may hold infinity: a mask does not change how large the finite values are.
    """
    weightless = _weightless(model)
    taps = choose_taps(weightless.model, tensors)
    if not taps.names:
        raise CalibrationError(
            f"{weightless.path}: no float activation at any quantizable operator; nothing to calibrate",
            file=weightless.path,
        )
    progress("prepare the model")
    ranges = Ranges(weightless.digest(), shared=taps.shared, skipped=taps.skipped)
    identity = data.digest() + (f"[:{data.limit}]" if data.limit else "")
    key: dict[str, object] = {
        "model": ranges.model,
        "data": identity,
        "shard": str(shard),
        "taps": taps.names,
        "tools": tool_versions("onnxruntime"),
    }
    with Workers(weightless, taps, threads, infinite=infinite) as workers:
        done = load_checkpoint(checkpoint, key) if checkpoint else None
        if done is not None:
            workers.resume(done.histograms, done.samples)
        save = _saver(checkpoint, key, workers, checkpoint_every_s)
        _run(data, shard, workers, save, done.units if done else 0, progress)
        ranges.histograms = dict(workers.drain())
        ranges.portions = {identity: Portion(workers.samples, shard.shards, (shard.part,))}
    return ranges


def _run(
    data: Data, shard: Shard, workers: Workers, save: Callable[[int], None], start: int, progress: Progress
) -> None:
    total = data.total
    if total is not None:  # of samples that are dealt out in units of so many
        unit = data.batch_size if data.is_fixed else 1
        starts = range((shard.part - 1) * unit, total, shard.shards * unit)
        total = sum(min(unit, total - start) for start in starts)
    if start:
        progress(f"continue after {workers.samples} samples", workers.samples, total)
    try:
        # What is not of the shard, or before `start`, is not decoded, where the data allows.
        units: Iterator[tuple[int, Batch]] = enumerate(one_by_one(data, workers.run))
        if shard.shards > 1 or start:
            units = numbered_units(data, workers.run, lambda unit: unit >= start and shard.holds(unit))
        for unit, batch in units:
            workers.submit(batch)
            progress("calibrate", workers.samples, total)
            save(unit + 1)
    except QCompileError:
        workers.drain()  # raises what is wrong with an earlier sample that was still under way
        raise
    workers.drain()
    progress("calibrate", workers.samples, total)


def _weightless(model: str | Path | Graph) -> Graph:
    return model if isinstance(model, Graph) else read_weightless(Path(model))


def _saver(
    path: Path | None, key: dict[str, object], workers: Workers, every_s: float
) -> Callable[[int], None]:
    """Return what writes a checkpoint if the last is old enough; it waits for the samples under way."""
    last = time.monotonic()

    def save(units: int) -> None:
        nonlocal last
        if path is not None and time.monotonic() - last >= every_s:
            histograms = workers.drain()
            save_checkpoint(Checkpoint(key, units, workers.samples, histograms), path)
            last = time.monotonic()

    return save
