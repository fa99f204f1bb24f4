"""DATA from memory: arrays, samples, generator functions, loaders and data sets become files.

`stored` names each file by the digest of its content, so keys, manifests and worker processes read the
samples like DATA on disk. The files exist until this process ends; `copied_beside` copies them for a recipe.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.files import digest_files, temporary_folder
from ..core.files.storage import translating_write_errors
from ..core.progress import quiet
from ..errors import DataError, QCompileError
from ..spec.decode import Checked, Refused
from ..spec.option import Option, fields_of
from ..spec.tensors import TensorInfo
from .arrays import POSITION
from .readers import LABELS, MOST_READ, copy_array, warn_of_many
from .spelling import Spelling, parse_spelling

ACCEPTED = (
    "a path or file.py:function, a dict of arrays, an array, a list of samples, a generator function, a "
    "DataLoader or a Dataset"
)
Spec = TypeVar("Spec", bound=Checked)
_PREFIX = "samples-"


def stored(
    value: Any, option: str = "data", *, inputs: Sequence[TensorInfo] = (), limit: int | None = None
) -> str:
    """Return the spelling of DATA; samples in memory are first written to files.

    Args:
        value: A spelling, or samples in memory (`ACCEPTED`).
        option: Option that messages name.
        inputs: Inputs of the model, to count the samples of a batch; without them each item counts as one.
        limit: Number of samples after which an iterable is read no further.

    Raises:
        InvalidOption: If the value is none of these.
        DataError: If an item holds no arrays, or reading fails.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(Spelling("", "", os.fspath(value)))
    if callable(value) and not isinstance(value, Iterable) and not hasattr(value, "__getitem__"):
        with _reading(option):
            value = value()
    is_of_datasets = type(value).__module__.partition(".")[0] == "datasets"
    if is_of_datasets and isinstance(value, Mapping):
        hint = f"choose a split, such as data[{next(iter(value), 'train')!r}]"
        raise Refused(option, f"holds {', '.join(value)}; one Dataset is required", hint=hint)
    with _new_place() as place:
        kind, suffix = "", ""
        if isinstance(value, Mapping):
            suffix = ".npz"
            arrays = {str(name): copy_array(array, f"`{option}` {name!r}") for name, array in value.items()}
            _save_npz(place, arrays)
        elif isinstance(value, np.ndarray) or hasattr(value, "detach"):
            suffix = ".npy"
            with place.open("wb") as file:
                np.save(file, copy_array(value, f"`{option}`"), allow_pickle=False)
        elif is_of_datasets and hasattr(value, "save_to_disk") and value.format["type"] is None:
            kind = "datasets"
            with _reading(option), quiet():
                value.save_to_disk(str(place))
        else:
            _save_items(_items(value, option), place, option, inputs, limit)
        final = _folder() / f"{_PREFIX}{_digest(place)}{suffix}"
        if not final.exists():
            place.rename(final)
    return str(Spelling("", kind, str(final)))


def stored_option(value: object, option: Option) -> str:
    """Return the spelling of an option's DATA; at most `MOST_READ` items are read to fit INT8 to."""
    return stored(value, option.name, limit=MOST_READ if option.spelling.place else None)


def public_spelling(text: str) -> str:
    """Return the spelling of samples, of those in memory the name with their digest alone."""
    source = _file_of(text)
    return source.name if source else text


def _file_of(text: str) -> Path | None:
    """Return the file or folder that `stored` wrote for a spelling; None for other samples."""
    path = Path(parse_spelling(text).path)
    return path if path.name.startswith(_PREFIX) and path.parent == _folder() else None


def copied_beside(text: str, folder: Path) -> str:
    """Return the spelling of samples, copied to `folder` if `stored` wrote them for this process alone."""
    source = _file_of(text)
    if source is None:
        return text
    target = folder / source.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with translating_write_errors(target), temporary_folder("data") as place:
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            shutil.move(copy(source, place / source.name), target)
    return str(Spelling("", parse_spelling(text).kind, str(target)))


@functools.cache
def _folder() -> Path:
    """Return the folder of this process's samples, which is removed when the process ends."""
    stack, owner = contextlib.ExitStack(), os.getpid()
    folder = stack.enter_context(temporary_folder("data"))
    atexit.register(lambda: stack.close() if os.getpid() == owner else None)  # a fork may not remove it
    return folder


@contextlib.contextmanager
def _new_place() -> Iterator[Path]:
    """Yield a path to write to; remove it after the block unless it was renamed."""
    place = _folder() / f"new-{os.getpid()}-{next(_NUMBERS)}"  # a fork writes to the same folder
    try:
        with translating_write_errors(place):
            yield place
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)


_NUMBERS = itertools.count()


def _items(value: Any, option: str) -> Iterator[Any]:
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        iterator = iter(value)
    elif hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, bytes):
        iterator = (value[index] for index in range(len(value)))  # a map-style data set
    else:
        raise Refused(option, f"{ACCEPTED} is required", value=value)
    for number in itertools.count():
        with _reading(option, f" at batch {number}"):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextlib.contextmanager
def _reading(option: str, place: str = "") -> Iterator[None]:
    """Raise `DataError` for an exception of the user's samples; a part of the data would be wrong data."""
    try:
        yield
    except QCompileError:
        raise
    except Exception as error:
        raise DataError(f"`{option}`: raised {type(error).__name__}{place}: {error}") from error


def _save_items(
    items: Iterable[Any], place: Path, option: str, inputs: Sequence[TensorInfo], limit: int | None
) -> None:
    """Write each item, a sample or a batch, to a file of its own."""
    place.mkdir()
    samples = 0
    for number, item in enumerate(items):
        arrays = _arrays_of(item, f"`{option}` item {number}")
        _save_npz(place / f"{number:08}.npz", arrays)
        new = _samples_in(arrays, inputs)
        if limit is None:
            warn_of_many(f"`{option}`", samples, samples + new)
        samples += new
        if limit is not None and samples >= limit:
            return
    if not samples:
        raise DataError(f"`{option}`: holds no samples; at least one is required")


def _arrays_of(item: Any, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an item by name; those of a tuple, or a single array, by position."""
    labels = None
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping):
        item, labels = item
    if not isinstance(item, Mapping):
        values = item if isinstance(item, tuple | list) else [item]
        return {f"{POSITION}{index}": copy_array(value, where) for index, value in enumerate(values)}
    arrays = {str(name): copy_array(value, where) for name, value in item.items()}
    if labels is not None:
        if present := [name for name in LABELS if name in arrays]:
            raise DataError(f"{where}: holds {present[0]!r}, and further labels beside the dict")
        arrays[LABELS[0]] = copy_array(labels, where)
    return arrays


def _samples_in(arrays: Mapping[str, NDArray[Any]], inputs: Sequence[TensorInfo]) -> int:
    """Return the number of samples of an item; 1 without inputs to compare its first array with."""
    first = next(iter(arrays.values()))
    if not inputs or first.ndim != len(inputs[0].shape) or not first.ndim:
        return 1
    return len(arrays.get(inputs[0].name, first))


def _save_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of any names; `numpy.savez` reserves some."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def with_samples_beside(spec: Spec, folder: Path) -> Spec:
    """Return a spec of a recipe whose samples in memory are files in the recipe's folder."""
    texts = {option.name: getattr(spec, option.name) for option in fields_of(type(spec)) if option.takes_data}
    copies = {name: copied_beside(text, folder) for name, text in texts.items() if text}
    return spec if copies == texts else replace(spec, **copies)


def _digest(path: Path) -> str:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return digest_files(files).rpartition(":")[2][:16]
