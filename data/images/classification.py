"""Images with one class each, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...tensors import TensorInfo
from ..label_table import LabelTable, read_label_table
from ..labels import read_labels
from ..readers import Batch
from ..sample_set import Reader, Sample, SampleSet, digest_contents, digest_texts, stacked
from ..spelling import Spelling
from .decode import SUFFIXES, decode
from .folder import Listing, class_numbers, list_folder, split_folder
from .input import ImageInput, image_input


class ImageFolder(SampleSet):
    """A folder of images, in folders of classes, with a CSV of labels, or without labels."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        self.listing = list_folder(root, SUFFIXES, what="image", beside=(".csv", ".json", ".txt", ".md"))
        self.names = self.listing.files
        self.table: LabelTable | None = None
        if "labels" in spelling.query:
            self.table = read_label_table(Path(spelling.query["labels"]), self.listing.files, root)

    def classes(self) -> Sequence[str] | None:
        if self.table is not None:
            return self.table.labels
        return self.listing.folders or None

    def digest(self, order: Sequence[int]) -> str:
        files = [self.listing.root / self.names[index] for index in order]
        labels = self.classes() or ()
        texts = [f"{self.names[index]}\n{labels[index] if labels else ''}" for index in order]
        # All labels: their set numbers the classes.
        return f"{digest_contents(files)}:{digest_texts(texts)}:{digest_texts(sorted(set(labels)))}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return ClassReader(self, image_input(inputs, self.spelling))

    def notes(self) -> list[str]:
        return list(self.listing.notes)


class ClassReader(Reader):
    """Decodes images, with the numbers of their classes."""

    def __init__(self, images: ImageFolder, to_input: ImageInput) -> None:
        self._listing: Listing = images.listing
        self._to_input = to_input
        self._labels: Sequence[Any] | None = None
        classes = to_input.preprocessing.classes
        if images.table is not None:
            found = read_labels(images.table.labels, classes, where=lambda index: images.names[index])
            self._labels, self.notes = found.values, found.notes
        elif images.listing.folders:
            folders = images.listing.folders
            numbers, self.notes = class_numbers(folders, classes)
            self._labels = [numbers[folder] for folder in folders]

    def read(self, index: int) -> Sample:
        name = self._listing.files[index]
        path = self._listing.root / name
        image = decode(path, self._to_input.mode, str(path))
        label = None if self._labels is None else self._labels[index]
        return Sample(self._to_input.of_image(image), label, str(path))

    def join(self, samples: Sequence[Sample]) -> Batch:
        return stacked(samples)
