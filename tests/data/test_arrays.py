"""Numpy's files, mapped or loaded; `np.load` is the oracle, and what is damaged or pickled is refused."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.data.arrays import load_arrays, map_arrays, read_shapes
from qcompile.data.batches import Data
from qcompile.errors import DataError
from qcompile.tensors import TensorInfo

Save = Callable[..., None]
X = TensorInfo("x", "float32", ("batch", "n"))
saves = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


def noise(*shape: int) -> NDArray[Any]:
    """Values that do not compress."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def header(shape: tuple[int, ...], *, by_column: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": by_column, "shape": shape})
    return file.getvalue()


def archive(path: Path, content: bytes) -> Path:
    """An archive of one handmade member; its sum is right."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", content)
    return path


def read(path: Path) -> list[Any]:
    """All rows, seven at a time."""
    return list(Data(str(path), [X], batch_size=7))


def refused(path: Path, *readers: Callable[[Path], object]) -> None:
    for reader in readers:
        with pytest.raises(DataError, match="cannot be read as numpy data") as caught:
            reader(path)
        assert str(path) in caught.value.message
        assert caught.value.data["file"] == path


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["<f4", ">f4", "<f2", "<f8", "|b1", "|u1", "<i8", "<c8", "<U3", "|S2"]),
    by_column=st.booleans(),
    compressed=st.booleans(),
    count=st.integers(1, 3),
)
def test_any_array_is_mapped_as_numpy_loads_it(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    dtype: str,
    by_column: bool,
    compressed: bool,
    count: int,
) -> None:
    numbers = np.random.default_rng(0).integers(0, 2, shape)
    array = np.asarray(numbers.astype(dtype), order="F" if by_column else "C")
    path = tmp_path_factory.mktemp("any") / "data.npz"
    (np.savez_compressed if compressed else np.savez)(
        path, **{f"x{number}": array for number in range(count)}
    )
    assert read_shapes(path) == {f"x{number}": shape for number in range(count)}
    with np.load(path) as loaded:
        for name, mapped in map_arrays(path).items():
            assert mapped.dtype == loaded[name].dtype
            np.testing.assert_array_equal(mapped, loaded[name])


def test_rows_are_copies_that_may_be_written(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.asfortranarray(noise(9, 3)))
    for batch in read(tmp_path / "data.npz"):
        assert batch.feeds["x"].flags.c_contiguous
        batch.feeds["x"][:] = -1
    again = np.concatenate([batch.feeds["x"] for batch in read(tmp_path / "data.npz")])
    np.testing.assert_array_equal(again, noise(9, 3))


def test_headers_of_every_version_are_read(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, noise(4, 2), version=version)
        assert read_shapes(tmp_path / "x.npy") == {"": (4, 2)}
        path = archive(tmp_path / "x.npz", (tmp_path / "x.npy").read_bytes())
        np.testing.assert_array_equal(map_arrays(path)["x"], noise(4, 2))


def test_shapes_are_told_without_the_values(tmp_path: Path) -> None:
    assert read_shapes(archive(tmp_path / "much.npz", header((10**12, 3)))) == {"x": (10**12, 3)}
    np.savez(tmp_path / "data.npz", x=noise(7, 3), s=np.array(3.0))
    assert read_shapes(tmp_path / "data.npz") == {"x": (7, 3), "s": ()}
    with pytest.raises(DataError, match="s is a scalar; a first axis of samples is required"):
        read(tmp_path / "data.npz")


@saves
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("place", [0.0, 0.001, 0.3, 0.9])
def test_a_changed_byte_is_found_wherever_it_is(
    tmp_path: Path, save: Save, place: float, by_column: bool
) -> None:
    path, array = tmp_path / "data.npz", noise(50, 20)
    save(path, x=np.asfortranarray(array) if by_column else array)
    content = bytearray(path.read_bytes())
    start = len(content) - array.nbytes if save is np.savez else 200
    content[start + int(place * 3000)] ^= 0x10
    path.write_bytes(content)
    refused(path, read)


@saves
@pytest.mark.parametrize("size", [0, 1, 4, 30, 100, 500, 2000, -1, -10, -22, -60, -200])
def test_an_archive_that_is_cut_off_is_an_error(tmp_path: Path, save: Save, size: int) -> None:
    path = tmp_path / "data.npz"
    save(path, x=noise(30, 20), labels=np.arange(30))
    path.write_bytes(path.read_bytes()[:size])
    refused(path, load_arrays, read_shapes, map_arrays, read)


@pytest.mark.parametrize("size", [0, 1, 6, 40, 127, 128, 300, -1])
def test_a_single_array_that_is_cut_off_is_an_error(tmp_path: Path, size: int) -> None:
    np.save(tmp_path / "x.npy", noise(30, 20))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:size])
    refused(tmp_path / "x.npy", load_arrays, map_arrays, read)


@pytest.mark.parametrize(
    "content",
    [
        *(header((5, 3), by_column=by_column) + bytes(4 * n)
          for n in (0, 1, 14, 16, 100) for by_column in (False, True)),
        header((1, 10**15)), b"", b"no array", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + bytes(200),
    ],
)  # fmt: skip
def test_a_member_that_is_no_array_or_of_another_size_is_an_error(tmp_path: Path, content: bytes) -> None:
    refused(archive(tmp_path / "data.npz", content), map_arrays)


@saves
def test_pickled_objects_are_refused_before_any_row(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "data.npz", x=noise(2, 3), meta=np.array([{"a": 1}, None], dtype=object))
    for reader in (load_arrays, read):
        with pytest.raises(DataError, match=r"cannot be read as numpy data .*\n  hint: pickled objects"):
            reader(tmp_path / "data.npz")
