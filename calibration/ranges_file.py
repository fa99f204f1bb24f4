"""The ranges file: a safetensors file (no pickle) with one int64 array of counts per tensor.

The metadata key "qcompile" holds a JSON header: model, data, method, and per tensor exponent, min, max and
amax by every method. Equal ranges give equal bytes. A checksum covers the header and all counts.

A checkpoint, from which an interrupted calibration resumes, has the same form: the counts of every tensor,
the key of the calibration, and a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.artifact import Artifact, Manifest, checked_input, commit, tool_versions
from ..core.files import writing
from ..core.progress import Progress, silent
from ..errors import CalibrationError, InvalidOption, translate_errors
from ..spec.words import METHODS
from .histogram import BINS, Histogram, why_slow
from .ranges import Portion, Ranges, few_samples
from .thresholds import Method, amax_by_method

FORMAT_VERSION = 2
_KEY = "qcompile"
_DAMAGE_ERRORS = (KeyError, ValueError, TypeError, AttributeError, RecursionError, OSError)


def save_ranges(ranges: Ranges, path: Path) -> None:
    """Write a ranges file to `path` (inside `files.writing`)."""
    observed = {
        name: histogram for name, histogram in sorted(ranges.histograms.items()) if not histogram.is_empty
    }
    entries = {
        name: _Entry(
            values.exponent, values.min, values.max, amax_by_method(values, ranges.method.percentile)
        )
        for name, values in observed.items()
    }
    header = _Header(
        version=FORMAT_VERSION,
        model=ranges.model,
        data=dict(sorted(ranges.portions.items())),
        method=ranges.method.name,
        percentile=ranges.method.percentile,
        tensors=entries,
        empty=sorted(set(ranges.histograms) - set(observed)),
        shared=dict(sorted(ranges.shared.items())),
        skipped=dict(sorted(ranges.skipped.items())),
        modules=dict(sorted(ranges.modules.items())),
    )
    path.write_bytes(_file_content(msgspec.to_builtins(header), observed))


def load_ranges(path: str | Path) -> Ranges:
    """Read a ranges file.

    Args:
        path: File that `calibrate` or `ranges merge` wrote.

    Raises:
        CalibrationError: If it is no ranges file.
        ArtifactError: If it was changed after it was written.
    """
    path = checked_input(Path(path), what="ranges file")
    message, hint = f"{path}: not a ranges file, or cut off", "make it with qcompile calibrate"
    with translate_errors(message, CalibrationError, errors=_DAMAGE_ERRORS, hint=hint, file=path):
        header, counts = _read(path)
        if header["version"] != FORMAT_VERSION:
            raise CalibrationError(
                f"{path}: ranges file of version {header['version']}; this qcompile reads {FORMAT_VERSION}",
                hint="calibrate again",
            )
        typed = msgspec.convert(header, _Header)
        for portion in header["data"].values():
            portion["shards"], portion["parts"]  # required in a file, although `Portion` has defaults
        if not typed.checksum:
            raise ValueError("its header holds no checksum")
        computed, stored = checksum(header, counts), typed.checksum
        if computed != stored:
            raise CalibrationError(
                f"{path}: its content has the checksum {computed[:19]}…, its header {stored[:19]}…",
                hint="the file was changed after it was made; calibrate again",
                file=path,
            )
        return _decode_ranges(typed, counts)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """Return the header of a file and the counts of its tensors; raise one of `_DAMAGE_ERRORS` if damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            return header, {name: file.get_tensor(name) for name in header.get("tensors", ())}
    except SafetensorError as error:
        raise ValueError(str(error)) from error


class _Entry(msgspec.Struct, frozen=True):
    """Header entry of one tensor.

    Attributes:
        exponent: A bin is 2 to this power wide, in the tensor's units.
        min, max: Smallest and largest observed value.
        amax: Method to the amax that it chooses, for other readers.
    """

    exponent: int
    min: float
    max: float
    amax: Any = None


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """JSON under the metadata key `qcompile`.

    Attributes:
        version: Version of the format.
        bins: Bins on each side of zero: a tensor of int64 counts has twice as many, the negative ones first.
        model: Fingerprint of the ONNX file that was observed.
        data: Digest of each set of samples to the portion of it that was observed.
        method: Default method of choosing thresholds.
        percentile: Percentage of the magnitudes that the method percentile does not clip.
        tensors: Observed tensor to its entry.
        empty: Tensors without values.
        shared: Tensor to the observed tensors that together determine its range.
        skipped: Tensor to the reason why it was not observed.
        modules: Observed tensor to the module of PyTorch that computes it.
        checksum: "sha256:..." of header and counts.
    """

    version: int
    bins: int = BINS
    model: str
    data: dict[str, Portion]
    method: str
    percentile: Annotated[float, msgspec.Meta(gt=0, le=100)]
    tensors: dict[str, _Entry]
    empty: Sequence[str]
    shared: dict[str, Sequence[str]]
    skipped: dict[str, str]
    modules: dict[str, str] = {}
    checksum: str | msgspec.UnsetType = msgspec.UNSET


def _decode_ranges(header: _Header, counts: dict[str, NDArray[np.int64]]) -> Ranges:
    for array in counts.values():
        if array.shape != (2 * BINS,) or array.dtype != np.int64:
            raise ValueError(f"a histogram is not an array of {2 * BINS} int64 counts")
    histograms = {
        name: Histogram(entry.exponent, counts[name], entry.min, entry.max)
        for name, entry in header.tensors.items()
    }
    for name, histogram in histograms.items():
        if histogram.is_empty or not histogram.is_plausible:
            raise ValueError(f"the histogram of {name!r} contradicts itself")
    histograms |= {name: Histogram() for name in header.empty}
    missing = [source for sources in header.shared.values() for source in sources if source not in histograms]
    if missing:
        raise ValueError(f"it has no histogram of {missing[0]!r}, which another tensor shares")
    for portion in header.data.values():
        if list(portion.parts) != sorted({*portion.parts}) or max(portion.parts, default=0) > portion.shards:
            raise ValueError(f"parts {', '.join(map(str, portion.parts))} do not fit {portion.shards} shards")
    method = Method(METHODS[METHODS.index(header.method)], header.percentile)
    return Ranges(
        header.model, header.data, method, histograms,
        {name: tuple(sources) for name, sources in header.shared.items()}, header.skipped,
        modules=header.modules,
    )  # fmt: skip


def _file_content(header: dict[str, Any], histograms: Mapping[str, Histogram]) -> bytes:
    from safetensors.numpy import save

    counts = {name: histogram.counts for name, histogram in histograms.items()}
    header["checksum"] = checksum(header, counts)
    content: bytes = save(counts, metadata={_KEY: json.dumps(header)})
    return content


def checksum(header: Mapping[str, Any], counts: Mapping[str, NDArray[Any]]) -> str:
    """Return "sha256:..." over the counts of every tensor and the header without its `checksum`."""
    unsigned = {key: value for key, value in header.items() if key != "checksum"}
    digest = hashlib.sha256(_canonical_json(unsigned))
    for name in sorted(counts):
        array = np.ascontiguousarray(counts[name], counts[name].dtype.newbyteorder("<"))
        digest.update(_canonical_json([name, str(array.dtype), list(array.shape)]))
        digest.update(array.tobytes())
    return f"sha256:{digest.hexdigest()}"


def _canonical_json(value: object) -> bytes:
    """Return canonical JSON: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Checkpoint(msgspec.Struct):
    """State of a calibration between two samples: one safetensors file that is replaced as a whole.

    Attributes:
        key: Everything that determines the counts; another key belongs to another calibration.
        units: Number of units of the data that were read: samples, or batches that are not split.
        samples: Number of this shard's samples that were counted.
        histograms: Tensor to counts; in the file, "tensors" has their exponents, least and largest values.
    """

    key: dict[str, Any]
    units: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    samples: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    histograms: Any = None


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Replace the file atomically: after a kill, it holds the previous or the new checkpoint."""
    tensors = {
        name: [values.exponent, values.min, values.max] for name, values in checkpoint.histograms.items()
    }
    header = {name: getattr(checkpoint, name) for name in ("key", "units", "samples")} | {"tensors": tensors}
    with writing(path) as temporary:
        temporary.write_bytes(_file_content(header, checkpoint.histograms))


def load_checkpoint(path: Path, key: dict[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of a calibration; None if the file is missing, damaged, or has another key."""
    if not path.is_file():
        return None
    try:
        header, counts = _read(path)
        checkpoint = msgspec.convert(header, Checkpoint)
        tensors = msgspec.convert(header["tensors"], dict[str, tuple[int, float, float]])
        is_same = checkpoint.key == json.loads(json.dumps(key))
        if not is_same or header["checksum"] != checksum(header, counts):
            return None
    except _DAMAGE_ERRORS:
        return None  # starting over costs only time
    checkpoint.histograms = {
        name: Histogram(exponent, counts[name], low, high) for name, (exponent, low, high) in tensors.items()
    }
    return checkpoint if all(counted.is_plausible for counted in checkpoint.histograms.values()) else None


def ranges_manifest(ranges: Ranges, stage: str, notes: Sequence[str] = (), **options: object) -> Manifest:
    """Return the manifest of a stage's ranges for `artifact.commit`; `notes` describe the data."""
    warnings = [*notes]
    warnings += [reason] if stage == "calibrate" and (reason := why_slow()) else []
    if options.get("shard", "1/1") == "1/1":
        warnings += few_samples("calibrated on", ranges.samples)
    if not ranges.samples:
        warnings.append("no sample was observed: this part of the data is empty")
    return Manifest(
        kind="ranges",
        stage=stage,
        sources={"model": ranges.model, "data": ranges.data},
        tools=tool_versions("onnx", "onnxruntime", "numpy", "numba"),
        options={"method": str(ranges.method), **options},
        proof={
            "samples": ranges.samples,
            "tensors": len(ranges.histograms),
            "shared": len(ranges.shared),
            "skipped": dict(ranges.skipped),
        },
        warnings=warnings,
    )


def merge_files(
    files: Sequence[Path], output: Path, *, all_of: Sequence[str] | None = None, progress: Progress = silent
) -> Artifact:
    """Merge ranges files; all shards of one calibration give the file of one whole run.

    `all_of` has notes on the data if the files are all shards: the manifest is then that of a whole run.
    """
    if not files:
        raise InvalidOption("no ranges files; at least one is required")
    merged: Ranges | None = None
    for number, file in enumerate(files, start=1):
        progress("merge", number, len(files))
        ranges = load_ranges(file)
        try:
            if merged is not None:
                merged.merge(ranges)
        except CalibrationError as error:
            error.message = f"{file}: {error.message}"
            raise
        merged = merged or ranges
    assert merged is not None
    with writing(output) as path:
        save_ranges(merged, path)
        manifest = ranges_manifest(merged, "merge")
        if all_of is not None:
            manifest = ranges_manifest(merged, "calibrate", all_of, shard="1/1")
        return Artifact(output, commit(path, manifest))
