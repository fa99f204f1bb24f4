"""Boxes and maps of classes land where the pixels do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import image_input
from PIL import Image

from qcompile.data.batches import Data
from qcompile.errors import DataError, InvalidOption, MissingFile
from qcompile.spec.tensors import TensorInfo

WHITE = (255, 255, 255)


def info(**options: object) -> TensorInfo:
    return image_input(**{"interpolation": "nearest", "height": 20, "width": 20, **options})


def write(folder: Path, boxes: list[dict[str, Any]], **others: Any) -> str:
    """Two pictures, 40x20 and 20x40; a white rectangle in each box of the first."""
    first = Image.new("RGB", (40, 20))
    for box in boxes:
        if box.get("image_id", 7) == 7 and len(box.get("bbox", ())) == 4:
            x, y, width, height = box["bbox"]
            first.paste(WHITE, (x, y, x + width, y + height))
    first.save(folder / "first.png")
    Image.new("RGB", (20, 40)).save(folder / "second.png")
    images = [{"id": 7, "file_name": "first.png"}, {"id": 3, "file_name": "second.png"}]
    categories = [{"id": 90, "name": "dog"}, {"id": 1, "name": "cat"}]
    content = {"images": images, "categories": categories, "annotations": boxes, **others}
    (folder / "boxes.json").write_text(json.dumps(content))
    return f"images:{folder}?annotations=boxes.json"


@pytest.mark.parametrize(
    "options",
    [
        {"height": 40, "width": 80},
        {"height": 80, "width": 80, "letterbox": True},
        {"height": 40, "width": 40, "resize": (40,)},
        {"height": 60, "width": 100, "resize": (40,)},
        {"height": 40, "width": 60, "resize": (60, 120)},
    ],
)
def test_a_box_encloses_the_same_pixels_after_the_transform(tmp_path: Path, options: dict[str, Any]) -> None:
    spec = write(tmp_path, [{"image_id": 7, "category_id": 90, "bbox": [14, 6, 12, 8], "iscrowd": 1}])
    [batch] = Data(spec, [info(**options)])
    [number, x1, y1, x2, y2, crowd, area] = batch.labels[0, 0].tolist()
    rows, columns = np.nonzero(batch.feeds["x"][0, 0])
    assert (number, crowd) == (1, 1)
    assert (x1, y1, x2, y2) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert area >= (x2 - x1) * (y2 - y1)  # of the whole box, before it is clipped
    assert batch.labels[1, 0].tolist() == [-1, 0, 0, 0, 0, 0, 0]


def test_boxes_are_clipped_left_out_and_padded(tmp_path: Path) -> None:
    boxes = [
        {"image_id": 7, "category_id": 1, "bbox": [5, 0, 20, 20], "area": 250},
        {"image_id": 7, "category_id": 1, "bbox": [0, 0, 4, 4]},
        {"image_id": 3, "category_id": 1, "bbox": [0, 10, 20, 20]},
    ]
    [batch] = Data(write(tmp_path, boxes), [info(resize=(20,))])
    assert batch.labels.dtype == np.float32
    assert batch.labels.tolist() == [[[0, 0, 0, 15, 20, 0, 250]], [[0, 0, 0, 20, 20, 0, 400]]]
    [batch] = Data(write(tmp_path, []), [info()])
    assert batch.labels.shape == (2, 0, 7)


def test_the_models_classes_number_the_categories(tmp_path: Path) -> None:
    spec = write(tmp_path, [{"image_id": 7, "category_id": 90, "bbox": [0, 0, 5, 5]}])
    data = Data(spec, [info(classes=("dog", "ox", "cat"))])
    assert [one.labels[0, 0, 0] for one in data if one.labels is not None] == [0]
    assert data.notes() == []
    data = Data(spec, [info(classes=("person", "dog"))])
    assert [one.labels[0, 0, 0] for one in data if one.labels is not None] == [1]
    assert "categories are numbered in sorted order: 1 of 2 names, as 'cat'" in data.notes()[0]


@pytest.mark.parametrize(
    ("boxes", "others", "message"),
    [
        ([{"image_id": 7, "category_id": 1, "bbox": [1, 2]}], {}, r"a box of .*first\.png cannot be read"),
        ([{"image_id": 7, "category_id": 5, "bbox": [0, 0, 5, 5]}], {}, "a known category_id are required"),
        ([{"category_id": 1}], {}, "cannot be read as COCO's annotations"),
        ([], {"images": [{"id": [], "file_name": "a"}]}, "cannot be read as COCO's annotations"),
        ([], {"categories": [{"id": "x"}]}, "cannot be read as COCO's annotations"),
        ([], {"images": []}, "names no images"),
        ([], {"images": [{"id": 1, "file_name": "none.png"}]}, r"image .*none\.png does not exist"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, boxes: list[dict[str, Any]], others: dict[str, Any], message: str
) -> None:
    with pytest.raises((DataError, MissingFile), match=message):
        list(Data(write(tmp_path, boxes, **others), [info()]))


def test_other_json_and_two_kinds_of_labels_are_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, [])
    with pytest.raises(InvalidOption, match="masks and annotations exclude each other"):
        list(Data(f"{spec}&masks=l", [info()]))
    (tmp_path / "boxes.json").write_text("[]")
    with pytest.raises(DataError, match=r"boxes\.json: cannot be read as COCO's annotations"):
        list(Data(spec, [info()]))


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
