"""Numpy's files and Polygraphy's inputs: `np.load` is the oracle; what is damaged or pickled is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import labels_of, rows, samples_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qcompile.data.arrays import load_arrays, map_arrays, read_shapes
from qcompile.data.batches import Data
from qcompile.errors import DataError
from qcompile.spec.tensors import TensorInfo

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


def test_samples_that_are_drawn_make_batches_of_one_shape(tmp_path: Path) -> None:
    for width in (3, 5):
        np.save(tmp_path / f"{width}.npy", np.zeros((2, width), np.float32))
    batches = list(Data(f"{tmp_path}?samples=3", [X], batch_size=8))
    assert sorted(batch.feeds["x"].shape[1] for batch in batches) == [3, 5]
    assert sum(batch.samples for batch in batches) == 3


@pytest.mark.parametrize("form", ["one", "rows", "folder"])
def test_a_scalar_input_is_read_as_a_scalar(form: str, tmp_path: Path) -> None:
    inputs, path = [X, TensorInfo("step", "int64", ())], tmp_path / f"a.{form}.npz"
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    if form == "folder":
        path.mkdir()
        for row in range(4):
            np.savez(path / f"{row}.npz", x=x[row : row + 1], step=row)
    else:
        np.savez(path, x=x, step=np.int64(7) if form == "one" else np.arange(4))
    batches = [batch for spec in (str(path), f"{path}?samples=3") for batch in Data(spec, inputs)]
    assert len(batches) == (2 if form == "one" else 7)
    for batch in batches:
        first = int(batch.feeds["x"][0, 0]) // 3
        assert batch.feeds["step"].shape == ()
        assert batch.feeds["step"] == (7 if form == "one" else first)


@pytest.mark.parametrize("form", ["npz", "folder", "npy"])
def test_keys_choose_among_the_rows(tmp_path: Path, form: str) -> None:
    labels = np.arange(40) // 30
    if form == "npz":
        np.savez(tmp_path / "a.npz", x=rows(40), labels=labels)
    elif form == "npy":
        np.save(tmp_path / "a.npy", rows(40))
    else:
        (tmp_path / "a.folder").mkdir()
        for start in range(0, 40, 16):
            part = slice(start, start + 16)
            np.savez(tmp_path / "a.folder" / f"{start}.npz", x=rows(40)[part], labels=labels[part])
    spec = str(tmp_path / f"a.{form}")
    halves = [Data(f"{spec}?part={part}", [X], batch_size=4) for part in ("calibration", "evaluation")]
    both = [samples_of(list(one)) for one in halves]
    assert sorted(both[0] + both[1]) == list(range(40))
    assert [one.total for one in halves] == [len(half) for half in both]
    drawn = list(Data(f"{spec}?samples=10", [X], batch_size=4))
    assert [one.samples for one in drawn] == [4, 4, 2]
    assert samples_of(drawn) == sorted(samples_of(drawn))
    if form != "npy":
        assert labels_of(drawn) == [0] * 5 + [1] * 5
    few = list(Data(f"{spec}?samples=10", [X], limit=3))
    assert set(samples_of(few)) < set(samples_of(drawn))
    assert len(samples_of(few)) == 3
    digests = {Data(f"{spec}{query}", ()).digest() for query in ("", "?samples=10", "?samples=10&seed=1")}
    assert len(digests) == 3


def test_what_polygraphy_saves_is_read_as_its_loader_reads_it(tmp_path: Path) -> None:
    import torch
    from polygraphy.json import load_json, save_json

    spec, mask = str(tmp_path / "inputs.json"), TensorInfo("mask", "bool", ("batch",))
    saved = [{"x": rows(2), "mask": np.array([True, False])}, {"x": rows(5)[2:], "mask": np.ones(3, bool)}]
    save_json(saved, spec)
    data = Data(spec, [X, mask])
    batches = list(data)
    for theirs, ours in zip(load_json(spec), batches, strict=True):
        np.testing.assert_array_equal(theirs["x"], ours.feeds["x"])
        np.testing.assert_array_equal(theirs["mask"], ours.feeds["mask"])
    assert samples_of(batches) == list(range(5))
    assert [batch.where for batch in batches] == ["inputs.json[0]", "inputs.json[1]"]
    assert data.total == 5
    save_json([{"x": torch.from_numpy(rows(2))}], spec)
    assert samples_of(list(Data(spec, [X]))) == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"x": 1}', "is no file of Polygraphy's inputs; a list of dicts.*\n  hint: save it"),
        ('[{"x": 1}]', r"inputs\.json\[0\] 'x': not an array"),
        ('[{"x": {"array": "%%%"}}]', "cannot be read as an array"),
        (
            '[{"x": {"array": "gANOLg=="}}]',
            "cannot be read as an array .*\n  hint: pickled objects are not read",
        ),
        ('[{"x": {"tensor": "gANOLg=="}}]', "cannot be read as an array"),
        ("[]", "holds no samples"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "inputs.json").write_text(content)
    with pytest.raises(DataError, match=message):
        list(Data(str(tmp_path / "inputs.json"), [X]))


def lying(shape: str, descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        lying("(1152921504606846976,)"), lying("(4294967296, 4294967296)"), lying("(-1,)"),
        lying("(2,)", "'|O'"), lying("(True,)"), lying("(" * 90 + "1" + ",)" * 90), lying("(4,)")[:-5],
    ],
    ids=range(7),
)  # fmt: skip
def test_an_array_whose_header_lies_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    refused(tmp_path / "x.npy", load_arrays)
