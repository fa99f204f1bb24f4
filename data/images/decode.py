"""Decode an image file to 8-bit RGB or grey with Pillow.

Palettes, RGBA and CMYK are converted as torchvision's loader does (`convert("RGB")`: alpha is dropped). Grey
of 16 bits keeps its upper 8 bits, where Pillow alone would clip it to white. The orientation in EXIF is not
applied, as in torchvision and timm.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ..packages import require_package

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"))

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
"""Pillow's names of them. It tells formats by content, and would run Ghostscript for PostScript."""


def decode(source: Path | IO[bytes], mode: str, where: str) -> Image.Image:
    """Return the image in "RGB" or "L".

    Raises:
        DataError: If it is damaged, or no image, naming it.
        EngineUnavailable: If Pillow is missing.
    """
    require_package("PIL", "pillow", "reads images")
    from PIL import Image

    try:
        with Image.open(source, formats=FORMATS) as image:
            image.load()
            return _converted(image, mode)
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, ValueError, struct.error, ...
        raise DataError(
            f"{where}: cannot be decoded as an image ({first_line(error)})",
            hint="remove or replace the file",
            file=where,
        ) from error


def from_pixels(pixels: NDArray[np.uint8], mode: str) -> Image.Image:
    """Return RGB pixels [3, height, width] as an image in "RGB" or "L"."""
    require_package("PIL", "pillow", "resizes images")
    from PIL import Image

    image: Image.Image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert(mode)
    return image


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        image = _upper_bits(image)
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; 8 or 16 bits are required")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns, and the colours are the same
    return image.convert(mode) if image.mode != mode else image.copy()


def _upper_bits(image: Image.Image) -> Any:
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ValueError("its pixels have 32 bits; 8 or 16 are required")
    return Image.fromarray((pixels.astype(np.uint32) >> 8).astype(np.uint8))
