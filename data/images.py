"""Folders of images with classes, maps or boxes: decoding, resize, crop and normalization as in training.

docs/data.md describes images, maps and boxes.

| step       | as                                                                                        |
|------------|-------------------------------------------------------------------------------------------|
| resize     | `torchvision.transforms.Resize` of a Pillow image: the longer side is rounded down        |
| crop       | `CenterCrop`: a smaller image is padded with 0 first                                      |
| letterbox  | resized to fit, then padded with `fill` on both sides evenly, the odd pixel after         |
| normalize  | `ToTensor` and `Normalize`: float32, divided by 255, less the mean, divided by the std    |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.figures import counted
from ..core.files import digest_files, nearest_name, require_file
from ..errors import DataError, MissingFile, first_line, translate_errors
from ..model.sources.preprocessing import ImagePreprocessing, is_channels_last
from ..spec.tensors import TensorInfo
from . import readers
from .spelling import Spelling
from .table import class_numbers, preprocessing_for

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
"""Formats that Pillow may open: it detects them by content, and would run Ghostscript for PostScript."""
_NO_CLASS = 255  # value of pixels without a class
_BOX_COLUMNS = 7


class ImageFolder(readers.SampleSet):
    """Images of a folder; if two or more subfolders contain images, the subfolders are the classes."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.root = readers.split_folder(spelling)
        self.names, self.notes = readers.list_images(self.root)
        inside = [name for name in self.names if "/" in name]
        self.has_classes = len({name.split("/")[0] for name in inside}) > 1
        if self.has_classes and (loose := len(self.names) - len(inside)):
            note = f"left out: {counted(loose, 'image')} of {self.root} beside the folders of classes"
            self.notes = [*self.notes, note]
        self.names = inside if self.has_classes else self.names

    def classes(self) -> Sequence[str] | None:
        return [name.split("/")[0] for name in self.names] if self.has_classes else None

    def file(self, index: int) -> tuple[Path, str]:
        """Return the path of an image, and its text for messages."""
        path = self.root / self.names[index]
        return path, str(path)

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files, labels = [self.file(index)[0] for index in order()], self.classes() or [""] * len(self.names)
        texts = [f"{self.names[index]}\n{labels[index]}" for index in order()]
        # All labels: the numbers of the classes depend on the whole set.
        classes = readers.digest_texts(sorted(set(self.classes() or ())))
        return f"{readers.digest_contents(files)}:{readers.digest_texts(texts)}:{classes}"

    def reader(self, inputs: Sequence[TensorInfo]) -> readers.Reader:
        target, classes = image_input(inputs, self.spelling), self.classes()
        if classes is None:
            return ImageReader(target, self.file)
        numbers, notes = class_numbers(classes, target[0].classes)
        return ImageReader(target, self.file, lambda index, _: numbers[classes[index]], notes)


class ImageReader(readers.Reader):
    """Reader of images for `target` (see `image_input`); `label` gets the index and the (width, height)."""

    def __init__(
        self,
        target: tuple[ImagePreprocessing, TensorInfo],
        file: Callable[[int], tuple[Path | IO[bytes], str]],
        label: Callable[[int, tuple[int, int]], Any] = lambda *_: None,
        notes: Sequence[str] = (),
    ) -> None:
        (self._preprocessing, self._tensor), self._file = target, file
        self._label, self.notes = label, notes

    def read(self, index: int) -> readers.Sample:
        source, where = self._file(index)
        channels = self._preprocessing.channels
        image = decode(source, "RGB" if channels == 3 else "L", where)
        array = to_input_array(image, self._preprocessing)
        array = array.transpose(1, 2, 0) if is_channels_last(self._tensor, channels) else array
        feeds = {self._tensor.name: np.ascontiguousarray(array, self._tensor.dtype)}
        return readers.Sample(feeds, self._label(index, image.size), where)


class MaskedImages(ImageFolder):
    """Images of a folder, each with a map of classes in a second folder."""

    has_classes = False

    def __init__(self, spelling: Spelling) -> None:
        self.spelling, folder = spelling, Path(spelling.query["masks"])
        if not folder.is_dir():
            raise MissingFile(
                f"masks: folder {folder} does not exist", hint=nearest_name(folder), file=folder
            )
        self.root = readers.split_folder(spelling)
        names, self.notes = readers.list_images(self.root)
        self.names = [name for name in names if not (self.root / name).is_relative_to(folder)]
        self.masks = [folder / name for name in _find_masks(self.names, folder)]

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files = [self.root / self.names[index] for index in order()] + [self.masks[i] for i in order()]
        return (
            f"{readers.digest_contents(files)}:{readers.digest_texts(self.names[index] for index in order())}"
        )

    def reader(self, inputs: Sequence[TensorInfo]) -> readers.Reader:
        target = image_input(inputs, self.spelling)
        return ImageReader(target, self.file, lambda at, size: read_mask(self.masks[at], size, target[0]))


def read_mask(path: Path, size: tuple[int, int], preprocessing: ImagePreprocessing) -> NDArray[np.int64]:
    """Return the map for an image of `size` (width, height): int64 [height, width] of the model's input."""
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
    return np.asarray(place(classes, placement(preprocessing, *size), "nearest", _NO_CLASS), np.int64)


def _find_masks(names: Sequence[str], folder: Path) -> list[str]:
    by_path: dict[str, str] = {}
    by_name: dict[str, list[str]] = {}
    for mask in readers.list_files(folder):
        by_path[str(Path(mask).with_suffix(""))] = mask
        by_name.setdefault(Path(mask).stem, []).append(mask)
    masks = []
    for name in names:
        stem = Path(name).with_suffix("")
        matches = [by_path[str(stem)]] if str(stem) in by_path else by_name.get(stem.name, [])
        if len(matches) != 1:
            problem = f"{len(matches)} masks have its name" if matches else "no mask has its name"
            raise DataError(
                f"{folder}: {problem}: {name}; one is required for each image",
                hint=f"add {stem}.png, or move the image away",
                file=folder,
            )
        masks += matches
    return masks


class _Image(msgspec.Struct):
    id: int | str
    file_name: int | str


class _Category(msgspec.Struct):
    id: int
    name: str | int = ""


class _Box(msgspec.Struct):
    image_id: int | str
    category_id: int = -1
    bbox: list[float] = []
    area: float | None = None
    iscrowd: float | bool = 0


class _Annotations(msgspec.Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Box] = []


class AnnotatedImages(ImageFolder):
    """Images listed in a file of COCO annotations, with or without boxes."""

    has_classes, notes = False, ()

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.root = readers.split_folder(spelling)
        self.path = require_file(Path(spelling.query["annotations"]), what="annotations")
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_Annotations, strict=False)
        except (ValueError, RecursionError, OSError) as error:
            raise DataError(
                f"{self.path}: cannot be read as COCO's annotations ({first_line(error)}); "
                "images, annotations and categories are required",
                file=self.path,
            ) from error
        images = sorted(content.images, key=lambda image: str(image.file_name))
        self.names = [str(image.file_name) for image in images]
        if not self.names:
            raise DataError(f"{self.path}: names no images; at least one is required", file=self.path)
        categories = sorted(content.categories, key=lambda category: category.id)
        self.categories = {category.id: str(category.name or category.id) for category in categories}
        of_image: dict[int | str, list[_Box]] = {image.id: [] for image in images}
        for box in content.annotations:
            of_image.get(box.image_id, []).append(box)
        self._boxes = [of_image[image.id] for image in images]

    def file(self, index: int) -> tuple[Path, str]:
        path, where = super().file(index)
        return require_file(path, what="image"), where

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files = [self.file(index)[0] for index in order()]
        names = readers.digest_texts(self.names[index] for index in order())
        return f"{readers.digest_contents(files)}:{names}:{digest_files([self.path])}"

    def _boxes_of(self, index: int, numbers: Mapping[int, int]) -> NDArray[np.float64]:
        """Return the boxes [n, 7] of an image in its pixels; `numbers` maps category id to class number."""
        rows = []
        for box in self._boxes[index]:
            number = numbers.get(box.category_id)
            if len(box.bbox) != 4 or number is None:
                raise DataError(
                    f"{self.path}: a box of {self.names[index]} cannot be read; "
                    "bbox [x, y, width, height] and a known category_id are required",
                    file=self.path,
                )
            x, y, width, height = box.bbox
            area = width * height if box.area is None else box.area
            rows.append([number, x, y, x + width, y + height, box.iscrowd, area])
        return np.asarray(rows, np.float64).reshape(-1, _BOX_COLUMNS)

    def reader(self, inputs: Sequence[TensorInfo]) -> readers.Reader:
        target, notes = image_input(inputs, self.spelling), list[str]()
        preprocessing, names = target[0], list(self.categories.values())
        numbers = {number: place for place, number in enumerate(self.categories)}
        if preprocessing.classes:
            number_of_name, notes = class_numbers(names, preprocessing.classes, what="categories")
            if not notes:
                numbers = {number: number_of_name[name] for number, name in self.categories.items()}

        def label(index: int, size: tuple[int, int]) -> NDArray[np.float32]:
            """Return the boxes [n, 7] for an image of this size, in pixels of the model's input."""
            where, boxes = placement(preprocessing, *size), self._boxes_of(index, numbers)
            ratio = np.array([where.resized[0] / size[0], where.resized[1] / size[1]])
            corners = boxes[:, 1:5].reshape(-1, 2, 2) * ratio + np.array(where.offset)
            boxes[:, 1:5] = np.clip(corners, 0, np.array(where.size)).reshape(-1, 4)
            boxes[:, 6] *= ratio.prod()
            inside = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 4] > boxes[:, 2])
            return np.asarray(boxes[inside], np.float32)

        return _BoxReader(target, self.file, label, notes)


class _BoxReader(ImageReader):
    def join(self, samples: Sequence[readers.Sample]) -> readers.Batch:
        most = max(len(sample.label) for sample in samples)
        labels = np.zeros((len(samples), most, _BOX_COLUMNS), np.float32)
        labels[:, :, 0] = -1
        for row, sample in enumerate(samples):
            labels[row, : len(sample.label)] = sample.label
        return replace(super().join([replace(sample, label=None) for sample in samples]), labels=labels)


def decode(source: Path | IO[bytes], mode: str, where: str) -> Image.Image:
    """Return the image in mode "RGB" or "L", or in its stored mode if `mode` is empty."""
    readers.require_package("PIL", "pillow", "reads images")
    from PIL import Image

    message, hint = f"{where}: cannot be decoded as an image", "remove or replace the file"
    with (
        translate_errors(message, DataError, hint=hint, file=where),
        Image.open(source, formats=FORMATS) as image,
    ):
        image.load()
        return _convert_mode(image, mode) if mode else image.copy()


def _convert_mode(image: Any, mode: str) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ValueError("its pixels have 32 bits; 8 or 16 are required")
        image = Image.fromarray((pixels.astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; 8 or 16 bits are required")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # avoids Pillow's warning; the colours are the same
    converted: Image.Image = image.convert(mode) if image.mode != mode else image.copy()
    return converted


def image_input(inputs: Sequence[TensorInfo], spelling: Spelling) -> tuple[ImagePreprocessing, TensorInfo]:
    """Return the preprocessing (of the spelling, else of the model), and the input that takes the images."""
    names = "imagenet (or cifar10, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, FILE.json)"
    preprocessing = preprocessing_for(inputs, spelling, ImagePreprocessing, what="images", names=names)
    name = preprocessing.input
    for tensor in inputs:
        if tensor.name == name and len(tensor.shape) == 4 and tensor.dtype in ("float32", "float16"):
            return preprocessing, tensor
    shapes = ", ".join(map(str, inputs)) or "none"
    raise DataError(
        f"data {spelling.spec!r}: input {name!r} of four axes, float32 or float16, is required for images; "
        f"the model's inputs are {shapes}",
        hint="give the samples as arrays (.npz) or by a function",
        tensor=name,
    )


class PixelPlacement(NamedTuple):
    """Placement of an image's pixels in the model's input."""

    resized: tuple[int, int]  # width and height
    offset: tuple[int, int]  # left and top of the resized image in the input; negative: cropped
    size: tuple[int, int]  # width and height of the input


def placement(preprocessing: ImagePreprocessing, width: int, height: int) -> PixelPlacement:
    """Return the placement of an image of this size."""
    size, extents = (preprocessing.width, preprocessing.height), (width, height)
    resize = preprocessing.resize or (size[1], size[0])
    resized = (resize[-1], resize[0])
    if preprocessing.letterbox:
        ratio = min(size[0] / width, size[1] / height)
        across, down = (
            max(1, min(most, round(extent * ratio))) for extent, most in zip(extents, size, strict=True)
        )
        resized = (across, down)
    elif len(resize) == 1:
        shorter = min(extents)
        resized = (max(1, int(resize[0] * width / shorter)), max(1, int(resize[0] * height / shorter)))
    left, top = (
        (most - extent) // 2 if extent < most else -round((extent - most) / 2)
        for extent, most in zip(resized, size, strict=True)
    )
    return PixelPlacement(resized, (left, top), size)


def place(image: Image.Image, where: PixelPlacement, interpolation: str, fill: Any) -> Image.Image:
    from PIL import Image

    if where.resized != image.size:
        image = image.resize(where.resized, Image.Resampling[interpolation.upper()])
    if where.offset == (0, 0) and where.resized == where.size:
        return image
    canvas = Image.new(image.mode, where.size, fill)
    canvas.paste(image, where.offset)
    return canvas


def to_input_array(image: Image.Image, preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    """Return an RGB or grey image as float32 [channels, height, width]."""
    fill: Any = preprocessing.fill if preprocessing.letterbox else 0
    fill = (fill,) * 3 if image.mode == "RGB" else fill
    placed = place(image, placement(preprocessing, *image.size), preprocessing.interpolation, fill)
    pixels = np.asarray(placed, np.float32)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    # torch divides by 255; a product with 1/255 differs in the last bit.
    is_255th = preprocessing.scale == 1 / 255
    scaled = pixels / np.float32(255) if is_255th else pixels * np.float32(preprocessing.scale)
    mean, std = (
        np.asarray(values, np.float32)[: preprocessing.channels].reshape(-1, 1, 1)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return np.ascontiguousarray((scaled - mean) / std, np.float32)
