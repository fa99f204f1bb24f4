"""Maps of classes land where their images do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcompile.data.batches import Data
from qcompile.errors import DataError, MissingFile
from qcompile.model.preprocessing import ImagePreprocessing, as_json
from qcompile.tensors import TensorInfo


def info(**options: object) -> TensorInfo:
    said = ImagePreprocessing(**{"input": "x", "interpolation": "nearest", **options})  # type: ignore[arg-type]
    return TensorInfo("x", "float32", ("n", 3, said.height, said.width), preprocessing=as_json(said))


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Two pictures whose grey is the class of the pixel, times ten."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("a/1", "a/2")):
        classes = rng.integers(0, 20, (9 + number, 14), np.uint8)
        for folder, pixels, suffix in (("images", classes * 10, "png"), ("masks", classes, "png")):
            path = tmp_path / folder / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        {"height": 6, "width": 8},
        {"height": 6, "width": 8, "resize": (7,)},
        {"height": 20, "width": 24, "letterbox": True},
        {"height": 20, "width": 30, "resize": (12,)},
    ],
)
def test_a_map_is_resized_and_cropped_as_its_image(scenes: Path, options: dict[str, object]) -> None:
    [batch] = Data(f"{scenes}/images?masks={scenes}/masks", [info(**options)])
    assert batch.labels is not None
    assert (batch.labels.dtype, batch.labels.shape) == (np.int64, (2, options["height"], options["width"]))
    grey, known = np.rint(batch.feeds["x"][:, 0] * 25.5), batch.labels != 255
    np.testing.assert_array_equal(grey[known], batch.labels[known])
    assert not grey[~known].any()
    assert known.all() == (options["height"] == 6)


def test_masks_may_have_palettes_and_lie_elsewhere(scenes: Path) -> None:
    (scenes / "flat").mkdir()
    for name in ("1", "2"):
        mask = Image.open(scenes / "masks" / "a" / f"{name}.png").convert("P")
        mask.putdata(list(Image.open(scenes / "masks" / "a" / f"{name}.png").tobytes()))
        mask.save(scenes / "flat" / f"{name}.png")
    first, second = (
        [one.labels for one in Data(f"{scenes}/images?masks={scenes}/{name}", [info(height=6, width=8)])]
        for name in ("masks", "flat")
    )
    np.testing.assert_array_equal(first[0], second[0])


def test_what_does_not_fit_is_named(scenes: Path) -> None:
    spec, said = f"{scenes}/images?masks={scenes}/masks", [info(height=6, width=8)]
    path = scenes / "masks" / "a" / "1.png"
    digest = Data(spec, ()).digest()
    Image.new("RGB", (14, 9)).save(path)
    assert Data(spec, ()).digest() != digest
    with pytest.raises(DataError, match=r"1\.png: is in mode RGB; one number per pixel"):
        list(Data(spec, said))
    Image.new("L", (3, 3)).save(path)
    with pytest.raises(DataError, match=r"1\.png: has 3x3 pixels; its image has 14x9"):
        list(Data(spec, said))
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"1\.png: cannot be decoded as an image"):
        list(Data(spec, said))
    path.unlink()
    with pytest.raises(DataError, match=r"no mask has its name: a/1\.png; one is required"):
        list(Data(spec, said))
    with pytest.raises(MissingFile, match=r"masks: folder .* does not exist"):
        list(Data(f"{scenes}/images?masks={scenes}/nothing", said))
