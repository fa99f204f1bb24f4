"""The binary files of CIFAR-10 and CIFAR-100, read by memory map.

A record is one byte with the class (CIFAR-100: one with the coarse class, then one with the fine class, which
is the label), and 3072 bytes of pixels: the red, green and blue plane, 32 rows of 32. The Python version of
the sets holds pickles, which can run code when they are opened, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, InvalidOption
from ..tensors import TensorInfo
from .readers import Batch
from .sample_set import Reader, Sample, SampleSet, digest_contents, digest_texts, stacked
from .spelling import Spelling

if TYPE_CHECKING:
    from .images.input import ImageInput

PIXELS = 3 * 32 * 32
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Layout:
    """How one of the sets is stored.

    Attributes:
        head: Bytes in front of a record's pixels; the last is the label.
        classes: Number of classes.
        splits: Split to a pattern of its files' names.
    """

    head: int
    classes: int
    splits: dict[str, str]


LAYOUTS = {
    "cifar10": Layout(1, 10, {"train": r"data_batch_\d+\.bin", "test": r"test_batch\.bin"}),
    "cifar100": Layout(2, 100, {"train": r"train\.bin", "test": r"test\.bin"}),
}


def is_cifar(path: Path) -> str:
    """Return "cifar10" or "cifar100" where the files at a path have their names; else an empty text.

    Raises:
        DataError: If they are the pickled version.
    """
    names = [one.name for one in path.iterdir()] if path.is_dir() else [path.name]
    for kind, layout in LAYOUTS.items():
        patterns = "|".join(layout.splits.values())
        if any(re.fullmatch(patterns, name) for name in names):
            return kind
    if any(name in ("batches.meta", "data_batch_1", "test_batch") for name in names):
        _refuse_pickles(path)
    return ""


class CifarFiles(SampleSet):
    """The records of one or more files."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling, self.layout = spelling, LAYOUTS[spelling.kind]
        path, split = Path(spelling.path), spelling.query.get("split", "")
        self.files = self._of_split(path, split) if path.is_dir() else [path]
        if split and not path.is_dir():
            raise InvalidOption(f"data {spelling.spec!r}: split={split}: a file has no splits")
        self._records = [_map(file, self.layout) for file in self.files]
        self.names = [
            f"{file.name}:{record}"
            for file, records in zip(self.files, self._records, strict=True)
            for record in range(len(records))
        ]
        self._starts = np.cumsum([0, *(len(records) for records in self._records)])

    def classes(self) -> Sequence[int]:
        labels = np.concatenate([records[:, self.layout.head - 1] for records in self._records])
        return [int(label) for label in labels]

    def digest(self, order: Sequence[int]) -> str:
        chosen = np.asarray(order, np.int64).tobytes().hex() if len(order) < len(self.names) else ""

        return f"{digest_contents(self.files)}:{digest_texts([chosen])}"

    def record(self, index: int) -> tuple[NDArray[np.uint8], int, str]:
        """Return the pixels [3, 32, 32] of a record, its label and where it is.

        Raises:
            DataError: If the label is no class.
        """
        number = int(np.searchsorted(self._starts, index, "right")) - 1
        place = index - int(self._starts[number])
        row, where = self._records[number][place], f"{self.files[number].name} record {place}"
        label = int(row[self.layout.head - 1])
        if label >= self.layout.classes:
            raise DataError(
                f"{self.files[number]}: record {place} is of class {label}; "
                f"0 to {self.layout.classes - 1} are required",
                hint=f"this is no file of {self.spelling.kind}",
                file=self.files[number],
                sample=index,
            )
        return np.asarray(row[self.layout.head :]).reshape(3, 32, 32), label, where

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        from .images.input import image_input

        return _CifarReader(self, image_input(inputs, self.spelling))

    def _of_split(self, folder: Path, split: str) -> list[Path]:
        splits = self.layout.splits
        if split and split not in splits:
            raise InvalidOption(
                f"data {self.spelling.spec!r}: split={split}; {' or '.join(splits)} is required"
            )
        present = {
            name: sorted(one for one in folder.iterdir() if re.fullmatch(pattern, one.name))
            for name, pattern in splits.items()
        }
        there = [name for name, files in present.items() if files]
        if not there:
            if any((folder / name).exists() for name in ("batches.meta", "data_batch_1")):
                _refuse_pickles(folder)
            raise DataError(f"{folder}: holds no binary file of {self.spelling.kind}", file=folder)
        if not split and len(there) > 1:
            raise InvalidOption(
                f"data {self.spelling.spec!r}: holds train and test; one of them is required",
                hint="add ?split=test, or split=train",
            )
        chosen = split or there[0]
        if not present[chosen]:
            raise DataError(f"{folder}: holds no file of split {chosen}; found {there[0]}", file=folder)
        return present[chosen]


class _CifarReader(Reader):
    def __init__(self, files: CifarFiles, to_input: ImageInput) -> None:
        from .images.folder import class_numbers

        self._files, self._input = files, to_input
        self._numbers = list(range(files.layout.classes))
        own = to_input.preprocessing.classes
        if files.layout.classes == len(NAMES) and own:
            numbers, self.notes = class_numbers(NAMES, own, what="classes of CIFAR-10")
            if not self.notes:
                self._numbers = [numbers[name] for name in NAMES]

    def read(self, index: int) -> Sample:
        pixels, label, where = self._files.record(index)
        return Sample(self._input.of_pixels(pixels), self._numbers[label], where)

    def join(self, samples: Sequence[Sample]) -> Batch:

        return stacked(samples)


def _map(path: Path, layout: Layout) -> NDArray[Any]:
    size, record = path.stat().st_size, layout.head + PIXELS
    if not size or size % record:
        raise DataError(
            f"{path}: has {size} bytes; a multiple of {record}, the bytes of a record, is required",
            hint="the file is cut off, or no binary version",
            file=path,
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, record)


def _refuse_pickles(path: Path) -> None:
    raise DataError(
        f"{path}: is the Python version of CIFAR, whose files are pickles; unpickling can run code",
        hint="take the binary version (cifar-10-binary.tar.gz), or a function that reads the pickles",
        file=path,
    )
