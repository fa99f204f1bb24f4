"""Folders of images: classes, decoding, and the transform against torchvision's.

`tests/model/sources/named/test_preprocessing.py` compares with timm and transformers.
"""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import image_input
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qcompile.data.batches import Data, half_of
from qcompile.data.images import class_numbers, decode, placement, to_input_array
from qcompile.errors import DataError, InvalidOption
from qcompile.model.sources.named.description import declare_torchvision_operators
from qcompile.model.sources.preprocessing import ImagePreprocessing, read_preprocessing
from qcompile.spec.tensors import TensorInfo

X = image_input()
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = ("cat/1.png", "cat/2.png", "dog/1.png", "dog/deep/2.png", "ox/1.png", "ox/2.png")


def save(path: Path, value: int = 0, mode: str = "RGB") -> None:
    """Write a picture of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 5), value).convert(mode).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Six pictures in three folders, whose grey says which."""
    for number, name in enumerate(NAMES):
        save(tmp_path / "pets" / name, number * 10)
    return tmp_path / "pets"


def greys(data: Data) -> list[int]:
    return [round(float(value) * 255) for batch in data for value in batch.feeds["x"][:, 0, 0, 0]]


def labels(data: Data) -> list[int] | None:
    found = [batch.labels for batch in data]
    return None if found[0] is None else np.concatenate([one for one in found if one is not None]).tolist()


def test_subfolders_are_classes_in_sorted_order(pets: Path) -> None:
    data = Data(str(pets), [X], batch_size=4)
    assert (greys(data), labels(data)) == ([0, 10, 20, 30, 40, 50], [0, 0, 1, 1, 2, 2])
    assert [batch.samples for batch in data] == [4, 2]
    assert next(iter(data)).labels.dtype == np.int64  # type: ignore[union-attr]
    assert next(iter(data)).where == f"{pets}/cat/1.png to {pets}/dog/deep/2.png"
    assert data.notes() == []


def test_a_flat_folder_and_a_single_subfolder_have_no_labels(tmp_path: Path) -> None:
    save(tmp_path / "pets" / "cat" / "1.png")
    assert labels(Data(f"{tmp_path}/pets", [X])) is labels(Data(f"{tmp_path}/pets/cat", [X])) is None


def test_other_files_are_left_out_and_counted(pets: Path) -> None:
    (pets / "cat" / "Thumbs.db").write_bytes(b"x")
    (pets / ".hidden.png").write_bytes(b"x")
    save(pets / "loose.png")
    data = Data(str(pets), [X])
    assert data.total == 6
    assert data.notes() == [
        f"left out: 1 file of {pets} without an image",
        f"left out: 1 image of {pets} beside the folders of classes",
    ]


def test_metadata_gives_the_labels(pets: Path) -> None:
    def write(values: str) -> None:
        lines = [f"{name},{value}\n" for name, value in zip(NAMES, values.split(), strict=False)]
        (pets / "metadata.csv").write_text("".join(["file_name,label\n", *lines]))

    write("b a b c a c")
    assert labels(Data(str(pets), [X])) == [1, 0, 1, 2, 0, 2]
    write("0.5 1 2 -1 0 0")
    assert labels(Data(str(pets), [X])) == [0.5, 1, 2, -1, 0, 0]
    write("0 1")
    with pytest.raises(DataError, match=r"metadata\.csv: has no row for dog/1\.png"):
        list(Data(str(pets), [X]))


@pytest.mark.parametrize(
    ("names", "classes", "numbers", "told"),
    [
        (["b", "a"], [], {"a": 0, "b": 1}, False),
        (["a", "c"], ["c", "b", "a"], {"a": 2, "c": 0}, False),
        (["a_b", "t"], ["t, T tinca", "goldfish", "A  B"], {"t": 0, "a_b": 2}, False),
        (["10", "2"], [], {"2": 2, "10": 10}, False),
        (["x", "a"], ["a", "b", "c"], {"a": 0, "x": 1}, True),
        (["crane", "ox"], ["crane, bird", "crane, machine", "ox"], {"crane": 0, "ox": 1}, True),
    ],
)
def test_classes_are_numbered_by_the_models_names_by_numbers_or_in_order(
    names: list[str], classes: list[str], numbers: dict[str, int], told: bool
) -> None:
    found, notes = class_numbers(names, classes)
    assert (found, bool(notes)) == (numbers, told)


def test_the_models_classes_number_the_folders_and_a_mismatch_is_told(pets: Path) -> None:
    data = Data(str(pets), [image_input(classes=("dog", "ox", "mouse", "cat"))])
    assert labels(data) == [3, 3, 0, 0, 1, 1]
    other = Data(str(pets), [image_input(classes=("dog", "mouse"))])
    assert labels(other) == [0, 0, 1, 1, 2, 2]
    assert other.notes() == [
        "folders are numbered in sorted order: 2 of 3 names, as 'cat', are none of the model's 2 classes, "
        "as 'dog'"
    ]


def test_splits_are_chosen_and_never_taken_for_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "val")):
        save(tmp_path / name / "a" / "1.png", 10 * number)
    assert greys(Data(f"{tmp_path}?split=validation", [X])) == [10]
    for query, message in (
        ("", r"holds train, val; one of them is required\n.*\?split=train"),
        ("?split=test", r"split=test: no folder of this name in .*; found train, val"),
    ):
        with pytest.raises(InvalidOption, match=message):
            list(Data(f"{tmp_path}{query}", [X]))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGB", "jpg"), ("CMYK", "jpg"), *((mode, "png") for mode in ("L", "RGBA", "P", "1", "LA"))],
)
def test_every_mode_is_decoded_as_torchvisions_loader_does(tmp_path: Path, mode: str, suffix: str) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)).convert(mode)
    if mode == "P":
        image.info["transparency"] = bytes(range(0, 256, 2))
    image.save(tmp_path / f"0.{suffix}")
    with Image.open(tmp_path / f"0.{suffix}") as opened:
        theirs = np.asarray(opened.convert("RGBA").convert("RGB") if mode == "P" else opened.convert("RGB"))
    [batch] = Data(str(tmp_path), [X])
    np.testing.assert_allclose(batch.feeds["x"][0], theirs.transpose(2, 0, 1) / 255, atol=1e-6)


def test_grey_of_16_bits_keeps_its_upper_bits(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000
    Image.fromarray(pixels).save(tmp_path / "0.png")
    [batch] = Data(str(tmp_path), [X])
    np.testing.assert_allclose(batch.feeds["x"][0, 0], (pixels >> 8) / 255, atol=1e-6)


def test_the_orientation_of_exif_is_not_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4))
    image.paste((255, 255, 255), (0, 0, 4, 2))
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter turn
    image.save(tmp_path / "0.png", exif=exif)
    [batch] = Data(str(tmp_path), [X])
    assert batch.feeds["x"][0, 0].tolist() == [[1.0] * 4] * 2 + [[0.0] * 4] * 2


def test_a_damaged_image_is_named_with_the_way_out(pets: Path) -> None:
    path = pets / "dog" / "1.png"
    for content in (b"", b"no image", path.read_bytes()[:45]):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=r"dog/1\.png: cannot be decoded.*\n  hint: remove or replace"
        ) as caught:
            list(Data(str(pets), [X]))
        assert caught.value.data["file"] == str(path)


def test_without_a_preprocessing_the_way_to_give_it_is_said(pets: Path) -> None:
    plain = TensorInfo("x", "float32", ("batch", 3, 8, 8))
    [batch] = Data(f"{pets}?preprocessing=imagenet", [plain])
    assert batch.feeds["x"].shape == (6, 3, 8, 8)
    for query, input_, message in (
        ("", plain, r"is unknown\n  hint: add \?preprocessing=imagenet"),
        ("?preprocessing=imagnet", plain, r"preprocessing 'imagnet'.*\n  hint: did you mean 'imagenet'"),
        ("?preprocessing=imagenet", replace(plain, shape=("n", 3)), "one input of four axes is required"),
    ):
        with pytest.raises(InvalidOption, match=message):
            list(Data(f"{pets}{query}", [input_]))


def test_another_preprocessing_keeps_the_models_classes(pets: Path) -> None:
    info = image_input(classes=("ox", "dog", "cat"))
    assert labels(Data(f"{pets}?preprocessing=cifar10", [info])) == [2, 2, 1, 1, 0, 0]
    assert labels(Data(f"{pets}?preprocessing=cifar10", [X])) == [0, 0, 1, 1, 2, 2]


def test_channels_last_and_half_precision_are_what_the_input_says(pets: Path) -> None:
    [first] = Data(str(pets), [X])
    last = replace(X, dtype="float16", shape=("batch", 4, 4, 3))
    [second] = Data(str(pets), [last])
    assert second.feeds["x"].dtype == np.float16
    np.testing.assert_allclose(second.feeds["x"].transpose(0, 3, 1, 2), first.feeds["x"], atol=1e-3)


def test_samples_are_drawn_evenly_and_a_limit_draws_too(pets: Path) -> None:
    for number in range(30):
        save(pets / "ox" / f"more{number}.png")
    for data in (Data(f"{pets}?samples=6", [X]), Data(str(pets), [X], limit=6)):
        assert data.total == 6
        assert sorted(labels(data) or []) == [0, 0, 1, 1, 2, 2]
    assert sorted(labels(Data(f"{pets}?samples=12&balanced=false", [X])) or []).count(2) > 6


def test_a_model_of_a_fixed_batch_gets_whole_batches(pets: Path) -> None:
    fixed = replace(X, shape=(4, 3, 4, 4))
    data = Data(str(pets), [fixed])
    assert ([batch.samples for batch in data], data.total) == ([4], 4)
    assert data.notes() == ["left out: the last 2 samples, too few for a batch of 4"]
    with pytest.raises(DataError, match="at most 3 samples; the model requires batches of 4"):
        list(Data(f"{pets}?samples=3", [fixed]))


def test_the_digest_is_of_what_is_read(pets: Path) -> None:
    def digest(query: str = "") -> str:
        return Data(f"{pets}{query}", ()).digest()

    first, few = digest(), digest("?samples=3")
    assert digest() == first != few
    assert digest("?preprocessing=imagenet") != first
    save(pets / "cat" / "1.png", 99)
    assert digest() != first
    save(pets / "cat" / "1.png", 0)
    assert digest() == first
    (pets / "ox").rename(pets / "yak")
    assert digest() != first


def test_a_half_of_a_single_image_may_be_empty(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    [other] = {"calibration", "evaluation"} - {half_of("1.png", 0)}
    with pytest.raises(DataError, match=r"none of 1 sample is in this half\n  hint: use another seed"):
        list(Data(f"{tmp_path}?part={other}", [X]))


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
    declare_torchvision_operators()
    from torchvision import transforms as vision

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
    np.testing.assert_array_equal(to_input_array(image, ours), theirs(image).numpy())


def test_a_letterbox_keeps_the_ratio_and_fills_both_sides() -> None:
    ours = ImagePreprocessing(height=40, width=40, letterbox=True, fill=114, interpolation="nearest")
    image = Image.new("RGB", (20, 10), (255, 0, 0))
    array = to_input_array(image, ours)
    assert placement(ours, 20, 10).offset == (0, 10)
    np.testing.assert_allclose(
        array[:, 10:30], np.array([1, 0, 0])[:, None, None].repeat(20, 1).repeat(40, 2)
    )
    np.testing.assert_allclose(np.delete(array, slice(10, 30), 1), 114 / 255, rtol=1e-6)


def test_grey_images_have_one_channel_and_another_scale_is_taken() -> None:
    ours = ImagePreprocessing(height=8, width=8, channels=1, mean=(0.5,), std=(0.25,), scale=1 / 127.5)
    image = picture(8, 8, "L")
    expected = (np.asarray(image, np.float64) / 127.5 - 0.5) / 0.25
    np.testing.assert_allclose(to_input_array(image, ours), expected[None], rtol=1e-5, atol=1e-6)


def test_an_image_of_billions_of_pixels_is_refused() -> None:
    """Pillow refuses it by its header, before it decodes a pixel."""
    from zlib import crc32

    head = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", crc32(head))
    with pytest.raises(DataError, match="cannot be decoded as an image"):
        decode(io.BytesIO(content), "RGB", "x.png")


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0}, {"height": 2**40}, {"scale": float("nan")}, {"std": [0.0, 1.0, 1.0]}, {"fill": 256},
        {"mean": [float("inf")] * 3}, {"kind": ["image"]}, {"kind": {}}, {"mean": ["\ud800"]},
        {"width": 10**400},
    ],
)  # fmt: skip
def test_preprocessing_that_no_image_survives_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="preprocessing of kind"):
        read_preprocessing({"kind": "image", "height": 8, "width": 8, **change})
