"""Read numpy files a few rows at a time: memory holds one batch, however large the file."""

from __future__ import annotations

import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

_PASSED_BYTES = 1 << 20  # at a time, of rows that are passed over


def load_arrays(path: Path, *, only: str = "") -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz by name, or the `only` one; an .npy has the empty name.

    Raises:
        DataError: If it is no numpy file, is damaged, or holds pickled objects.
    """
    try:
        # Opened here: numpy leaves the file open when it is no archive.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            return {name: loaded[name] for name in loaded.files if name == (only or name)}
    except Exception as error:  # zipfile, struct and ValueError: numpy has no one type for "damaged"
        raise _unreadable(path, error) from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in an .npz or .npy without reading their values.

    Raises:
        DataError: If it is no numpy file or is damaged.
    """
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return {"": _read_header(file)[0]}
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for entry in archive.namelist():
                with archive.open(entry) as member:
                    shapes[entry.removesuffix(".npy")] = _read_header(member)[0]
            return shapes
    except Exception as error:  # as above
        raise _unreadable(path, error) from error


def read_rows(
    path: Path, rows: int, holds: Callable[[int], bool] = lambda _: True
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield all arrays of an .npz, `rows` of the first axis at a time.

    All arrays must have the same first extent, as `read_shapes` tells. One that is stored column by column
    is read whole. Parts whose number, from 0, `holds` refuses are passed over: no array is made of them, but
    their bytes go by, as the archive's checksum is that of a whole array.

    Raises:
        DataError: If the file is damaged or holds pickled objects.
    """
    damages = (ValueError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error, struct.error)
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = {
                entry.removesuffix(".npy"): _Member(stack.enter_context(archive.open(entry)))
                for entry in archive.namelist()
            }
        except Exception as error:  # as above; a damaged header is even a SyntaxError
            raise _unreadable(path, error) from error
        number = 0
        while members and all(member.left for member in members.values()):
            part = None
            try:
                if holds(number):
                    part = {name: member.read(rows) for name, member in members.items()}
                else:
                    for member in members.values():
                        member.skip(rows)
            except damages as error:
                raise _unreadable(path, error) from error
            if part is not None:
                yield part
            number += 1


class _Member:
    """One array of an archive, read from its beginning to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._shape, by_column, self._dtype = _read_header(file)
        if self._dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
        if not self._shape:
            raise ValueError("it is a scalar, which has no first axis")
        self.left = self._shape[0]
        """Rows that are not read yet."""
        self._whole: NDArray[Any] | None = None
        if by_column:
            self._whole = np.frombuffer(file.read(), self._dtype).reshape(self._shape, order="F")

    def read(self, rows: int) -> NDArray[Any]:
        """Return the next rows, fewer at the end."""
        rows = min(rows, self.left)
        start = self._shape[0] - self.left
        self.left -= rows
        if self._whole is not None:
            return np.ascontiguousarray(self._whole[start : start + rows])
        part = np.empty((rows, *self._shape[1:]), self._dtype)
        flat = part.reshape(-1).view(np.uint8)
        done = 0
        while done < part.nbytes:
            content = self._file.read(part.nbytes - done)
            if not content:
                raise EOFError("it ends early")
            flat[done : done + len(content)] = np.frombuffer(content, np.uint8)
            done += len(content)
        self._check_end()
        return part

    def skip(self, rows: int) -> None:
        """Pass over the next rows."""
        rows = min(rows, self.left)
        self.left -= rows
        if self._whole is not None:
            return
        size_bytes = rows * self._dtype.itemsize * math.prod(self._shape[1:])
        while size_bytes:
            content = self._file.read(min(size_bytes, _PASSED_BYTES))
            if not content:
                raise EOFError("it ends early")
            size_bytes -= len(content)
        self._check_end()

    def _check_end(self) -> None:
        if not self.left and self._file.read(1):
            raise ValueError("it is longer than its header says")  # reading on also checks the sum


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: cannot be read as numpy data ({error})",
        hint="pickled objects are not read; save plain arrays with numpy.savez",
        file=path,
    )
