"""Data in: what DATA may be, read batch by batch, checked against the model's inputs.

| spelling              | is                                                                          |
|-----------------------|-----------------------------------------------------------------------------|
| `data.npz`            | one array per input name, first axis the samples; `labels` beside them      |
| a folder              | `.npz` (keyed by input name) or `.npy` (models with one input), in name order |
| `file.py:function`    | yields dicts, tuples or arrays (numpy or torch); or returns a DataLoader     |

A tuple one longer than the model's inputs ends with the labels, as a DataLoader gives them; a dict may
hold `labels`. Arrays must have the model's dtype: nothing is converted silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..artifact import digest_files, nearest_name
from ..errors import DataError, InvalidOption, MissingFile, QCompileError
from ..model.source import Source, digest_source, parse_source
from ..model.user_code import call, load_function, where_raised
from ..shapes import Feeds, TensorInfo, check_feeds, samples_in
from .archive import load_arrays, read_rows, read_shapes

LABELS = "labels"
DEFAULT_BATCH = 8


@dataclass(frozen=True)
class Batch:
    """Feeds of one inference.

    Attributes:
        feeds: Input name to array.
        labels: One label per sample, if the data has them.
        where: Where it came from, for messages: "data.npz[8:16]", "folder/0003.npy", "f batch 3".
    """

    feeds: Feeds
    labels: NDArray[Any] | None
    where: str

    @property
    def samples(self) -> int:
        """Extent of the first axis of the first input (1 for a scalar)."""
        return samples_in(self.feeds)

    def can_be_split(self) -> bool:
        """Whether there are several samples, which are the first axis of every input."""
        extents = {array.shape[0] if array.ndim else 0 for array in self.feeds.values()}
        return self.samples > 1 and extents == {self.samples}

    def head(self, samples: int) -> Batch:
        """Return the first samples of a batch that can be split."""
        return self._part(slice(samples), self.where)

    def split(self) -> Iterator[Batch]:
        """Yield the samples of a batch that can be split, one by one."""
        for index in range(self.samples):
            yield self._part(slice(index, index + 1), f"{self.where} sample {index}")

    def _part(self, part: slice, where: str) -> Batch:
        feeds = {name: array[part] for name, array in self.feeds.items()}
        return Batch(feeds, None if self.labels is None else self.labels[part], where)


class Data:
    """Samples that can be read again and again.

    Args:
        spec: A spelling of the table above.
        inputs: The inputs of the model that will be fed.
        batch_size: Samples fed at once from a `.npz`; a fixed first axis of the model decides over it.
        limit: Stop after this many samples; None reads all.
        base: Folder that relative paths start from.
        depends: Files elsewhere that a function reads, for the digest.

    Raises:
        MissingFile, InvalidOption: If the spelling leads nowhere.
    """

    def __init__(
        self,
        spec: str,
        inputs: Sequence[TensorInfo],
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        base: Path | None = None,
        depends: Sequence[Path] = (),
    ) -> None:
        if limit is not None and limit < 1:
            raise InvalidOption(f"samples: {limit}; at least 1 is required")
        if batch_size is not None and batch_size < 1:
            raise InvalidOption(f"batch size: {batch_size}; at least 1 is required")
        self.spec, self.inputs, self.limit = spec, tuple(inputs), limit
        self.batch_size = _batch_size(self.inputs, batch_size)
        self._source, self._depends = _locate(spec, base), tuple(depends)

    def __iter__(self) -> Iterator[Batch]:
        """Yield checked batches.

        Raises:
            DataError: If the data does not fit, raises while it is read, or is empty.
        """
        seen = 0
        for found in self._read():
            batch = self._in_order(found)
            if self.limit is not None and seen + batch.samples > self.limit:
                if self.is_fixed or not batch.can_be_split():
                    break
                batch = batch.head(self.limit - seen)
            check_feeds(self.inputs, batch.feeds, batch.where)
            seen += batch.samples
            if batch.samples:
                yield batch
            if self.limit is not None and seen >= self.limit:
                break
        if not seen and self.limit is not None and self.is_fixed:
            raise DataError(
                f"{self.spec}: the model takes {self.batch_size} samples at a time; "
                f"at most {self.limit} were asked for",
                hint="raise the limit, or export the model with a dynamic batch",
            )
        if not seen:
            raise DataError(
                f"{self.spec}: holds no samples; at least one is required",
                hint="check the path, or what the function yields",
            )

    @property
    def is_fixed(self) -> bool:
        """Whether the model takes batches of one size only, which are not taken apart."""
        return any(tensor.shape and isinstance(tensor.shape[0], int) for tensor in self.inputs)

    @property
    def total(self) -> int | None:
        """Number of samples; None where only reading a function's data would tell.

        Raises:
            DataError: If a file is damaged.
        """
        if isinstance(self._source, Source):
            return self.limit
        files = _sample_files(self._source) if self._source.is_dir() else [self._source]
        count = sum(_samples_in_file(path, self.inputs) for path in files)
        return count if self.limit is None else min(count, self.limit)

    def digest(self) -> str:
        """Return a digest that changes when the data may have changed."""
        if isinstance(self._source, Source):
            return digest_source(self._source, depends=self._depends)
        if self._source.is_dir():
            files = _sample_files(self._source)
            names = hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()
            return f"{digest_files(files)}:{names[:16]}"
        return digest_files([self._source])

    def _in_order(self, batch: Batch) -> Batch:
        """The batch with its feeds in the order of the model's inputs: the first of them counts samples."""
        names = [tensor.name for tensor in self.inputs if tensor.name in batch.feeds]
        feeds = {name: batch.feeds[name] for name in (*names, *batch.feeds)}
        return Batch(feeds, batch.labels, batch.where)

    def _read(self) -> Iterator[Batch]:
        if isinstance(self._source, Source):
            return self._read_function(self._source)
        if self._source.is_dir():
            return self._read_folder(self._source)
        return self._read_npz(self._source)

    def _read_npz(self, path: Path) -> Iterator[Batch]:
        shapes = read_shapes(path)
        _require_inputs(shapes, self.inputs, str(path))
        extents = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
        if len(set(extents.values())) > 1:
            found = ", ".join(f"{name} {extent}" for name, extent in extents.items())
            raise DataError(f"{path}: arrays differ in their number of samples ({found})")
        start = 0
        for arrays in read_rows(path, self.batch_size):
            labels = arrays.pop(LABELS, None)
            yield Batch(arrays, labels, f"{path.name}[{start}:{start + self.batch_size}]")
            start += self.batch_size

    def _read_folder(self, folder: Path) -> Iterator[Batch]:
        for path in _sample_files(folder):
            arrays = load_arrays(path)
            labels = arrays.pop(LABELS, None)
            if path.suffix == ".npy":
                if len(self.inputs) != 1:
                    raise DataError(
                        f"{path}: a .npy file has no input names, and the model takes "
                        f"{len(self.inputs)} inputs",
                        hint="save .npz files keyed by input name",
                    )
                arrays = {self.inputs[0].name: next(iter(arrays.values()))}
            _require_inputs(arrays, self.inputs, str(path))
            feeds = {t.name: _with_batch_axis(arrays[t.name], t) for t in self.inputs}
            yield Batch(feeds, labels, f"{folder.name}/{path.name}")

    def _read_function(self, source: Source) -> Iterator[Batch]:
        result = call(load_function(source), source)
        if not isinstance(result, Iterable):
            raise DataError(
                f"{source.spec}: returned {type(result).__name__}; an iterable of samples is required"
            )
        iterator, index = iter(result), 0
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except QCompileError:
                raise
            except Exception as error:
                # Ending here instead would calibrate on part of the data without a word.
                raise DataError(
                    f"{source.spec}: raised {type(error).__name__} at batch {index}: {error}"
                    f"{where_raised(error, source.path)}",
                    sample=index,
                ) from error
            yield self._as_batch(item, f"{source.function} batch {index}")
            index += 1

    def _as_batch(self, item: Any, where: str) -> Batch:
        labels = None
        if isinstance(item, Mapping):
            arrays = {str(name): _array(value, where) for name, value in item.items()}
            labels = arrays.pop(LABELS, None)
            _require_inputs(arrays, self.inputs, where)
            return Batch(arrays, labels, where)
        values = list(item) if isinstance(item, tuple | list) else [item]
        if len(values) == len(self.inputs) + 1:
            labels = _array(values.pop(), where)
        if len(values) != len(self.inputs):
            raise DataError(
                f"{where}: {len(values)} arrays; the model takes {len(self.inputs)} "
                f"({', '.join(tensor.name for tensor in self.inputs)}), and labels may follow"
            )
        names = [tensor.name for tensor in self.inputs]
        return Batch(
            {name: _array(value, where) for name, value in zip(names, values, strict=True)},
            labels,
            where,
        )


def _locate(spec: str, base: Path | None) -> Source | Path:
    if ":" in spec and spec.rpartition(":")[2].isidentifier():
        return parse_source(spec, base=base)
    path = Path(spec).expanduser()
    path = path if path.is_absolute() else (base or Path.cwd()) / path
    if path.is_dir():
        return path
    if not path.exists():
        raise MissingFile(f"data {spec} does not exist", hint=nearest_name(path), file=path)
    if path.suffix != ".npz":
        raise InvalidOption(f"data {spec!r} is none of: .npz, a folder of .npy or .npz, file.py:function")
    return path


def _batch_size(inputs: Sequence[TensorInfo], asked: int | None) -> int:
    fixed = {tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], int)}
    if len(fixed) == 1:
        return int(next(iter(fixed)))
    return asked or DEFAULT_BATCH


def _sample_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz"))
    if not files:
        raise DataError(f"{folder}: holds no .npy or .npz file; at least one is required")
    return files


def _require_inputs(found: Collection[str], inputs: Sequence[TensorInfo], where: str) -> None:
    """Refuse data that lacks an input; a stray array is refused by `check_feeds`."""
    missing = [tensor.name for tensor in inputs if tensor.name not in found]
    if missing:
        raise DataError(
            f"{where}: input {missing[0]!r} is missing; found {', '.join(found) or 'nothing'}",
            hint="key the arrays by the model's input names",
            tensor=missing[0],
        )


def _samples_in_file(path: Path, inputs: Sequence[TensorInfo]) -> int:
    shapes = read_shapes(path)
    first = shapes.get(inputs[0].name if inputs else "", next(iter(shapes.values()), ()))
    has_batch_axis = not inputs or len(first) == len(inputs[0].shape)
    return first[0] if first and has_batch_axis else 1


def _with_batch_axis(array: NDArray[Any], tensor: TensorInfo) -> NDArray[Any]:
    """A file holds one sample or a batch; a single sample gets the first axis."""
    return array[None] if array.ndim == len(tensor.shape) - 1 else array


def _array(value: Any, where: str) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic | int | float | list):
        raise DataError(
            f"{where}: holds {type(value).__name__}; arrays or tensors are required",
            hint="yield a dict of arrays, a tuple of arrays, or (inputs, labels)",
        )
    return np.asarray(value)
