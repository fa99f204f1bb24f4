"""Images with boxes, from a JSON of COCO's form (`instances_val2017.json`).

A label is float32 [boxes, 7]: class, x1, y1, x2, y2 in pixels of the model's input, iscrowd, and the area in
those pixels. A batch is padded with boxes of class -1. Boxes are resized, shifted and clipped as their image.
A box that a crop leaves nothing of is left out.

Classes are the categories in the order of their ids, counted from 0: COCO's ids of 1 to 90 become 0 to 79.
Where the model's classes hold every category's name, the model's order decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ...files import digest_files, require_file
from ...tensors import TensorInfo
from ..readers import Batch
from ..sample_set import Reader, Sample, SampleSet, digest_contents, digest_texts, where_of
from ..spelling import Spelling
from .decode import decode
from .folder import class_numbers, split_folder
from .input import ImageInput, image_input
from .transform import Placement, placement

COLUMNS = ("class", "x1", "y1", "x2", "y2", "iscrowd", "area")


class AnnotatedImages(SampleSet):
    """The images that a file of annotations names, with or without boxes."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        self.path = require_file(Path(spelling.query["annotations"]), what="annotations")
        content = _read(self.path)
        images = sorted(content["images"], key=lambda image: str(image["file_name"]))
        self.names = [str(image["file_name"]) for image in images]
        if not self.names:
            raise DataError(f"{self.path}: names no images; at least one is required", file=self.path)
        self.categories = {
            int(one["id"]): str(one.get("name", one["id"]))
            for one in sorted(content["categories"], key=lambda one: int(one["id"]))
        }
        of_image: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in images}
        for box in content["annotations"]:
            if box["image_id"] in of_image:
                of_image[box["image_id"]].append(box)
        self.boxes = [of_image[image["id"]] for image in images]

    def digest(self, order: Sequence[int]) -> str:
        files = [self.root / self.names[index] for index in order]
        for path in files:
            require_file(path, what="image")
        names = digest_texts(self.names[index] for index in order)
        return f"{digest_contents(files)}:{names}:{digest_files([self.path])}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _BoxReader(self, image_input(inputs, self.spelling))


class _BoxReader(Reader):
    def __init__(self, images: AnnotatedImages, to_input: ImageInput) -> None:
        self._images, self._input = images, to_input
        names = list(images.categories.values())
        numbers = {number: place for place, number in enumerate(images.categories)}
        if to_input.preprocessing.classes:
            found, self.notes = class_numbers(names, to_input.preprocessing.classes, what="categories")
            if not self.notes:
                numbers = {number: found[name] for number, name in images.categories.items()}
        self._numbers = numbers

    def read(self, index: int) -> Sample:
        path = self._images.root / self._images.names[index]
        require_file(path, what="image")
        image = decode(path, self._input.mode, str(path))
        rows = [self._row(box, str(path)) for box in self._images.boxes[index]]
        boxes = np.asarray(rows, np.float64).reshape(-1, len(COLUMNS))
        where = placement(self._input.preprocessing, *image.size)
        return Sample(self._input.of_image(image), placed_boxes(boxes, image.size, where), str(path))

    def join(self, samples: Sequence[Sample]) -> Batch:
        feeds = {name: np.stack([one.feeds[name] for one in samples]) for name in samples[0].feeds}
        most = max(len(one.label) for one in samples)
        labels = np.zeros((len(samples), most, len(COLUMNS)), np.float32)
        labels[:, :, 0] = -1
        for row, one in enumerate(samples):
            labels[row, : len(one.label)] = one.label
        return Batch(feeds, labels, where_of(samples))

    def _row(self, box: Mapping[str, Any], where: str) -> list[float]:
        """class, x1, y1, x2, y2, iscrowd, area in pixels of the image."""
        try:
            left, top, width, height = map(float, box["bbox"])
            number = self._numbers[int(box["category_id"])]
            area = float(box.get("area", width * height))
            return [number, left, top, left + width, top + height, float(box.get("iscrowd", 0)), area]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{self._images.path}: a box of {where} cannot be read ({first_line(error)}); "
                "bbox [x, y, width, height] and a known category_id are required",
                file=self._images.path,
            ) from error


def placed_boxes(boxes: NDArray[Any], size: tuple[int, int], where: Placement) -> NDArray[np.float32]:
    """Return boxes [n, 7] of an image of this width and height in pixels of the model's input."""
    ratio = np.array([where.resized[0] / size[0], where.resized[1] / size[1]])
    placed = boxes.copy()
    corners = boxes[:, 1:5].reshape(-1, 2, 2) * ratio + np.array(where.offset)
    placed[:, 1:5] = np.clip(corners, 0, np.array(where.size)).reshape(-1, 4)
    placed[:, 6] = boxes[:, 6] * ratio.prod()
    left = (placed[:, 3] > placed[:, 1]) & (placed[:, 4] > placed[:, 2])
    return np.asarray(placed[left], np.float32)


def _require_plain(value: object, name: str, *, whole: bool) -> None:
    kinds: tuple[type, ...] = (int,) if whole else (int, str)
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is {str(value)[:40]!r}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise TypeError(f"it is a {type(content).__name__}")
        for key, fields in (
            ("images", ("id", "file_name")), ("annotations", ("image_id",)), ("categories", ("id",)),
        ):  # fmt: skip
            for one in content.setdefault(key, []) if key == "annotations" else content[key]:
                for name in fields:
                    _require_plain(one[name], name, whole=key == "categories")
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as COCO's annotations ({first_line(error)}); "
            "images, annotations and categories are required",
            file=path,
        ) from error
    return content
