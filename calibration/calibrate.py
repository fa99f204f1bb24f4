"""`qcompile calibrate`: run the samples through the model once, and count what its tensors hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..artifact import Artifact, Manifest, commit, tool_versions, writing
from ..errors import CalibrationError, DataError, first_line
from ..model.graph import graph_precision
from ..model.onnx_file import fingerprint, load_onnx, read_io, save_onnx
from ..model.session import make_session, session_options
from ..progress import Progress, silent
from .batches import Data
from .histogram import Histogram, NonFinite
from .ranges import Ranges, parse_method, save_ranges
from .taps import Taps, choose_taps, tapped


def calibrate(
    model: str | Path,
    data: str | Data,
    output: str | Path,
    *,
    method: str = "entropy",
    samples: int | None = None,
    batch_size: int | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> Artifact:
    """Observe the float activations of an ONNX model over samples and write a ranges file.

    Memory does not grow with the number of samples: each batch is counted and dropped.

    Args:
        model: ONNX file.
        data: Spelling of the samples (`batches`), or `Data`.
        output: Ranges file to write.
        method: Default method of the file: "minmax", "percentile[:NUMBER]" or "entropy".
        samples: Use at most this many.
        batch_size: Samples per inference, where the model and the data leave it open.
        threads: Threads of ONNX Runtime; 0 lets it choose.
        progress: Told of every batch.

    Returns:
        The ranges file and its manifest.

    Raises:
        DataError: If samples do not fit or hold NaN or infinity.
        CalibrationError: If the model has no float activation, or one becomes NaN or infinite.
        ModelError: If ONNX Runtime refuses the model.
    """
    model, output = Path(model), Path(output)
    chosen, percentile = parse_method(method)
    if not isinstance(data, Data):
        data = Data(str(data), read_io(model).inputs, batch_size=batch_size, limit=samples)
    ranges = observe(model, data, threads=threads, progress=progress)
    ranges.method, ranges.percentile = chosen, percentile
    with writing(output) as path:
        save_ranges(ranges, path)
        manifest = commit(path, _manifest(ranges, model))
    return Artifact(output, manifest)


def observe(model: Path, data: Data, *, threads: int = 0, progress: Progress = silent) -> Ranges:
    """Return the ranges of a model's float activations over samples, without writing a file.

    Raises:
        DataError, CalibrationError, ModelError: As `calibrate`.
    """
    proto = load_onnx(model)
    taps = choose_taps(proto)
    if not taps.names:
        raise CalibrationError(
            f"{model}: no float activation at any quantizable operator; nothing to calibrate",
            file=model,
        )
    ranges = Ranges(fingerprint(model), data.digest(), 0)
    ranges.histograms = {name: Histogram() for name in taps.names}
    ranges.skipped = dict(taps.skipped)
    with _observer(proto, taps, threads, model) as session:
        _observe(session, data, ranges, progress)
    empty = [name for name, histogram in ranges.histograms.items() if histogram.max < histogram.min]
    for name in empty:
        del ranges.histograms[name]
        ranges.skipped = {**ranges.skipped, name: "it was empty in every sample"}
    return ranges


def _observe(session: Any, data: Data, ranges: Ranges, progress: Progress) -> None:
    names = [value.name for value in session.get_outputs()]
    for batch in data:
        for name, array in batch.feeds.items():
            _count(ranges, name, array, batch.where, is_input=True)
        for name, array in zip(names, _run(session, names, batch.feeds, batch.where), strict=True):
            _count(ranges, name, array, batch.where, is_input=False)
        ranges.samples += batch.samples
        progress("calibrate", ranges.samples, data.limit)


def _count(ranges: Ranges, name: str, array: Any, where: str, *, is_input: bool) -> None:
    histogram = ranges.histograms.get(name)
    if is_input and array.dtype.kind == "f" and histogram is None:
        histogram = Histogram()  # not a tap, but a NaN fed in is an error all the same
    if histogram is None:
        return
    try:
        histogram.add(array)
    except NonFinite as error:
        if is_input:
            raise DataError(
                f"{where}: input {name!r} holds {error.what}",
                hint="clean the sample, or leave it out",
                tensor=name,
                sample=where,
            ) from error
        raise CalibrationError(
            f"tensor {name!r} holds {error.what} at {where}, although the input is finite",
            hint="the model overflows on this sample; check its preprocessing",
            tensor=name,
            sample=where,
        ) from error


def _run(session: Any, names: list[str], feeds: Any, where: str) -> list[Any]:
    try:
        return session.run(names, feeds)  # type: ignore[no-any-return]
    except Exception as error:
        # ONNX Runtime's exceptions share no base but RuntimeError and Exception.
        raise DataError(
            f"{where}: the model failed on it: {first_line(error)}",
            hint="check the sample's shape and values against the model",
            sample=where,
        ) from error


@contextmanager
def _observer(proto: Any, taps: Taps, threads: int, model: Path) -> Iterator[Any]:
    """A session whose outputs are the taps; from a file, so models over 2 GB work too."""
    options = session_options(threads, layouts=graph_precision(proto) != "fp16")
    with tempfile.TemporaryDirectory(prefix="qcompile-calibrate-") as folder:
        path = Path(folder) / model.name
        save_onnx(tapped(proto, taps), path)
        yield make_session(path, options)


def _manifest(ranges: Ranges, model: Path) -> Manifest:
    return Manifest(
        kind="ranges",
        stage="calibrate",
        sources={"model": ranges.model, "data": ranges.data},
        tools=tool_versions("onnx", "onnxruntime", "numpy"),
        options={"method": ranges.method, "percentile": ranges.percentile},
        proof={
            "samples": ranges.samples,
            "tensors": len(ranges.histograms),
            "skipped": dict(ranges.skipped),
            "model": model.name,
        },
    )
