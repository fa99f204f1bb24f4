"""Arrays in files: `.npz`, `.npy`, folders of them, and Polygraphy's JSON. Nothing is unpickled.

Rows of `.npy` files and of uncompressed `.npz` files are mapped. A file of a folder, and an inference of
Polygraphy's, is a batch as it lies, or the samples that it can be split into. Where keys choose among
samples, a sample is identified by its number, and read in stored order.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, first_line
from ..files import digest_files
from ..tensors import TensorInfo
from .readers import LABELS, Batch, Reader, SampleSet, Shapes, extent_of, require_inputs

Arrays = dict[str, NDArray[Any]]


def load_arrays(path: Path) -> Arrays:
    """Return the arrays of an .npz by name; an .npy has the empty name."""
    with _numpy_data(path), path.open("rb") as file:  # numpy leaves the file open when it is no archive
        loaded = np.load(file, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded.items())
        if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{strange[0]} is no array")
        return arrays


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in an .npz or .npy without reading their values."""
    with _numpy_data(path):
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return {"": _header(file)[0]}
        shapes = {}
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as member:
                    shapes[entry.removesuffix(".npy")] = _header(member)[0]
        return shapes


def map_arrays(path: Path) -> Arrays:
    """Return the arrays of a file; those that are not compressed are mapped, and read when they are used."""
    with _numpy_data(path):
        if path.suffix == ".npy":
            return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            return {
                entry.filename.removesuffix(".npy"): _mapped(path, archive, entry, file)
                for entry in archive.infolist()
            }


@contextlib.contextmanager
def _numpy_data(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # zipfile, struct and ValueError: numpy has no one type for "damaged"
        raise DataError(
            f"{path}: cannot be read as numpy data ({error})",
            hint="pickled objects are not read; save plain arrays with numpy.savez",
            file=path,
        ) from error


def _mapped(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: IO[bytes]) -> NDArray[Any]:
    with archive.open(entry) as member:
        shape, by_column, dtype = _header(member)
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


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


class ArraySet(SampleSet):
    """The samples of a file or folder of arrays, for a model with these inputs."""

    def __init__(self, kind: str, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self.path, self._is_folder = path, kind == "arrays"
        readers: Mapping[str, type[_Rows | _Files | _Inferences]] = {
            "npz": _Rows, "npy": _Rows, "arrays": _Files, "polygraphy": _Inferences,
        }  # fmt: skip
        self._open = functools.cache(lambda: readers[kind](path, inputs))

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """The numbers of the samples."""
        return [str(number) for number in range(self._open().count)]

    def classes(self) -> Sequence[int] | None:
        classes: list[int] = []
        for path in _sample_files(self.path) if self._is_folder else [self.path]:
            if path.suffix != ".npz" or len(read_shapes(path).get(LABELS, ())) != 1:
                return None
            labels = map_arrays(path)[LABELS]
            if labels.dtype.kind not in "iu":
                return None
            classes += labels.tolist()
        return classes

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        del order  # keys are digested beside; a limit takes the first
        if not self._is_folder:
            return digest_files([self.path])
        files = _sample_files(self.path)
        names = hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()
        return f"{digest_files(files)}:{names[:16]}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return self._open()


class _Rows(Reader):
    """Rows of the arrays of one file."""

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self._path, shapes = path, read_shapes(path)
        if path.suffix == ".npy":
            shapes = _by_input(path, shapes, inputs)
        require_inputs(shapes, inputs, str(path))
        if any(not shape for shape in shapes.values()):
            scalar = next(name for name, shape in shapes.items() if not shape)
            raise DataError(
                f"{path}: {scalar or 'it'} is a scalar; a first axis of samples is required", file=path
            )
        extents = {name: shape[0] for name, shape in shapes.items()}
        if len(set(extents.values())) > 1:
            counts = ", ".join(f"{name} {extent}" for name, extent in extents.items())
            raise DataError(f"{path}: arrays differ in their number of samples ({counts})")
        self.count, self._inputs, self._is_whole = next(iter(extents.values()), 0), inputs, False

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield rows; a whole file's checksums are checked after its last row."""
        arrays = map_arrays(self._path)
        if self._path.suffix == ".npy":
            arrays = _by_input(self._path, arrays, self._inputs)
        for group in groups:
            first, end = group[0], group[-1] + 1
            rows = slice(first, end) if len(group) == end - first else list(group)
            feeds = {name: np.array(array[rows], order="C") for name, array in arrays.items()}
            labels = feeds.pop(LABELS, None)
            yield Batch(feeds, labels, f"{self._path.name}[{first}:{end}]")
        if self._path.suffix == ".npz" and self._is_whole:
            with _numpy_data(self._path), zipfile.ZipFile(self._path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"Bad CRC-32 for file {damaged!r}")

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        self._is_whole = len(order) == self.count
        return super().arrange(order, batch_size, fixed=fixed)


class _Stored(Reader):
    """Batches of these shapes as they are stored, or the samples that they can be split into."""

    def __init__(self, shapes: Sequence[Shapes]) -> None:
        self._extents = [
            0 if next(iter(batch.values()), ())[:1] == (0,) else extent_of(batch) for batch in shapes
        ]
        self._rows = [
            {name: (1, *shape[1:]) if extent > 1 else shape for name, shape in batch.items()}
            for batch, extent in zip(shapes, self._extents, strict=True)
        ]
        self._places = [(number, row) for number, extent in enumerate(self._extents) for row in range(extent)]
        self.count = len(self._places)
        self._load = functools.lru_cache(maxsize=1)(self.stored)

    def stored(self, number: int) -> Batch:
        """Return a batch as it is stored."""
        raise NotImplementedError

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        """Return stored batches, cut at the end of `order`; drawn samples make batches of one shape each."""
        groups: list[list[int]] = []
        if order == list(range(len(order))):
            for index in order:
                if self._places[index][1] == 0:
                    groups.append([])
                groups[-1].append(index)
            whole = [len(group) == self._extents[self._places[group[0]][0]] for group in groups]
            return [group for group, is_whole in zip(groups, whole, strict=True) if is_whole or not fixed]
        before: Shapes | None = None
        for index in order:
            row_shapes = self._rows[self._places[index][0]]
            if row_shapes != before or len(groups[-1]) == batch_size:
                groups.append([])
            groups[-1].append(index)
            before = row_shapes
        return [group for group in groups if len(group) == batch_size] if fixed else groups

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
            joined = np.concatenate(labels) if len(labels) == len(parts) else None
            where = parts[0].where if len(parts) == 1 else f"{parts[0].where} to {parts[-1].where}"
            yield Batch(feeds, joined, where)


class _Files(_Stored):
    """The `.npy` and `.npz` files of a folder, in the order of their names."""

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self._files, self._inputs = _sample_files(path), inputs
        super().__init__([self._shapes(file) for file in self._files])

    def _shapes(self, path: Path) -> Shapes:
        shapes = _by_input(path, read_shapes(path), self._inputs)
        for tensor in self._inputs:
            if len(shapes[tensor.name]) == len(tensor.shape) - 1:
                shapes[tensor.name] = (1, *shapes[tensor.name])
        return {tensor.name: shapes[tensor.name] for tensor in self._inputs}

    def stored(self, number: int) -> Batch:
        path = self._files[number]
        arrays = load_arrays(path)
        labels = arrays.pop(LABELS, None)
        arrays = _by_input(path, arrays, self._inputs)
        for tensor in self._inputs:  # a file holds a batch, or one sample without the first axis
            if arrays[tensor.name].ndim == len(tensor.shape) - 1:
                arrays[tensor.name] = arrays[tensor.name][None]
        feeds = {tensor.name: arrays[tensor.name] for tensor in self._inputs}
        return Batch(feeds, labels, f"{path.parent.name}/{path.name}")


class _Inferences(_Stored):
    """What `polygraphy run --save-inputs` saved: a JSON list with a dict of arrays for each inference."""

    def __init__(self, path: Path, inputs: Sequence[TensorInfo]) -> None:
        self._path, self._feeds, names = path, load_polygraphy(path), [tensor.name for tensor in inputs]
        shapes = [
            {name: feeds[name].shape for name in (*names, *feeds) if name in feeds and name != LABELS}
            for feeds in self._feeds
        ]
        super().__init__(shapes)

    def stored(self, number: int) -> Batch:
        feeds = dict(self._feeds[number])
        return Batch(feeds, feeds.pop(LABELS, None), f"{self._path.name}[{number}]")


def load_polygraphy(path: Path) -> list[Arrays]:
    """Return the dicts of arrays of a file that `polygraphy.json.save_json` wrote, without Polygraphy."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({first_line(error)})", file=path) from error
    if not isinstance(content, list) or not all(isinstance(feeds, dict) for feeds in content):
        raise DataError(
            f"{path}: is no file of Polygraphy's inputs; a list of dicts of arrays is required",
            hint="save it with polygraphy.json.save_json",
            file=path,
        )
    for feeds in content:
        feeds.pop("polygraphy_class", None)
    return [
        {name: _decoded(value, f"{path}[{index}] {name!r}") for name, value in feeds.items()}
        for index, feeds in enumerate(content)
    ]


def _decoded(value: Any, where: str) -> NDArray[Any]:
    if isinstance(value, dict) and isinstance(value.get("values"), dict):  # a tensor in a wrapper of its own
        value = value["values"]
    text = value.get("array", value.get("tensor")) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: is no array; what polygraphy.json writes of one is required")
    try:
        content = io.BytesIO(base64.b64decode(text, validate=True))
        if "tensor" not in value:
            return np.asarray(np.load(content, allow_pickle=False))
        import torch

        return np.asarray(torch.load(content, weights_only=True).numpy())
    except Exception as error:  # binascii.Error, ValueError, EOFError, SyntaxError: damaged in many ways
        raise DataError(
            f"{where}: cannot be read as an array ({first_line(error)})", hint="pickled objects are not read"
        ) from error


def _sample_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz") and path.is_file())
    if not files:
        raise DataError(f"{folder}: holds no .npy or .npz file; at least one is required")
    return files


def _by_input(path: Path, values: dict[str, Any], inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """The values of a file by input name: a `.npy` file has no names."""
    if path.suffix == ".npy" and inputs:
        if len(inputs) != 1:
            raise DataError(
                f"{path}: a .npy file has no input names, and the model takes {len(inputs)} inputs",
                hint="save .npz files keyed by input name",
            )
        values = {inputs[0].name: next(iter(values.values()))}
    require_inputs(values, inputs, str(path))
    return values
