"""Images with a map of classes each, for semantic segmentation.

`masks=FOLDER` holds a PNG for each image: at the same path, or anywhere by the same name. A pixel's value is
its class: grey values, or indices into a palette, as in PASCAL VOC. A map is resized and cropped as its
image, by nearest neighbour. What is padded gets `IGNORED`, which maps commonly use for no class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingFile, first_line
from ...files import nearest_name
from ...model.preprocessing import ImagePreprocessing
from ...tensors import TensorInfo
from ..readers import Batch
from ..sample_set import Reader, Sample, SampleSet, digest_contents, digest_texts, stacked
from ..spelling import Spelling
from ..walk import list_files
from .decode import FORMATS, SUFFIXES, decode
from .folder import list_folder, split_folder
from .input import ImageInput, image_input
from .transform import place, placement

IGNORED = 255
"""Class of pixels that belong to none."""


class MaskedImages(SampleSet):
    """The images of a folder that have a map in another."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        folder, split = Path(spelling.query["masks"]), spelling.query.get("split", "")
        if not folder.is_dir():
            raise MissingFile(
                f"masks: folder {folder} does not exist", hint=nearest_name(folder), file=folder
            )
        self.root = split_folder(Path(spelling.path), split, spelling.spec)
        listing = list_folder(self.root, SUFFIXES, what="image", beside=(".csv", ".json", ".txt", ".md"))
        self.names = tuple(name for name in listing.files if not (self.root / name).is_relative_to(folder))
        self.masks = [folder / name for name in _masks_of(self.names, folder)]
        self._notes = listing.notes

    def digest(self, order: Sequence[int]) -> str:
        files = [self.root / self.names[index] for index in order] + [self.masks[index] for index in order]
        return f"{digest_contents(files)}:{digest_texts(self.names[index] for index in order)}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _MaskReader(self, image_input(inputs, self.spelling))

    def notes(self) -> list[str]:
        return list(self._notes)


class _MaskReader(Reader):
    def __init__(self, images: MaskedImages, to_input: ImageInput) -> None:
        self._images, self._input = images, to_input

    def read(self, index: int) -> Sample:
        path, mask = self._images.root / self._images.names[index], self._images.masks[index]
        image = decode(path, self._input.mode, str(path))
        label = read_mask(mask, image.size, self._input.preprocessing)
        return Sample(self._input.of_image(image), label, str(path))

    def join(self, samples: Sequence[Sample]) -> Batch:
        return stacked(samples)


def read_mask(path: Path, size: tuple[int, int], said: ImagePreprocessing) -> NDArray[np.int64]:
    """Return the map of an image of this width and height, int64 [height, width] of the model's input.

    Raises:
        DataError: If it is damaged, in colours, or of other extents than its image.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            image.load()
            mask = image.copy()
    except Exception as error:  # as in `decode`
        raise DataError(
            f"{path}: cannot be decoded as an image ({first_line(error)})",
            hint="remove or replace the file",
            file=path,
        ) from error
    if mask.mode not in ("L", "P", "1", "I", "I;16"):
        raise DataError(
            f"{path}: is in mode {mask.mode}; one number per pixel is required",
            hint="save the classes as grey values, or with a palette",
            file=path,
        )
    if mask.size != size:
        raise DataError(
            f"{path}: has {mask.size[0]}x{mask.size[1]} pixels; its image has {size[0]}x{size[1]}", file=path
        )
    classes = Image.fromarray(np.asarray(mask).astype(np.int32))
    placed = place(classes, placement(said, *size), "nearest", IGNORED)
    return np.asarray(placed, np.int64)


def _masks_of(names: Sequence[str], folder: Path) -> list[str]:
    present = list(list_files(folder))
    by_path = {str(Path(name).with_suffix("")): name for name in present}
    by_name: dict[str, list[str]] = {}
    for name in present:
        by_name.setdefault(Path(name).stem, []).append(name)
    masks = []
    for name in names:
        same = by_name.get(Path(name).stem, [])
        found = by_path.get(str(Path(name).with_suffix(""))) or (same[0] if len(same) == 1 else None)
        if found is None:
            what = f"{len(same)} masks have its name" if same else "no mask has its name"
            raise DataError(
                f"{folder}: {what}: {name}; one is required for each image",
                hint=f"add {Path(name).with_suffix('.png')}, or move the image away",
                file=folder,
            )
        masks.append(found)
    return masks
