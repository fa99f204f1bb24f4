"""Sample sets, readers and batches for every kind of DATA; functions as data; lists of files."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.artifact import cached_digest
from ..core.figures import counted
from ..core.installation import import_package
from ..errors import DataError, QCompileError, translate_errors
from ..model.sessions.session import granted_cores
from ..model.sources.source import Source
from ..model.sources.user_code import call, import_context, load_function, where_raised
from ..spec.tensors import Feeds, TensorInfo, samples_in
from .spelling import Spelling, wrong_spelling

Item = TypeVar("Item")
Result = TypeVar("Result")
Shapes = Mapping[str, tuple[int, ...]]
"""Input name to the shape of a batch."""

LABELS = ("labels", "label", "y", "target", "targets")
"""Names of labels among the arrays of a batch, where no input of the model has the name."""
MOST_THREADS = 8
AHEAD = 2
"""Samples decoded ahead per thread, finished or in progress."""
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
RECORDINGS = (".wav", ".flac", ".ogg")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Labels and texts of the files beside them, in the form of `imagefolder` and `audiofolder` of `datasets`."""
FORMATS: Mapping[str, tuple[str, str]] = {
    ".txt": ("text", "text"), ".jsonl": ("jsonl", "json"), ".ndjson": ("jsonl", "json"),
    ".csv": ("csv", "csv"), ".tsv": ("csv", "csv"),
    ".parquet": ("datasets", "parquet"), ".arrow": ("datasets", "arrow"),
}  # fmt: skip
"""File suffix to the kind of DATA, and to the builder of `datasets` that reads the file."""
TABLES = tuple(suffix for suffix, (kind, _) in FORMATS.items() if kind == "datasets")
_SIDECARS = (".csv", ".json", ".txt", ".md")
_SPLITS = {
    "train": ("train", "training"), "validation": ("validation", "val", "valid"), "test": ("test", "testing"),
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Feeds of one inference, a label per sample if the data has labels, and their origin for messages."""

    feeds: Feeds
    labels: NDArray[Any] | None
    where: str

    @property
    def samples(self) -> int:
        """Extent of the first axis of the first input (1 for a scalar)."""
        return samples_in(self.feeds)

    def can_be_split(self) -> bool:
        """Return whether the batch has several samples, along the first axis of every input."""
        return extent_of({name: array.shape for name, array in self.feeds.items()}) > 1

    def head(self, samples: int) -> Batch:
        """Return the first samples of a batch that can be split."""
        return self._part(slice(samples), self.where)

    def split(self) -> Iterator[Batch]:
        """Yield the samples of a batch that can be split, one by one."""
        return map(self.sample, range(self.samples))

    def sample(self, index: int) -> Batch:
        """Return one sample of a batch that can be split, with the axis of samples."""
        return self._part(slice(index, index + 1), f"{self.where} sample {index}")

    def _part(self, part: slice, where: str) -> Batch:
        feeds = {name: array[part] for name, array in self.feeds.items()}
        return Batch(feeds, None if self.labels is None else self.labels[part], where)


def extent_of(shapes: Shapes) -> int:
    """Return the extent of the first axis if all inputs share it, else 1: the batch cannot be split."""
    extents = {shape[0] if shape else 0 for shape in shapes.values()}
    return max(1, *extents) if len(extents) == 1 else 1


@dataclass(frozen=True)
class Sample:
    """One sample, without the axis of samples; `feeds` is the input of `Reader.join`."""

    feeds: dict[str, Any]
    label: Any
    where: str


class Reader:
    """Converts samples to a model's inputs in `threads` threads; None: one per core, at most 8."""

    notes: Sequence[str] = ()
    threads: int | None = None

    def read(self, index: int) -> Sample:
        """Return one sample; several threads call this. Readers of whole batches do not implement it."""
        raise NotImplementedError

    def join(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch of samples of one shape."""
        feeds = {name: np.stack([sample.feeds[name] for sample in samples]) for name in samples[0].feeds}
        return joined(feeds, samples)

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        """Return the sample indices of each batch; `fixed` drops an incomplete batch."""
        groups = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return [group for group in groups if len(group) == batch_size] if fixed else groups

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield a batch for each group of samples; threads decode ahead."""
        samples = in_order(self.read, (index for group in groups for index in group), threads=self.threads)
        for group in groups:
            yield self.join([next(samples) for _ in group])

    def notes_of(self, groups: Sequence[Sequence[int]]) -> list[str]:
        """Return notes on these batches for the user."""
        return []


class SampleSet(ABC):
    """Samples at a path, listed without decoding."""

    names: Sequence[str]
    """Identifiers of the samples: file, content or number; other samples should not change them."""
    notes: Sequence[str] = ()
    """Notes on the set for the user, e.g. skipped files."""

    def classes(self) -> Sequence[Hashable] | None:
        """Return the class of each sample for a balanced draw, or None without classes."""
        return None

    @abstractmethod
    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        """Return a digest of the content of the samples of `order`."""

    @abstractmethod
    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        """Return the reader that converts these samples to `inputs`."""


def joined(feeds: Feeds, samples: Sequence[Sample], labels: NDArray[Any] | None = None) -> Batch:
    """Return the batch of `samples` with `feeds`.

    Labels default to the samples': classes int64 [n], scores float32 [n], texts [n] or maps int64 [n, ...].
    """
    values = [sample.label for sample in samples]
    if labels is None and values[0] is not None:
        labels = np.asarray(values)
        kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.int64}
        labels = labels.astype(kinds[labels.dtype.kind]) if labels.dtype.kind in kinds else labels
    first, last = samples[0].where, samples[-1].where
    return Batch(feeds, labels, first if len(samples) == 1 else f"{first} to {last}")


def threads_for_reading() -> int:
    """Return the number of threads that decode."""
    return max(1, min(MOST_THREADS, granted_cores() or os.cpu_count() or 1))


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order, computed by threads.

    At most `AHEAD` results per thread are pending. An exception is raised at the place of its result. If the
    consumer stops, also by Ctrl-C, pending calls are cancelled.
    """
    count = threads or threads_for_reading()
    if count == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(count, thread_name_prefix="qcompile-read")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= AHEAD * count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def digest_texts(texts: Iterable[str]) -> str:
    """Return a short digest of texts, in order."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogateescape")
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()[:16]


def digest_contents(paths: Sequence[Path]) -> str:
    """Return a digest of the contents of files, read in parallel; unchanged files are read only once."""
    return digest_texts(in_order(lambda path: cached_digest([path]), paths))


def require_package(module: str, package: str, use: str, *, extra: str = "data") -> None:
    """Raise EngineUnavailable if a package cannot be imported."""
    import_package(module, f"{package} {use}, and cannot be imported", extra=extra, engine=package)


MOST_READ = 2048
"""Most samples that are read from an iterable, which may be infinite, to spread a draw over it."""
MANY = 10_000
"""Number of samples that triggers a warning about a function of unknown length without a limit."""


def read_function(
    source: Source, inputs: Sequence[TensorInfo], *, limit: int | None = None
) -> Iterator[Batch]:
    """Yield the batches of a function (a generator, or its iterable); `limit` only prevents the warning."""
    result = call(load_function(source), source)
    if not isinstance(result, Iterable):
        kind = type(result).__name__
        raise DataError(f"{source.spec}: returned {kind}; an iterable of samples is required")
    iterator, samples = iter(result), 0
    is_unlimited = limit is None and not isinstance(result, Sized)
    for index in itertools.count():
        try:
            with import_context(source):  # next() runs the generator, which may import
                item = next(iterator)
        except StopIteration:
            return
        except QCompileError:
            raise
        except (Exception, SystemExit) as error:
            # Stopping here would silently calibrate on a part of the data.
            raise DataError(
                f"{source.spec}: raised {type(error).__name__} at batch {index}: {error}"
                f"{where_raised(error, source.path)}",
                sample=index,
            ) from error
        batch = _as_batch(item, inputs, f"{source.function} batch {index}")
        if is_unlimited:
            warn_of_many(source.spec, samples, samples + batch.samples)
        samples += batch.samples
        yield batch


def warn_of_many(name: str, before: int, samples: int) -> None:
    """Warn when the number of samples rises to `MANY`: the data may have no end."""
    if before < MANY <= samples:
        words = "%s: %d samples so far; if it has no end, limit it by `samples` or itertools.islice"
        logging.getLogger(__name__).warning(words, name, samples)


def _as_batch(item: Any, inputs: Sequence[TensorInfo], where: str) -> Batch:
    paired_labels = None
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping):
        item, paired_labels = item
    if isinstance(item, Mapping):
        arrays = {str(name): copy_array(value, where) for name, value in item.items()}
        labels = take_labels(arrays, inputs, where) if paired_labels is None else paired_labels
        require_inputs(arrays, inputs, where)
        return Batch(arrays, None if labels is None else copy_array(labels, where), where)
    names = [tensor.name for tensor in inputs]
    values = [copy_array(value, where) for value in (item if isinstance(item, tuple | list) else [item])]
    if len(values) - len(names) not in (0, 1):
        raise DataError(
            f"{where}: {len(values)} arrays; the model takes {len(names)} ({', '.join(names)}), "
            "and labels may follow"
        )
    labels = values.pop() if len(values) > len(names) else None
    return Batch(dict(zip(names, values, strict=True)), labels, where)


def label_name(names: Collection[str], inputs: Sequence[TensorInfo], where: str) -> str | None:
    """Return the name of the labels, None without labels; raise DataError if several names fit."""
    of_inputs = {tensor.name for tensor in inputs}
    labels = [name for name in LABELS if name in names and name not in of_inputs]
    if len(labels) > 1:
        raise DataError(
            f"{where}: {' and '.join(labels)} are names of labels; one array of labels is required",
            hint=f"remove or rename all but one of {', '.join(labels)}",
        )
    return next(iter(labels), None)


def take_labels(arrays: dict[str, Any], inputs: Sequence[TensorInfo], where: str) -> Any:
    """Remove the labels from the arrays of a batch and return them; None without labels."""
    name = label_name(arrays, inputs, where)
    return None if name is None else arrays.pop(name)


def is_one_hot(labels: NDArray[Any]) -> bool:
    """Return whether labels [n, classes] are rows of zeros with a single 1."""
    if labels.ndim != 2 or labels.shape[1] < 2 or labels.dtype.kind not in "fiub":
        return False
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def require_inputs(names: Collection[str], inputs: Sequence[TensorInfo], where: str) -> None:
    """Raise DataError if an input is missing; `check_feeds` reports unknown arrays."""
    missing = [tensor.name for tensor in inputs if tensor.name not in names]
    if missing:
        raise DataError(
            f"{where}: input {missing[0]!r} is missing; found {', '.join(names) or 'nothing'}",
            hint="key the arrays by the model's input names",
            tensor=missing[0],
        )


def copy_array(value: Any, where: str) -> NDArray[Any]:
    """Return the value as a new array: a loader may reuse its memory for the next batch."""
    kind, hint = type(value).__name__, "yield a dict of arrays, a tuple of arrays, or (inputs, labels)"
    with translate_errors(f"{where}: holds a {kind} that is no array", DataError, hint=hint):
        if hasattr(value, "detach"):  # a torch tensor, detected without importing torch
            value = value.detach().cpu().numpy()
        if not isinstance(value, np.ndarray | np.generic | int | float | list):
            raise DataError(f"{where}: holds {kind}; arrays or tensors are required", hint=hint)
        array = copy.deepcopy(np.asarray(value))
        if array.dtype.hasobject:
            raise DataError(f"{where}: holds Python objects; arrays of numbers are required", hint=hint)
        return array


def list_files(root: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder, relative to it, with `/`, sorted folder by folder.

    Names that begin with a dot are skipped. Links are followed, except to a folder above the link.
    """
    yield from _walk(root, "", (os.path.realpath(root),))


def _walk(folder: Path, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield prefix + entry.name
        elif entry.is_dir():
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real not in above:
                yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", (*above, real))


def list_images(root: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder, relative to it, and notes on skipped files."""
    files = list(list_files(root))
    names = [name for name in files if name.lower().endswith(IMAGES)]
    if not names:
        message = f"{root}: holds no image; at least one file {', '.join(sorted(IMAGES))} is required"
        raise DataError(message, file=root)
    strays = sum(not name.lower().endswith((*IMAGES, *_SIDECARS)) for name in files)
    return names, [f"left out: {counted(strays, 'file')} of {root} without an image"] if strays else []


def split_folder(spelling: Spelling) -> Path:
    """Return the folder of the spelling's split, or the data's folder if it has no splits."""
    root, split, spec = Path(spelling.path), spelling.query.get("split", ""), spelling.spec
    present = sorted(path.name for path in root.iterdir() if path.is_dir())
    spellings = {name: names for names in _SPLITS.values() for name in names}
    if not split:
        if len(present) > 1 and all(name.lower() in spellings for name in present):
            raise wrong_spelling(
                spec,
                f"holds {', '.join(present)}; one of them is required",
                hint=f"add ?split={present[0]}, or name the folder {root / present[0]}",
            )
        return root
    for name in (split, *spellings.get(split, ())):
        if name in present:
            return root / name
    shown = ", ".join(present[:8]) or "none"
    raise wrong_spelling(spec, f"split={split}: no folder of this name in {root}; found {shown}")
