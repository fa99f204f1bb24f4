"""Folders of images: their classes, what they are decoded from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcompile.data.batches import Data, half_of
from qcompile.data.images import class_numbers
from qcompile.errors import DataError, InvalidOption
from qcompile.model.preprocessing import ImagePreprocessing, as_json
from qcompile.tensors import TensorInfo

PLAIN = ImagePreprocessing(input="x", height=4, width=4)
X = TensorInfo("x", "float32", ("batch", 3, 4, 4), preprocessing=as_json(PLAIN))


def save(path: Path, value: int = 0, mode: str = "RGB") -> None:
    """Write a picture of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 5), value).convert(mode).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Six pictures in three folders, whose grey says which."""
    for number, name in enumerate(
        ("cat/1.png", "cat/2.png", "dog/1.png", "dog/deep/2.png", "ox/1.png", "ox/2.png")
    ):
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


def test_a_flat_folder_and_a_single_subfolder_have_no_labels(pets: Path) -> None:
    assert labels(Data(str(pets / "cat"), [X])) is None
    (pets / "one").mkdir()
    (pets / "cat").rename(pets / "one" / "cat")
    assert labels(Data(str(pets / "one"), [X])) is None


def test_other_files_are_left_out_and_counted(pets: Path) -> None:
    (pets / "cat" / "Thumbs.db").write_bytes(b"x")
    (pets / ".hidden.png").write_bytes(b"x")
    save(pets / "loose.png")
    data = Data(str(pets), [X])
    assert data.total == 6
    assert data.notes() == [
        f"1 files in {pets} are no images, and are left out",
        f"1 images lie in {pets} beside the folders of classes, and are left out",
    ]


def test_metadata_gives_the_labels(pets: Path) -> None:
    names = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/deep/2.png", "ox/1.png", "ox/2.png"]

    def write(values: str) -> None:
        lines = [f"{name},{value}\n" for name, value in zip(names, values.split(), strict=False)]
        (pets / "metadata.csv").write_text("".join(["file_name,label\n", *lines]))

    write("b a b c a c")
    assert labels(Data(str(pets), [X])) == [1, 0, 1, 2, 0, 2]
    write("0.5 1 2 -1 0 0")
    assert labels(Data(str(pets), [X])) == [0.5, 1, 2, -1, 0, 0]
    write("0 1")
    with pytest.raises(DataError, match=r"metadata\.csv: has no row for dog/1\.png"):
        list(Data(str(pets), [X]))
    with pytest.raises(InvalidOption, match=r"labels went with 0\.3\.0: put metadata\.csv"):
        Data(f"{pets}?labels=labels.csv", [X])


@pytest.mark.parametrize(
    ("names", "classes", "numbers", "told"),
    [
        (["b", "a"], [], {"a": 0, "b": 1}, False),
        (["a", "c"], ["c", "b", "a"], {"a": 2, "c": 0}, False),
        (
            ["great_white", "tench"],
            ["tench, Tinca tinca", "goldfish", "Great  White"],
            {"tench": 0, "great_white": 2},
            False,
        ),
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
    def of(*classes: str) -> Data:
        known = ImagePreprocessing(input="x", height=4, width=4, classes=classes)
        return Data(str(pets), [TensorInfo("x", "float32", ("b", 3, 4, 4), preprocessing=as_json(known))])

    assert labels(of("dog", "ox", "mouse", "cat")) == [3, 3, 0, 0, 1, 1]
    other = of("dog", "mouse")
    assert labels(other) == [0, 0, 1, 1, 2, 2]
    assert other.notes() == [
        "folders are numbered in sorted order: 2 of 3 names, as 'cat', are none of the model's 2 classes, "
        "as 'dog'"
    ]


def test_splits_are_chosen_and_never_taken_for_classes(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("train", "val"):
        save(tmp_path / "set" / name / "a" / "1.png", 10 if name == "val" else 0)
    with pytest.raises(InvalidOption, match=r"holds train, val; one of them is required\n.*\?split=train"):
        list(Data(str(tmp_path / "set"), [X]))
    assert greys(Data(f"{tmp_path}/set?split=validation", [X])) == [10]
    with pytest.raises(InvalidOption, match=r"split=test: no folder of this name in .*; found train, val"):
        list(Data(f"{tmp_path}/set?split=test", [X]))
    assert pets.is_dir()


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("RGB", "jpg"),
        ("L", "png"),
        ("RGBA", "png"),
        ("CMYK", "jpg"),
        ("P", "png"),
        ("1", "png"),
        ("LA", "png"),
    ],
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
    with pytest.raises(InvalidOption, match=r"is not known\n  hint: add \?preprocessing=imagenet"):
        list(Data(str(pets), [plain]))
    [batch] = Data(f"{pets}?preprocessing=imagenet", [plain])
    assert batch.feeds["x"].shape == (6, 3, 8, 8)
    with pytest.raises(InvalidOption, match=r"preprocessing 'imagnet'.*\n  hint: did you mean imagenet"):
        list(Data(f"{pets}?preprocessing=imagnet", [plain]))
    with pytest.raises(InvalidOption, match=r"inputs are x:\[batch,3\]; one input of four axes is required"):
        list(Data(f"{pets}?preprocessing=imagenet", [TensorInfo("x", "float32", ("batch", 3))]))


def test_another_preprocessing_keeps_the_models_classes(pets: Path) -> None:
    known = ImagePreprocessing(input="x", height=4, width=4, classes=("ox", "dog", "cat"))
    info = TensorInfo("x", "float32", ("batch", 3, 4, 4), preprocessing=as_json(known))
    assert labels(Data(f"{pets}?preprocessing=cifar10", [info])) == [2, 2, 1, 1, 0, 0]
    assert labels(Data(f"{pets}?preprocessing=cifar10", [X])) == [0, 0, 1, 1, 2, 2]


def test_channels_last_and_half_precision_are_what_the_input_says(pets: Path) -> None:
    [first] = Data(str(pets), [X])
    last = TensorInfo("x", "float16", ("batch", 4, 4, 3), preprocessing=as_json(PLAIN))
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
    fixed = TensorInfo("x", "float32", (4, 3, 4, 4), preprocessing=as_json(PLAIN))
    data = Data(str(pets), [fixed])
    assert ([batch.samples for batch in data], data.total) == ([4], 4)
    assert data.notes() == ["the last 2 samples fill no batch of 4, and are left out"]
    with pytest.raises(DataError, match="takes 4 samples at a time; at most 3 were asked for"):
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


def test_the_halves_of_a_folder_are_disjoint(pets: Path) -> None:
    both = [greys(Data(f"{pets}?part={part}", [X])) for part in ("calibration", "evaluation")]
    assert sorted(both[0] + both[1]) == [0, 10, 20, 30, 40, 50]
    one = pets / "cat" / "1.png"
    halves = {half_of("1.png", 0), "calibration", "evaluation"} - {half_of("1.png", 0)}
    for path in pets.rglob("*.png"):
        if path != one:
            path.unlink()
    [other] = halves
    with pytest.raises(DataError, match=r"none of 1 samples is in this half\n  hint: give another seed"):
        list(Data(f"{pets / 'cat'}?part={other}", [X]))
