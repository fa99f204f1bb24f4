"""Numpy's files read a few rows at a time; `np.load` is the oracle."""

from __future__ import annotations

import gc
import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.data.archive import load_arrays, read_rows, read_shapes
from qcompile.errors import DataError

Array = NDArray[Any]
Save = Callable[..., None]

SAVES: dict[str, Save] = {"plain": np.savez, "compressed": np.savez_compressed}
saves = pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)


def noise(*shape: int) -> Array:
    """Values that do not compress."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def header(shape: tuple[int, ...], *, dtype: str = "<f4", by_column: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": by_column, "shape": shape})
    return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    """An archive of handmade members; its sums are right."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def assert_unreadable(read: Callable[[Path], object], path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as numpy data") as caught:
        read(path)
    assert str(path) in caught.value.message
    assert caught.value.data["file"] == path
    del caught  # it and its traceback hold each other, and the file with them


def joined(path: Path, rows: int) -> dict[str, Array]:
    parts = list(read_rows(path, rows))
    assert parts
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@saves
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 100])
def test_rows_read_a_few_at_a_time_are_those_that_numpy_loads(tmp_path: Path, save: Save, rows: int) -> None:
    arrays = {
        "x": noise(7, 3, 5),
        "labels": np.arange(7),
        "mask": np.arange(7) % 2 == 0,
        "names": np.array(["a", "bcd", "", "é", "e", "f", "g"]),
        "half": noise(7, 2).astype(np.float16),
        "swapped": noise(7, 2).astype(">f8"),
        "nothing": np.zeros((7, 0), np.float32),
    }
    path = tmp_path / "data.npz"
    save(path, **arrays)
    parts = list(read_rows(path, rows))
    assert [len(part["x"]) for part in parts] == [min(rows, 7 - start) for start in range(0, 7, rows)]
    found = joined(path, rows)
    with np.load(path) as loaded:
        assert list(found) == loaded.files
        for name, array in loaded.items():
            assert {part[name].dtype for part in parts} == {array.dtype}
            np.testing.assert_array_equal(found[name], array)


@saves
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_arrays_stored_by_column_give_the_same_rows_in_c_order(tmp_path: Path, save: Save, rows: int) -> None:
    expected = noise(7, 3, 5)
    path = tmp_path / "data.npz"
    save(path, by_column=np.asfortranarray(expected), by_row=expected, turned=noise(5, 7).T)
    for part in read_rows(path, rows):
        assert all(array.flags.c_contiguous for array in part.values())
    found = joined(path, rows)
    np.testing.assert_array_equal(found["by_column"], expected)
    np.testing.assert_array_equal(found["by_row"], expected)
    np.testing.assert_array_equal(found["turned"], noise(5, 7).T)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["<f4", ">f4", "<f2", "<f8", "|b1", "|u1", "<i8", "<c8", "<U3", "|S2"]),
    by_column=st.booleans(),
    compressed=st.booleans(),
    rows=st.integers(1, 6),
)
def test_any_array_reads_as_numpy_loads_it(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    dtype: str,
    by_column: bool,
    compressed: bool,
    rows: int,
) -> None:
    numbers = np.random.default_rng(0).integers(0, 2, shape)
    array = np.asarray(numbers.astype(dtype), order="F" if by_column else "C")
    path = tmp_path_factory.mktemp("any") / "data.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=array)
    assert read_shapes(path) == {"x": shape}
    parts = [part["x"] for part in read_rows(path, rows)]
    assert all(part.dtype == array.dtype for part in parts)
    np.testing.assert_array_equal(np.concatenate([*parts, array[:0]]), array)


def test_rows_are_copies_that_the_reader_does_not_touch_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=noise(6, 3), f=np.asfortranarray(noise(6, 3)))
    parts = list(read_rows(tmp_path / "data.npz", 2))
    for part in parts:
        part["x"][:] = -1  # writable, as arrays from np.load are
    again = joined(tmp_path / "data.npz", 2)
    np.testing.assert_array_equal(again["x"], noise(6, 3))
    np.testing.assert_array_equal(np.concatenate([part["f"] for part in parts]), noise(6, 3))


@saves
def test_an_archive_without_rows_yields_nothing(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "data.npz", x=noise(0, 3))
    assert list(read_rows(tmp_path / "data.npz", 4)) == []
    assert read_shapes(tmp_path / "data.npz") == {"x": (0, 3)}


def test_an_archive_without_arrays_yields_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz")
    assert list(read_rows(tmp_path / "data.npz", 4)) == []
    assert read_shapes(tmp_path / "data.npz") == {}


@saves
def test_shapes_are_told_without_the_values(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "data.npz", x=noise(7, 3), f=np.asfortranarray(noise(7, 3)), s=np.array(3.0))
    assert read_shapes(tmp_path / "data.npz") == {"x": (7, 3), "f": (7, 3), "s": ()}
    np.save(tmp_path / "x.npy", noise(4, 2))
    assert read_shapes(tmp_path / "x.npy") == {"": (4, 2)}
    claims_much = archive(tmp_path / "much.npz", x=header((10**12, 3)))
    assert read_shapes(claims_much) == {"x": (10**12, 3)}


def test_headers_of_every_version_are_read(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, noise(4, 2), version=version)
        assert read_shapes(tmp_path / "x.npy") == {"": (4, 2)}
        path = archive(tmp_path / "x.npz", x=(tmp_path / "x.npy").read_bytes())
        np.testing.assert_array_equal(joined(path, 3)["x"], noise(4, 2))


# What is damaged. Rows in front of the damage are delivered: nothing reads ahead of what is asked for.


@saves
def test_rows_in_front_of_damage_are_read_before_it_is_found(tmp_path: Path, save: Save) -> None:
    path = tmp_path / "data.npz"
    save(path, x=noise(64, 4096))  # a megabyte
    content = bytearray(path.read_bytes())
    content[-5000] ^= 0xFF
    path.write_bytes(content)
    rows = read_rows(path, 1)
    np.testing.assert_array_equal(next(rows)["x"], noise(64, 4096)[:1])
    assert_unreadable(lambda _: list(rows), path)


@saves
@pytest.mark.parametrize("place", [0.0, 0.001, 0.3, 0.9])
def test_a_changed_byte_is_found_wherever_it_is(tmp_path: Path, save: Save, place: float) -> None:
    path = tmp_path / "data.npz"
    save(path, x=noise(50, 20))
    content = bytearray(path.read_bytes())
    start = len(content) - noise(50, 20).nbytes if save is np.savez else 200
    content[start + int(place * 3000)] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.npz: cannot be read as numpy data"):
        list(read_rows(path, 7))


@saves
@pytest.mark.parametrize("size", [0, 1, 4, 30, 100, 500, 2000, -1, -10, -22, -60, -200])
def test_an_archive_that_is_cut_off_is_an_error(tmp_path: Path, save: Save, size: int) -> None:
    path = tmp_path / "data.npz"
    save(path, x=noise(30, 20), labels=np.arange(30))
    path.write_bytes(path.read_bytes()[:size])
    for read in (load_arrays, read_shapes, lambda cut: list(read_rows(cut, 4))):
        assert_unreadable(read, path)


@pytest.mark.parametrize("size", [0, 1, 6, 40, 127, 128, 300, -1])
def test_a_single_array_that_is_cut_off_is_an_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.npy"
    np.save(path, noise(30, 20))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"x\.npy: cannot be read as numpy data"):
        load_arrays(path)


@pytest.mark.parametrize("numbers", [0, 1, 14, 16, 100])
def test_a_member_that_is_shorter_or_longer_than_it_says_is_an_error(tmp_path: Path, numbers: int) -> None:
    path = archive(tmp_path / "data.npz", x=header((5, 3)) + bytes(4 * numbers))
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(path, 2))


@pytest.mark.parametrize(
    "content", [b"", b"no array", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + bytes(200)]
)
def test_a_member_that_is_no_array_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = archive(tmp_path / "data.npz", x=content)
    for read in (read_shapes, lambda wrong: list(read_rows(wrong, 4))):
        with pytest.raises(DataError, match="cannot be read as numpy data"):
            read(path)


@pytest.mark.parametrize("content", [b"no archive at all", b"PK\x03\x04" + bytes(100), b"\xff" * 500])
def test_what_is_no_archive_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    for read in (load_arrays, read_shapes, lambda wrong: list(read_rows(wrong, 4))):
        with pytest.raises(DataError, match=r"data\.npz: cannot be read as numpy data"):
            read(path)


@saves
def test_pickled_objects_are_refused_before_any_row(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "data.npz", x=noise(2, 3), meta=np.array([{"a": 1}, None], dtype=object))
    rows = read_rows(tmp_path / "data.npz", 1)
    with pytest.raises(
        DataError, match=r"data\.npz: cannot be read as numpy data .*\n  hint: pickled objects"
    ):
        next(rows)
    with pytest.raises(DataError, match="pickled objects"):
        load_arrays(tmp_path / "data.npz")


def test_a_scalar_has_no_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.float32(3))
    with pytest.raises(DataError, match="is a scalar"):
        list(read_rows(tmp_path / "data.npz", 1))


def test_whole_files_are_loaded_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=noise(2, 3), s=np.array(5))
    found = load_arrays(tmp_path / "data.npz")
    assert list(found) == ["x", "s"]
    np.testing.assert_array_equal(found["x"], noise(2, 3))
    np.save(tmp_path / "x.npy", noise(4))
    np.testing.assert_array_equal(load_arrays(tmp_path / "x.npy")[""], noise(4))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_damage_in_an_array_stored_by_column_is_an_error(tmp_path: Path, save_npz: Any) -> None:
    path = tmp_path / "x.npz"
    save_npz(path, x=np.asfortranarray(noise(64, 4096)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(path, 7))


@pytest.mark.parametrize("numbers", [9, 19])
def test_an_array_stored_by_column_that_is_shorter_or_longer_is_an_error(
    tmp_path: Path, numbers: int
) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": True, "shape": (5, 3)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", file.getvalue() + bytes(4 * numbers))
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(tmp_path / "x.npz", 2))


def test_a_row_of_an_impossible_size_is_an_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1, 10**15)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", file.getvalue())
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(tmp_path / "x.npz", 2))


def test_the_archive_is_closed_when_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=noise(64, 4096))
    content = bytearray(path.read_bytes())
    content[-5000] ^= 0xFF
    path.write_bytes(content)

    def read() -> None:
        rows = read_rows(path, 1)
        next(rows)
        try:
            list(rows)
        except DataError as error:
            kept = error  # noqa: F841  # a cycle

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
