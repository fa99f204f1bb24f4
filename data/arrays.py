"""Read samples from arrays in files: `.npz`, `.npy`, folders of both, and Polygraphy's JSON. Never unpickles.

Rows of `.npy` files and of uncompressed `.npz` files are memory-mapped. A file of a folder, and an inference
in Polygraphy's JSON, is one batch; a draw splits it into samples if possible. Keys select samples by number.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..core.files import digest_files
from ..errors import DataError, translate_errors
from ..spec.tensors import TensorInfo
from .readers import (
    LABELS,
    Batch,
    Reader,
    SampleSet,
    Shapes,
    extent_of,
    is_one_hot,
    label_name,
    require_inputs,
    take_labels,
)

Arrays = dict[str, NDArray[Any]]
POSITION = "arr_"
"""Prefix of the names of arrays without names, in the order of the inputs, as `numpy.savez` writes them."""


def load_arrays(path: Path) -> Arrays:
    """Return the arrays of an .npz by name; the array of an .npy has an empty name."""
    with _numpy_errors(path), path.open("rb") as file:  # np.load(path) does not close an invalid archive
        loaded = np.load(file, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded.items())
        if non_arrays := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{non_arrays[0]} is no array")
        return arrays


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in an .npz or .npy without reading their values."""
    with _numpy_errors(path):
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return {"": _read_header(file)[0]}
        shapes = {}
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as member:
                    shapes[entry.removesuffix(".npy")] = _read_header(member)[0]
        return shapes


def map_arrays(path: Path) -> Arrays:
    """Return the arrays of a file by name; uncompressed arrays are memory-mapped and read on use."""
    with _numpy_errors(path):
        if path.suffix == ".npy":
            return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            return {
                entry.filename.removesuffix(".npy"): _map_array(path, archive, entry, file)
                for entry in archive.infolist()
            }


def _numpy_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    hint = "pickled objects are not read; save plain arrays with numpy.savez"
    return translate_errors(f"{path}: cannot be read as numpy data", DataError, hint=hint, file=path)


def _map_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: IO[bytes]) -> NDArray[Any]:
    with archive.open(entry) as member:
        shape, by_column, dtype = _read_header(member)
        if entry.compress_type != zipfile.ZIP_STORED or 0 in shape or dtype.hasobject:
            member.seek(0)
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        header_bytes = member.tell()
    file.seek(entry.header_offset + 26)  # lengths of the name and of the extra field
    lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
    offset = entry.header_offset + 30 + lengths + header_bytes
    size = header_bytes + int(np.prod(shape)) * dtype.itemsize
    if size != entry.file_size:
        raise ValueError(f"{entry.filename} has {entry.file_size} bytes; its header says {size}")
    return np.memmap(path, dtype, "r", offset, shape, "F" if by_column else "C")


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    return read(file)


class ArraySet(SampleSet):
    """Samples of a file or folder of arrays, for a model with `inputs`."""

    def __init__(self, kind: str, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self._is_folder, self._inputs = kind == "arrays", inputs
        self._files = functools.cache(lambda: _sample_files(path) if self._is_folder else [path])
        readers = {"arrays": _Files, "polygraphy": _Inferences}

        def read() -> Reader:
            row_reader = _Files if _is_one_batch(path, kind, inputs) else _Rows
            return readers.get(kind, row_reader)(path, inputs)

        self._open: Callable[[], Any] = functools.cache(read)

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """The numbers of the samples."""
        return [str(number) for number in range(self._open().count)]

    def classes(self) -> Sequence[Hashable] | None:
        classes: list[Hashable] = []
        for path in self._files():
            shapes = read_shapes(path)
            name = label_name(shapes, self._inputs, str(path))
            if path.suffix != ".npz" or name is None or len(shapes[name]) not in (1, 2):
                return None
            labels = map_arrays(path)[name]
            if is_one_hot(labels):
                labels = labels.argmax(axis=1)
            if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
                return None
            classes += labels.tolist()
        return classes

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        del order  # covers whole files: `Data.digest` adds the keys, and a limit takes the first samples
        names = hashlib.sha256("\n".join(path.name for path in self._files()).encode()).hexdigest()
        return digest_files(self._files()) + (f":{names[:16]}" if self._is_folder else "")

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return self._open()  # type: ignore[no-any-return]


class _Rows(Reader):
    """Rows of the arrays of one file.

    A 0-d array is repeated for every sample. If an input of the model is a scalar, each row is one batch.
    """

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self._path, self._inputs, self._is_whole = path, inputs, False
        self._scalars = {tensor.name for tensor in inputs if not tensor.shape}
        shapes = _key_by_input(path, read_shapes(path), inputs)
        for name, shape in shapes.items():
            if not shape and inputs and name not in self._scalars:
                message = f"{path}: {name or 'it'} is a scalar; a first axis of samples is required"
                raise DataError(message, hint="save one sample as array[None]", file=path)
        extents = {name: shape[0] for name, shape in shapes.items() if shape}
        if len(set(extents.values())) > 1:
            counts = ", ".join(f"{name} {extent}" for name, extent in extents.items())
            hint = "where the first axis is no batch, export each input with an axis of its own name"
            raise DataError(f"{path}: arrays differ in their number of samples ({counts})", hint=hint)
        self.count = next(iter(extents.values()), int(bool(shapes)))
        self._is_split = not self._scalars.isdisjoint(extents)

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        self._is_whole = len(order) == self.count
        return super().arrange(order, 1 if self._is_split else batch_size, fixed=fixed)

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield batches of rows; after a complete pass over an .npz, verify its checksums."""
        arrays = _key_by_input(self._path, map_arrays(self._path), self._inputs)
        for group in groups:
            first, end = group[0], group[-1] + 1
            rows = slice(first, end) if len(group) == end - first else list(group)
            feeds = {
                name: np.array(
                    array[first if name in self._scalars else rows] if array.ndim else array, order="C"
                )
                for name, array in arrays.items()
            }
            where = f"{self._path.name}[{first}:{end}]"
            yield Batch(feeds, take_labels(feeds, self._inputs, where), where)
        if self._path.suffix == ".npz" and self._is_whole:
            with _numpy_errors(self._path), zipfile.ZipFile(self._path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"Bad CRC-32 for file {damaged!r}")


class _Stored(Reader):
    """Stored batches with `shapes`, read by `load`; a draw splits them into samples if possible."""

    def __init__(self, shapes: Sequence[Shapes], load: Callable[[int], Batch]) -> None:
        self._load, self._places = functools.lru_cache(maxsize=1)(load), list[tuple[int, int]]()
        self._extents, self._rows = list[int](), list[Shapes]()
        for number, batch in enumerate(shapes):
            extent = 0 if next(iter(batch.values()), ())[:1] == (0,) else extent_of(batch)
            rows = {name: (1, *shape[1:]) if extent > 1 else shape for name, shape in batch.items()}
            self._extents.append(extent)
            self._rows.append(rows)
            self._places += [(number, row) for row in range(extent)]
        self.count = len(self._places)

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        """Return stored batches if `order` is a prefix (the last may be cut), else runs of equal shape."""
        if order == list(range(len(order))):
            stored = itertools.groupby(order, lambda index: self._places[index][0])
            groups = [(self._extents[number], list(rows)) for number, rows in stored]
            return [rows for extent, rows in groups if len(rows) == extent or not fixed]
        if any(() in rows.values() for rows in self._rows):
            batch_size = 1  # samples with a scalar input cannot be concatenated
        of_shape = itertools.groupby(order, lambda index: self._rows[self._places[index][0]])
        runs = (super(_Stored, self).arrange(list(rows), batch_size, fixed=fixed) for _, rows in of_shape)
        return list(itertools.chain.from_iterable(runs))

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        for group in groups:
            places = [self._places[index] for index in group]
            number = places[0][0]
            if len(group) == self._extents[number] and places[-1][0] == number:
                yield self._load(number)
                continue
            parts = [
                self._load(number).sample(row) if self._extents[number] > 1 else self._load(number)
                for number, row in places
            ]
            feeds = {name: np.concatenate([part.feeds[name] for part in parts]) for name in parts[0].feeds}
            labels = [part.labels for part in parts if part.labels is not None]
            where = parts[0].where if len(parts) == 1 else f"{parts[0].where} to {parts[-1].where}"
            yield Batch(feeds, np.concatenate(labels) if len(labels) == len(parts) else None, where)


def _is_one_batch(path: Path, kind: str, inputs: Sequence[TensorInfo]) -> bool:
    """Return whether an .npz is one batch: its first axes differ in file and model, e.g. for a graph."""
    if kind != "npz" or len({tensor.shape[:1] for tensor in inputs}) < 2:
        return False
    shapes = _by_position(read_shapes(path), inputs)
    return len({shapes[tensor.name][:1] for tensor in inputs if tensor.name in shapes}) > 1


class _Files(_Stored):
    """Batches in files: the `.npy` and `.npz` files of a folder, sorted by name, or a single file."""

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        files, ranks = [path], {tensor.name: len(tensor.shape) for tensor in inputs}
        if path.is_dir():
            files = _sample_files(path)

        def shapes(file: Path) -> Shapes:
            stored = _key_by_input(file, read_shapes(file), inputs)
            return {
                name: (1,) * (len(stored[name]) == rank - 1) + stored[name] for name, rank in ranks.items()
            }

        def load(number: int) -> Batch:
            file = files[number]
            arrays = _by_position(load_arrays(file), inputs)
            labels = take_labels(arrays, inputs, str(file))
            arrays = _key_by_input(file, arrays, inputs)
            feeds = {  # a file holds a batch, or one sample without the first axis
                name: arrays[name][None] if arrays[name].ndim == rank - 1 else arrays[name]
                for name, rank in ranks.items()
            }
            if labels is not None and any(feeds[name].ndim > arrays[name].ndim for name in feeds):
                labels = labels[None]
            return Batch(feeds, labels, "/".join(dict.fromkeys((path.name, file.name))))

        super().__init__([shapes(file) for file in files], load)


class _Inferences(_Stored):
    """Inferences saved by `polygraphy run --save-inputs`: a JSON list with one dict of arrays each."""

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        inferences, names = load_polygraphy(path), [tensor.name for tensor in inputs]
        labels = [take_labels(feeds, inputs, f"{path.name}[{n}]") for n, feeds in enumerate(inferences)]
        shapes = [
            {name: feeds[name].shape for name in (*names, *feeds) if name in feeds} for feeds in inferences
        ]

        def load(number: int) -> Batch:
            return Batch(dict(inferences[number]), labels[number], f"{path.name}[{number}]")

        super().__init__(shapes, load)


def load_polygraphy(path: Path) -> list[Arrays]:
    """Return the arrays of each inference in a file of `polygraphy.json.save_json`, without Polygraphy."""
    with translate_errors(f"{path}: cannot be read as JSON", DataError, file=path):
        content = json.loads(path.read_bytes())
    if not isinstance(content, list) or not all(isinstance(feeds, dict) for feeds in content):
        raise DataError(
            f"{path}: is no file of Polygraphy's inputs; a list of dicts of arrays is required",
            hint="save it with polygraphy.json.save_json",
            file=path,
        )
    return [
        {
            name: _decode_array(value, f"{path}[{number}] {name!r}")
            for name, value in feeds.items() if name != "polygraphy_class"
        }
        for number, feeds in enumerate(content)
    ]  # fmt: skip


def _decode_array(value: Any, where: str) -> NDArray[Any]:
    if isinstance(value, dict) and isinstance(value.get("values"), dict):  # a wrapped tensor
        value = value["values"]
    text = value.get("array", value.get("tensor")) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: not an array; an array written by polygraphy.json is required")
    hint = "pickled objects are not read"
    with translate_errors(f"{where}: cannot be read as an array", DataError, hint=hint):
        content = io.BytesIO(base64.b64decode(text, validate=True))
        if "tensor" not in value:
            return np.asarray(np.load(content, allow_pickle=False))
        import torch

        return np.asarray(torch.load(content, weights_only=True).numpy())


def _sample_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz") and path.is_file())
    if not files:
        raise DataError(f"{folder}: holds no .npy or .npz file; at least one is required")
    return files


def _key_by_input(path: Path, values: dict[str, Any], inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """Return values by input name; the unnamed array of an `.npy` file belongs to the only input."""
    if path.suffix == ".npy" and inputs:
        if len(inputs) != 1:
            raise DataError(
                f"{path}: a .npy file has no input names, and the model takes {len(inputs)} inputs",
                hint="save .npz files keyed by input name",
            )
        values = {inputs[0].name: next(iter(values.values()))}
    values = _by_position(values, inputs)
    require_inputs(values, inputs, str(path))
    return values


def _by_position(values: dict[str, Any], inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """Return values without names by input name, in the order of the inputs; labels may follow."""
    names = [*(tensor.name for tensor in inputs), LABELS[0]]
    positions = [f"{POSITION}{number}" for number in range(len(values))]
    if len(names) - len(values) not in (0, 1) or {*positions} != {*values} or POSITION + "0" in names:
        return values
    return {name: values[position] for position, name in zip(positions, names, strict=False)}
