"""Folders of images: classes by folder, decoding, resize, crop and normalization as in training.

Pillow decodes. Palettes, RGBA and CMYK are converted as torchvision's loader does (`convert("RGB")`: alpha
is dropped). Grey of 16 bits keeps its upper 8 bits, where Pillow alone would clip it to white. The
orientation in EXIF is not applied, as in torchvision and timm.

| step       | as                                                                                        |
|------------|-------------------------------------------------------------------------------------------|
| resize     | `torchvision.transforms.Resize` of a Pillow image: the longer side is rounded down        |
| crop       | `CenterCrop`: a smaller image is padded with 0 first                                      |
| letterbox  | resized to fit, then padded with `fill` on both sides evenly, the odd pixel after         |
| normalize  | `ToTensor` and `Normalize`: float32, divided by 255, less the mean, divided by the std    |

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, InvalidOption, first_line
from ..model.preprocessing import ImagePreprocessing, is_channels_last
from ..tensors import TensorInfo, format_shape
from .kinds import IMAGES, list_files
from .preparing import class_numbers, preprocessing_for
from .samples import Reader, Sample, SampleSet, digest_contents, digest_texts, require_package
from .spelling import Spelling

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
"""Pillow tells formats by content, and would run Ghostscript for PostScript."""
_BESIDE = (".csv", ".json", ".txt", ".md")
_SPLITS = {
    "train": ("train", "training"), "validation": ("validation", "val", "valid"), "test": ("test", "testing"),
}  # fmt: skip
_SCALE = 1 / 255


class ImageFolder(SampleSet):
    """A folder of images; two or more folders in it with images are classes."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        names, self.notes = list_images(self.root)
        folders = {name.split("/")[0] for name in names if "/" in name}
        self.has_classes = len(folders) > 1
        if self.has_classes:
            if loose := [name for name in names if "/" not in name]:
                note = (
                    f"{len(loose)} images lie in {self.root} beside the folders of classes, and are left out"
                )
                self.notes = [*self.notes, note]
            names = [name for name in names if "/" in name]
        self.names = names

    def classes(self) -> Sequence[str] | None:
        return [name.split("/")[0] for name in self.names] if self.has_classes else None

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        files = [self.root / self.names[index] for index in order()]
        labels = self.classes() or [""] * len(self.names)
        texts = [f"{self.names[index]}\n{labels[index]}" for index in order()]
        # All labels: their set numbers the classes.
        classes = digest_texts(sorted(set(self.classes() or ())))
        return f"{digest_contents(files)}:{digest_texts(texts)}:{classes}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _ImageReader(self, image_input(inputs, self.spelling))


class _ImageReader(Reader):
    def __init__(self, images: ImageFolder, to_input: ImageInput) -> None:
        self._images, self._input, self._numbers = images, to_input, dict[str, int]()
        if images.has_classes:
            self._numbers, self.notes = class_numbers(images.classes() or (), to_input.preprocessing.classes)

    def read(self, index: int) -> Sample:
        name = self._images.names[index]
        path = self._images.root / name
        label = self._numbers.get(name.split("/")[0])
        return Sample(self._input(decode(path, self._input.mode, str(path))), label, str(path))


def list_images(root: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder, relative to it, and what was left out."""
    files = list(list_files(root))
    names = [name for name in files if name.lower().endswith(IMAGES)]
    if not names:
        raise DataError(
            f"{root}: holds no image; at least one file {', '.join(sorted(IMAGES))} is required", file=root
        )
    others = sum(not name.lower().endswith((*IMAGES, *_BESIDE)) for name in files)
    return names, [f"{others} files in {root} are no images, and are left out"] if others else []


def split_folder(root: Path, split: str, spec: str) -> Path:
    """Return the folder of a split."""
    present = sorted(path.name for path in root.iterdir() if path.is_dir())
    spellings = {name: names for names in _SPLITS.values() for name in names}
    if not split:
        if len(present) > 1 and all(name.lower() in spellings for name in present):
            raise InvalidOption(
                f"data {spec!r}: holds {', '.join(present)}; one of them is required",
                hint=f"add ?split={present[0]}, or name the folder {root / present[0]}",
            )
        return root
    for name in (split, *spellings.get(split, ())):
        if name in present:
            return root / name
    raise InvalidOption(
        f"data {spec!r}: split={split}: no folder of this name in {root}; "
        f"found {', '.join(present[:8]) or 'none'}"
    )


def decode(source: Path | IO[bytes], mode: str, where: str) -> Image.Image:
    """Return the image in "RGB" or "L"; in any mode where `mode` is empty."""
    require_package("PIL", "pillow", "reads images")
    from PIL import Image

    try:
        with Image.open(source, formats=FORMATS) as image:
            image.load()
            return _converted(image, mode) if mode else image.copy()
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, ValueError, struct.error, ...
        raise DataError(
            f"{where}: cannot be decoded as an image ({first_line(error)})",
            hint="remove or replace the file",
            file=where,
        ) from error


def _converted(image: Any, mode: str) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ValueError("its pixels have 32 bits; 8 or 16 are required")
        image = Image.fromarray((pixels.astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; 8 or 16 bits are required")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns, and the colours are the same
    converted: Image.Image = image.convert(mode) if image.mode != mode else image.copy()
    return converted


def image_input(inputs: Sequence[TensorInfo], spelling: Spelling) -> ImageInput:
    """Return what makes the model's input of images: as the spelling says, else as the model itself does."""
    names = "imagenet (or cifar10, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, FILE.json)"
    preprocessing = preprocessing_for(inputs, spelling, ImagePreprocessing, what="images", names=names)
    name = preprocessing.input
    for tensor in inputs:
        if tensor.name == name and len(tensor.shape) == 4 and tensor.dtype in ("float32", "float16"):
            return ImageInput(preprocessing, tensor)
    shapes = ", ".join(f"{one.name}:{format_shape(one.shape)}:{one.dtype}" for one in inputs) or "none"
    raise DataError(
        f"data {spelling.spec!r}: input {name!r} of four axes, float32 or float16, is required for images; "
        f"the model's inputs are {shapes}",
        hint="give the samples as arrays (.npz) or by a function",
        tensor=name,
    )


class ImageInput:
    """Makes a model's input of a decoded image, by its preprocessing."""

    def __init__(self, preprocessing: ImagePreprocessing, tensor: TensorInfo) -> None:
        self.preprocessing, self.tensor = preprocessing, tensor
        self.mode = "RGB" if preprocessing.channels == 3 else "L"
        self._channels_last = is_channels_last(tensor, preprocessing.channels)

    def __call__(self, image: Image.Image) -> dict[str, Any]:
        """Return the feed of the input, without the axis of samples."""
        array = as_input(image, self.preprocessing)
        array = array.transpose(1, 2, 0) if self._channels_last else array
        return {self.tensor.name: np.ascontiguousarray(array, self.tensor.dtype)}


@dataclass(frozen=True)
class Placement:
    """Where an image's pixels land in the model's input.

    Attributes:
        resized: Width and height after the resize.
        offset: Left and top of the resized image in the input; negative where it is cropped.
        size: Width and height of the input.
    """

    resized: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]


def placement(preprocessing: ImagePreprocessing, width: int, height: int) -> Placement:
    """Return where an image of these extents lands."""
    size = (preprocessing.width, preprocessing.height)
    if preprocessing.letterbox:
        ratio = min(size[0] / width, size[1] / height)
        fitted = (max(1, min(size[0], round(width * ratio))), max(1, min(size[1], round(height * ratio))))
        return Placement(fitted, ((size[0] - fitted[0]) // 2, (size[1] - fitted[1]) // 2), size)
    resize = preprocessing.resize or (size[1], size[0])
    if len(resize) == 2:
        resized = (resize[1], resize[0])
    elif width <= height:
        resized = (resize[0], max(1, int(resize[0] * height / width)))
    else:
        resized = (max(1, int(resize[0] * width / height)), resize[0])
    return Placement(resized, (_offset(resized[0], size[0]), _offset(resized[1], size[1])), size)


def _offset(extent: int, size: int) -> int:
    return (size - extent) // 2 if extent < size else -round((extent - size) / 2)


def place(image: Image.Image, where: Placement, interpolation: str, fill: Any) -> Image.Image:
    """Resize and crop or pad an image."""
    from PIL import Image

    if where.resized != image.size:
        image = image.resize(where.resized, Image.Resampling[interpolation.upper()])
    if where.offset == (0, 0) and where.resized == where.size:
        return image
    canvas = Image.new(image.mode, where.size, fill)
    canvas.paste(image, where.offset)
    return canvas


def as_input(image: Image.Image, preprocessing: ImagePreprocessing) -> NDArray[np.float32]:
    """Return an RGB or grey image as float32 [channels, height, width]."""
    fill: Any = preprocessing.fill if preprocessing.letterbox else 0
    fill = (fill,) * 3 if image.mode == "RGB" else fill
    placed = place(image, placement(preprocessing, *image.size), preprocessing.interpolation, fill)
    pixels = np.asarray(placed, np.float32)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    # What torch divides by 255 is not the same as what is multiplied by 1/255, in the last bit.
    if preprocessing.scale == _SCALE:
        scaled = pixels / np.float32(255)
    else:
        scaled = pixels * np.float32(preprocessing.scale)
    mean, std = (
        np.asarray(values, np.float32)[: preprocessing.channels].reshape(-1, 1, 1)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return np.ascontiguousarray((scaled - mean) / std, np.float32)
