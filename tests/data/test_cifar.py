from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcompile.data.batches import Data
from qcompile.errors import DataError, InvalidOption
from qcompile.model.preprocessing import ImagePreprocessing, as_json
from qcompile.tensors import TensorInfo

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def info(**options: object) -> TensorInfo:
    made = ImagePreprocessing(**{"input": "x", "height": 32, "width": 32, **options})  # type: ignore[arg-type]
    return TensorInfo("x", "float32", ("n", 3, made.height, made.width), preprocessing=as_json(made))


def write(path: Path, labels: list[int], *, coarse: bool = False, seed: int = 0) -> np.ndarray:
    """Write records by hand, and return their pixels [n, 3, 32, 32]."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for label, image in zip(labels, pixels, strict=True):
            file.write(bytes([19, label] if coarse else [label]))
            file.write(image.tobytes())
    return pixels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "cifar-10-batches-bin"
    write(root / "data_batch_1.bin", [1, 2, 3], seed=1)
    write(root / "data_batch_2.bin", [4, 5], seed=2)
    write(root / "test_batch.bin", [9, 0, 9], seed=3)
    return root


def test_records_are_read_with_their_labels_across_files(folder: Path) -> None:
    data = Data(f"{folder}?split=train", [info()], batch_size=4)
    batches = list(data)
    assert [one.labels.tolist() for one in batches] == [[1, 2, 3, 4], [5]]  # type: ignore[union-attr]
    pixels = np.concatenate([write(folder / "x", [0] * 3, seed=1), write(folder / "x", [0] * 2, seed=2)])
    np.testing.assert_array_equal(
        np.concatenate([one.feeds["x"] for one in batches]), pixels.astype(np.float32) / np.float32(255)
    )
    assert batches[1].where == "data_batch_2.bin record 1"
    assert data.total == 5


def test_a_folder_of_both_splits_asks_for_one_and_a_file_needs_none(folder: Path) -> None:
    with pytest.raises(InvalidOption, match=r"holds train and test; one of them.*\n  hint: add \?split=test"):
        list(Data(str(folder), [info()]))
    [batch] = Data(f"cifar10:{folder}/test_batch.bin", [info()])
    assert batch.labels is not None
    assert batch.labels.tolist() == [9, 0, 9]
    with pytest.raises(InvalidOption, match="split=val; train or test is required"):
        list(Data(f"{folder}?split=val", [info()]))


def test_cifar_100_has_the_fine_label(tmp_path: Path) -> None:
    write(tmp_path / "test.bin", [99, 3], coarse=True)
    [batch] = Data(str(tmp_path), [info()])
    assert batch.labels is not None
    assert batch.labels.tolist() == [99, 3]


def test_another_extent_is_resized_by_pillow(folder: Path) -> None:
    [batch] = Data(f"{folder}?split=test", [info(height=48, width=48)])
    first = np.frombuffer((folder / "test_batch.bin").read_bytes()[1:3073], np.uint8).reshape(3, 32, 32)
    image = Image.fromarray(first.transpose(1, 2, 0)).resize((48, 48), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        batch.feeds["x"][0], np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)
    )


def test_labels_follow_the_models_order_of_the_classes(folder: Path) -> None:
    [batch] = Data(f"{folder}?split=test", [info(classes=CLASSES[::-1])])
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 9, 0]


def test_the_pickled_version_and_damaged_files_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "data_batch_1").write_bytes(b"\x80\x04K\x01.")
    for spec in (f"{tmp_path}/py", f"cifar10:{tmp_path}/py"):
        with pytest.raises(
            DataError, match=r"files are pickles; unpickling can run code\n  hint: take the binary"
        ):
            list(Data(spec, [info()]))
    path = folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="has 9218 bytes; a multiple of 3073"):
        list(Data(f"{folder}?split=test", [info()]))
    write(path, [10])
    with pytest.raises(DataError, match=r"record 0 is of class 10; 0 to 9 are required"):
        list(Data(f"{folder}?split=test", [info()]))


def test_samples_are_drawn_evenly_and_the_digest_tells_what_is_read(folder: Path) -> None:
    write(folder / "test_batch.bin", [0] * 50 + [1] * 4)
    data = Data(f"{folder}?split=test&samples=6", [info()])
    assert sorted(int(label) for batch in data for label in batch.labels) == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]
    first = Data(f"{folder}?split=test", ()).digest()
    assert Data(f"{folder}?split=test&seed=1&samples=6", ()).digest() != data.digest() != first
    write(folder / "test_batch.bin", [0] * 50 + [1] * 4, seed=5)
    assert Data(f"{folder}?split=test", ()).digest() != first
