"""Our resize, crop and normalization against transformers' own image processors of the same picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch_vision import transforms

from qcompile.data.batches import Data
from qcompile.model.preprocessing import ImagePreprocessing, as_json
from qcompile.tensors import TensorInfo

MEAN, STD = (0.48, 0.45, 0.40), (0.26, 0.25, 0.27)


def picture(path: Path, width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([(x * 2 + y) % 256, (x + 3 * y) % 256, 255 - (x * y) % 256], 2) * 0.9
    image = Image.fromarray((pixels + rng.integers(0, 20, pixels.shape)).astype(np.uint8))
    image.save(path)
    return image


@pytest.mark.parametrize("size", [(120, 90), (64, 200), (50, 40)])
@pytest.mark.parametrize(
    ("name", "options", "ours"),
    [
        ("ViTImageProcessor", {"size": {"height": 64, "width": 64}, "resample": 2}, {}),
        (
            "CLIPImageProcessor",
            {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}, "resample": 3},
            {"resize": (72,), "interpolation": "bicubic"},
        ),
    ],
)
@pytest.mark.parametrize("backend", ["pil", "torchvision"])
def test_the_input_is_the_processors_within_one_grey_level(
    tmp_path: Path,
    size: tuple[int, int],
    name: str,
    options: dict[str, Any],
    ours: dict[str, Any],
    backend: str,
) -> None:
    transforms()  # transformers imports torchvision where it is installed
    import transformers

    made = getattr(transformers, name if backend == "torchvision" else f"{name}Pil", None)
    if made is None:
        pytest.skip(f"this transformers has no {backend} backend of {name}")
    image = picture(tmp_path / "0.png", *size)
    theirs = made(**options, image_mean=MEAN, image_std=STD, do_convert_rgb=True)(image, return_tensors="np")
    said = ImagePreprocessing(input="x", height=64, width=64, mean=MEAN, std=STD, **ours)
    info = TensorInfo("x", "float32", ("n", 3, 64, 64), preprocessing=as_json(said))
    [batch] = Data(str(tmp_path), [info])
    grey_levels = np.abs(batch.feeds["x"] - theirs["pixel_values"]) * np.reshape(STD, (3, 1, 1)) * 255
    # Its torchvision backend resizes a tensor: every step rounds by itself. Pillow's is ours.
    assert grey_levels.max() < (1.01 if backend == "torchvision" else 1e-3)
