"""Read DATA batch by batch, and check it against the model's inputs.

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
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import DataError, InvalidOption, MissingFile
from ..files import digest_files, nearest_name
from ..model.source import Source, digest_source, parse_source
from ..tensors import TensorInfo, check_feeds
from .readers import Batch, read_folder, read_function, read_npz, sample_files, samples_in_file

DEFAULT_BATCH = 8


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
        for unordered in self._read():
            batch = self._in_order(unordered)
            # Where one input has an axis of samples of a fixed extent, another's first axis is time.
            samples = self.batch_size if self.is_fixed and batch.samples else batch.samples
            if self.limit is not None and seen + samples > self.limit:
                if self.is_fixed or not batch.can_be_split():
                    break
                batch, samples = batch.head(self.limit - seen), self.limit - seen
            check_feeds(self.inputs, batch.feeds, batch.where)
            seen += samples
            if samples:
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
        files = sample_files(self._source) if self._source.is_dir() else [self._source]
        count = sum(samples_in_file(path, self.inputs) for path in files)
        return count if self.limit is None else min(count, self.limit)

    def digest(self) -> str:
        """Return a digest that changes when the data may have changed."""
        if isinstance(self._source, Source):
            return digest_source(self._source, depends=self._depends)
        if self._source.is_dir():
            files = sample_files(self._source)
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
            return read_function(self._source, self.inputs)
        if self._source.is_dir():
            return read_folder(self._source, self.inputs)
        return read_npz(self._source, self.inputs, self.batch_size)


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
