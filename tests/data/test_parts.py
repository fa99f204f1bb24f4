"""Reading some batches gives what reading all gives of them, and opens no file of the others."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import rows
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_files import WORDS, save_tokenizer

from qcompile.data.batches import Data
from qcompile.data.readers import Batch
from qcompile.errors import DataError
from qcompile.model.preprocessing import ImagePreprocessing, TextPreprocessing, as_json
from qcompile.tensors import TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))
IMAGES = ImagePreprocessing(input="x", height=4, width=4)
FUNCTION = """
import numpy as np

def batches():
    for extent in {extents}:
        yield np.zeros((extent, 3), np.float32)
"""


def as_npz(path: Path, extents: list[int]) -> str:
    np.savez(path / "a.npz", x=rows(sum(extents)), labels=np.arange(sum(extents)))
    return str(path / "a.npz")


def as_compressed(path: Path, extents: list[int]) -> str:
    by_column = np.asfortranarray(rows(sum(extents)))
    np.savez_compressed(path / "a.npz", x=by_column, labels=np.arange(sum(extents)))
    return str(path / "a.npz")


def as_npy(path: Path, extents: list[int]) -> str:
    np.save(path / "a.npy", rows(sum(extents)))
    return str(path / "a.npy")


def as_folder(path: Path, extents: list[int]) -> str:
    """Files of several samples, of one that has no first axis, and of none."""
    (path / "a").mkdir()
    for number, extent in enumerate(extents):
        values = rows(extent) + 100 * number
        if number % 2:
            np.save(path / "a" / f"{number:02}.npy", values[0] if extent == 1 else values)
        else:
            np.savez(path / "a" / f"{number:02}.npz", x=values, labels=np.arange(extent))
    return str(path / "a")


def as_polygraphy(path: Path, extents: list[int]) -> str:
    from polygraphy.json import save_json

    save_json(
        [{"x": rows(extent) + 100 * number} for number, extent in enumerate(extents)], str(path / "a.json")
    )
    return str(path / "a.json")


def as_function(path: Path, extents: list[int]) -> str:
    (path / "d.py").write_text(FUNCTION.format(extents=extents))
    return f"{path}/d.py:batches"


def as_images(path: Path, extents: list[int]) -> str:
    from PIL import Image

    for number in range(sum(extents)):
        (path / "a" / f"class {number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (number, 0, 0)).save(path / "a" / f"class {number % 2}" / f"{number:02}.png")
    return str(path / "a")


KINDS: dict[str, Callable[[Path, list[int]], str]] = {
    "npz": as_npz,
    "compressed": as_compressed,
    "npy": as_npy,
    "folder": as_folder,
    "polygraphy": as_polygraphy,
    "function": as_function,
    "images": as_images,
}


def inputs_of(kind: str, fixed: int | None) -> list[TensorInfo]:
    first = fixed or "batch"
    if kind == "images":
        return [TensorInfo("x", "float32", (first, 3, 4, 4), preprocessing=as_json(IMAGES))]
    return [TensorInfo("x", "float32", (first, 3))]


def plain(batch: Batch) -> list[Any]:
    feeds = {name: (array.dtype.str, array.tolist()) for name, array in batch.feeds.items()}
    return [feeds, None if batch.labels is None else batch.labels.tolist(), batch.where]


def held(part: int, parts: int, number: int) -> bool:
    return number % parts == part


def all_of(read: Callable[[], Iterator[Batch]]) -> list[Any] | str:
    """The batches, or what is said of the data."""
    try:
        return [plain(batch) for batch in read()]
    except DataError as error:
        return error.message


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(
    extents=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    batch_size=st.integers(1, 5),
    limit=st.none() | st.integers(1, 12),
    fixed=st.none() | st.integers(1, 3),
    query=st.sampled_from(["", "", "?samples=5", "?part=evaluation&seed=3"]),
    parts=st.integers(1, 4),
)
def test_parts_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    extents: list[int],
    batch_size: int,
    limit: int | None,
    fixed: int | None,
    query: str,
    parts: int,
) -> None:
    if kind == "images":
        extents = [max(1, extents[0]), *extents[1:], 1, 1]  # of two classes
    query = "" if kind == "function" else query
    spec = KINDS[kind](tmp_path_factory.mktemp("data"), extents) + query

    def data() -> Data:
        return Data(spec, inputs_of(kind, fixed), batch_size=batch_size, limit=limit)

    whole = all_of(lambda: iter(data()))
    found = [all_of(partial(data().at, partial(held, part, parts))) for part in range(parts)]
    if isinstance(whole, str):  # whoever meets what is wrong says it
        assert whole in found
        return
    merged = [found[number % parts][number // parts] for number in range(len(whole))]
    assert merged == whole
    assert sum(map(len, found)) == len(whole)
    told = data().extents()
    assert (told is None) == (kind == "function")
    if told is not None:
        assert [batch.samples if batch.can_be_split() else 1 for batch in data()] == list(told)


OPENED: list[str] | None = None


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if OPENED is not None and event == "open" and isinstance(arguments[0], str):
        OPENED.append(arguments[0])


sys.addaudithook(_count)


@contextlib.contextmanager
def opened() -> Iterator[list[str]]:
    """The names of the files that are opened in the block."""
    global OPENED
    OPENED = found = []
    try:
        yield found
    finally:
        OPENED = None


def test_each_image_is_opened_by_one_of_the_parts(tmp_path: Path) -> None:
    spec = as_images(tmp_path, [23])
    paths = sorted(map(str, Path(spec).rglob("*.png")))
    seen: list[str] = []
    for part in range(4):
        data = Data(spec, inputs_of("images", None), batch_size=2)
        with opened() as names:
            batches = list(data.at(partial(held, part, 4)))
        images = [name for name in names if name.endswith(".png")]
        assert len(images) == sum(batch.samples for batch in batches) == (5 if part == 3 else 6)
        seen += images
    assert sorted(seen) == paths


def test_of_other_files_of_arrays_only_the_heads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.data import arrays

    loaded: list[str] = []
    load = arrays.load_arrays
    monkeypatch.setattr(arrays, "load_arrays", lambda path: loaded.append(path.name) or load(path))
    spec = as_folder(tmp_path, [2] * 9)
    assert len(list(Data(spec, [X]).at(partial(held, 1, 3)))) == 3
    assert [name[:2] for name in loaded] == ["01", "04", "07"]


def test_texts_of_other_parts_are_not_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qcompile.data.processors import TextReader

    said = TextPreprocessing(
        tokenizer=str(save_tokenizer(tmp_path / "tokenizer")), inputs=("input_ids", "attention_mask")
    )
    inputs = [
        TensorInfo(name, "int64", ("batch", "length"), preprocessing=as_json(said))
        for name in ("input_ids", "attention_mask")
    ]
    (tmp_path / "t.txt").write_text("\n".join(" ".join(WORDS[: 1 + row % 7]) for row in range(11)))
    whole = [plain(batch) for batch in Data(str(tmp_path / "t.txt"), inputs, batch_size=2)]
    read: list[int] = []
    text = TextReader.text
    monkeypatch.setattr(TextReader, "text", lambda self, row: read.append(row) or text(self, row))
    part = Data(str(tmp_path / "t.txt"), inputs, batch_size=2).at(partial(held, 1, 2))
    assert [plain(batch) for batch in part] == whole[1::2]
    assert read == [2, 3, 6, 7, 10]


def test_a_damaged_archive_is_found_by_every_part(tmp_path: Path) -> None:
    spec = as_npz(tmp_path, [40])
    content = bytearray(Path(spec).read_bytes())
    at = content.find(np.float32(33).tobytes() * 3)
    content[at] ^= 1
    Path(spec).write_bytes(bytes(content))
    for part in range(2):
        with pytest.raises(DataError, match="Bad CRC-32"):
            list(Data(spec, [X], batch_size=4).at(partial(held, part, 2)))
