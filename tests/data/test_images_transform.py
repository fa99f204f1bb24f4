"""Resize, crop and normalize against torchvision's and timm's own transforms of the same Pillow image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch_vision import transforms

from qcompile.data.images import as_input, placement
from qcompile.model.preprocessing import ImagePreprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A smooth picture with noise: both show a resize that is off by a pixel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [(x * 3 + y * 2 * (channel + 1)) % 256 for channel in range(3)]
    pixels = (np.stack(planes, 2) * 0.8 + rng.integers(0, 50, (height, width, 3))).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.one_of(st.tuples(st.integers(1, 50)), st.tuples(st.integers(1, 50), st.integers(1, 50))),
    st.sampled_from(["bilinear", "bicubic", "nearest", "lanczos", "box", "hamming"]),
)
def test_resize_crop_and_normalize_equal_torchvisions(
    width: int, height: int, size: tuple[int, int], resize: tuple[int, ...], interpolation: Any
) -> None:
    vision = transforms()
    mode = vision.InterpolationMode(interpolation)
    theirs = vision.Compose(
        [
            vision.Resize(resize[0] if len(resize) == 1 else resize, interpolation=mode),
            vision.CenterCrop(size),
            vision.ToTensor(),
            vision.Normalize(MEAN, STD),
        ]
    )
    ours = ImagePreprocessing(
        height=size[0], width=size[1], resize=resize, interpolation=interpolation, mean=MEAN, std=STD
    )
    # An extreme ratio leaves torchvision a side of 0 pixels, which it refuses.
    if len(resize) == 1 and resize[0] * max(width, height) // min(width, height) < 1:
        return
    image = picture(width, height)
    np.testing.assert_array_equal(as_input(image, ours), theirs(image).numpy())


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_it_equals_timms_own_evaluation_transform(
    crop_pct: float, crop_mode: str, interpolation: Any
) -> None:
    transforms()  # timm imports torchvision
    from timm.data import create_transform

    config: dict[str, Any] = {"mean": MEAN, "std": STD, "crop_pct": crop_pct, "crop_mode": crop_mode}
    theirs = create_transform((3, 64, 64), interpolation=interpolation, is_training=False, **config)
    scaled = int(np.floor(64 / crop_pct))
    ours = ImagePreprocessing(
        height=64, width=64, resize=(scaled,) if crop_mode == "center" else (scaled, scaled),
        interpolation=interpolation, mean=MEAN, std=STD,
    )  # fmt: skip
    for width, height in ((200, 150), (81, 160), (64, 64), (30, 50)):
        image = picture(width, height)
        np.testing.assert_array_equal(as_input(image, ours), theirs(image).numpy())


def test_a_letterbox_keeps_the_ratio_and_fills_both_sides() -> None:
    ours = ImagePreprocessing(height=40, width=40, letterbox=True, fill=114, interpolation="nearest")
    image = Image.new("RGB", (20, 10), (255, 0, 0))
    array = as_input(image, ours)
    assert placement(ours, 20, 10).offset == (0, 10)
    np.testing.assert_allclose(
        array[:, 10:30], np.array([1, 0, 0])[:, None, None].repeat(20, 1).repeat(40, 2)
    )
    np.testing.assert_allclose(np.delete(array, slice(10, 30), 1), 114 / 255, rtol=1e-6)


def test_grey_images_have_one_channel_and_another_scale_is_taken() -> None:
    ours = ImagePreprocessing(height=8, width=8, channels=1, mean=(0.5,), std=(0.25,), scale=1 / 127.5)
    image = picture(8, 8, "L")
    expected = (np.asarray(image, np.float64) / 127.5 - 0.5) / 0.25
    np.testing.assert_allclose(as_input(image, ours), expected[None], rtol=1e-5, atol=1e-6)
