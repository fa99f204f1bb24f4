"""Images with a map of classes each, or with boxes.

`masks=FOLDER` holds a PNG for each image: at the same path, or anywhere by the same name. A pixel's value
is its class: grey values, or indices into a palette, as in PASCAL VOC. A map is resized and cropped as its
image, by nearest neighbour; what is padded is 255.

`annotations=FILE` is a JSON of COCO's form (`instances_val2017.json`). A label is float32 [boxes, 7]:
class, x1, y1, x2, y2 in pixels of the model's input, iscrowd, and the area in those pixels. A batch is
padded with boxes of class -1. Boxes are resized, shifted and clipped as their image; one that a crop leaves
nothing of is left out. Classes are the categories in the order of their ids, counted from 0, or the model's
where it has every category's name.


"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, MissingFile, first_line
from ..files import digest_files, nearest_name, require_file
from ..model.preprocessing import ImagePreprocessing
from ..tensors import TensorInfo
from .images import ImageInput, Placement, decode, image_input, list_images, place, placement, split_folder
from .kinds import list_files
from .preparing import class_numbers
from .readers import Batch
from .samples import Reader, Sample, SampleSet, digest_contents, digest_texts, where_of
from .spelling import Spelling

COLUMNS = ("class", "x1", "y1", "x2", "y2", "iscrowd", "area")
IGNORED = 255
"""Class of pixels that belong to none."""


class MaskedImages(SampleSet):
    """The images of a folder that have a map in another."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling, folder = spelling, Path(spelling.query["masks"])
        if not folder.is_dir():
            raise MissingFile(
                f"masks: folder {folder} does not exist", hint=nearest_name(folder), file=folder
            )
        self.root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        names, self.notes = list_images(self.root)
        self.names = [name for name in names if not (self.root / name).is_relative_to(folder)]
        self.masks = [folder / name for name in _masks_of(self.names, folder)]

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files = [self.root / self.names[index] for index in order()] + [self.masks[i] for i in order()]
        return f"{digest_contents(files)}:{digest_texts(self.names[index] for index in order())}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _MaskReader(self, image_input(inputs, self.spelling))


class _MaskReader(Reader):
    def __init__(self, images: MaskedImages, to_input: ImageInput) -> None:
        self._images, self._input = images, to_input

    def read(self, index: int) -> Sample:
        path, mask = self._images.root / self._images.names[index], self._images.masks[index]
        image = decode(path, self._input.mode, str(path))
        label = read_mask(mask, image.size, self._input.preprocessing)
        return Sample(self._input(image), label, str(path))


def read_mask(path: Path, size: tuple[int, int], preprocessing: ImagePreprocessing) -> NDArray[np.int64]:
    """Return the map of an image of this width and height, int64 [height, width] of the model's input."""
    from PIL import Image

    mask = decode(path, "", str(path))
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
    return np.asarray(place(classes, placement(preprocessing, *size), "nearest", IGNORED), np.int64)


def _masks_of(names: Sequence[str], folder: Path) -> list[str]:
    present = list(list_files(folder))
    by_path = {str(Path(name).with_suffix("")): name for name in present}
    by_name: dict[str, list[str]] = {}
    for name in present:
        by_name.setdefault(Path(name).stem, []).append(name)
    masks = []
    for name in names:
        same = by_name.get(Path(name).stem, [])
        mask = by_path.get(str(Path(name).with_suffix(""))) or (same[0] if len(same) == 1 else None)
        if mask is None:
            what = f"{len(same)} masks have its name" if same else "no mask has its name"
            raise DataError(
                f"{folder}: {what}: {name}; one is required for each image",
                hint=f"add {Path(name).with_suffix('.png')}, or move the image away",
                file=folder,
            )
        masks.append(mask)
    return masks


class AnnotatedImages(SampleSet):
    """The images that a file of annotations names, with or without boxes."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        self.path = require_file(Path(spelling.query["annotations"]), what="annotations")
        content = _read_annotations(self.path)
        images = sorted(content["images"], key=lambda image: str(image["file_name"]))
        self.names = [str(image["file_name"]) for image in images]
        if not self.names:
            raise DataError(f"{self.path}: names no images; at least one is required", file=self.path)
        self.categories = {
            int(category["id"]): str(category.get("name", category["id"]))
            for category in sorted(content["categories"], key=lambda category: int(category["id"]))
        }
        of_image: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in images}
        for box in content["annotations"]:
            if box["image_id"] in of_image:
                of_image[box["image_id"]].append(box)
        self.boxes = [of_image[image["id"]] for image in images]

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files = [require_file(self.root / self.names[index], what="image") for index in order()]
        names = digest_texts(self.names[index] for index in order())
        return f"{digest_contents(files)}:{names}:{digest_files([self.path])}"

    def rows(self, index: int, numbers: Mapping[int, int]) -> NDArray[np.float64]:
        """Return the boxes of an image, [boxes, 7] in its pixels, with these numbers of the categories."""
        rows = []
        for box in self.boxes[index]:
            try:
                left, top, width, height = map(float, box["bbox"])
                label, area = numbers[int(box["category_id"])], float(box.get("area", width * height))
                crowd = float(box.get("iscrowd", 0))
                rows.append([label, left, top, left + width, top + height, crowd, area])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise DataError(
                    f"{self.path}: a box of {self.names[index]} cannot be read ({first_line(error)}); "
                    "bbox [x, y, width, height] and a known category_id are required",
                    file=self.path,
                ) from error
        return np.asarray(rows, np.float64).reshape(-1, len(COLUMNS))

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _BoxReader(self, image_input(inputs, self.spelling))


class _BoxReader(Reader):
    def __init__(self, images: AnnotatedImages, to_input: ImageInput) -> None:
        self._images, self._input = images, to_input
        names, classes = list(images.categories.values()), to_input.preprocessing.classes
        self._numbers = {number: place for place, number in enumerate(images.categories)}
        if classes:
            found, self.notes = class_numbers(names, classes, what="categories")
            if not self.notes:
                self._numbers = {number: found[name] for number, name in images.categories.items()}

    def read(self, index: int) -> Sample:
        path = require_file(self._images.root / self._images.names[index], what="image")
        image = decode(path, self._input.mode, str(path))
        where = placement(self._input.preprocessing, *image.size)
        boxes = placed_boxes(self._images.rows(index, self._numbers), image.size, where)
        return Sample(self._input(image), boxes, str(path))

    def join(self, samples: Sequence[Sample]) -> Batch:
        feeds = {name: np.stack([sample.feeds[name] for sample in samples]) for name in samples[0].feeds}
        labels = np.zeros((len(samples), max(len(sample.label) for sample in samples), 7), np.float32)
        labels[:, :, 0] = -1
        for row, sample in enumerate(samples):
            labels[row, : len(sample.label)] = sample.label
        return Batch(feeds, labels, where_of(samples))


def placed_boxes(boxes: NDArray[Any], size: tuple[int, int], where: Placement) -> NDArray[np.float32]:
    """Return boxes [n, 7] of an image of this width and height in pixels of the model's input."""
    ratio = np.array([where.resized[0] / size[0], where.resized[1] / size[1]])
    placed = boxes.copy()
    corners = boxes[:, 1:5].reshape(-1, 2, 2) * ratio + np.array(where.offset)
    placed[:, 1:5] = np.clip(corners, 0, np.array(where.size)).reshape(-1, 4)
    placed[:, 6] = boxes[:, 6] * ratio.prod()
    inside = (placed[:, 3] > placed[:, 1]) & (placed[:, 4] > placed[:, 2])
    return np.asarray(placed[inside], np.float32)


def _read_annotations(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = {"annotations": [], **json.loads(path.read_bytes())}
        for key, names in (
            ("images", ("id", "file_name")),
            ("annotations", ("image_id",)),
            ("categories", ("id",)),
        ):
            for item in content[key]:
                for name in names:
                    if not isinstance(item[name], int if key == "categories" else int | str):
                        raise TypeError(f"{name} is {str(item[name])[:40]!r}")
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as COCO's annotations ({first_line(error)}); "
            "images, annotations and categories are required",
            file=path,
        ) from error
    return content
