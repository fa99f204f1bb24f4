"""Reading some batches gives what reading all gives of them, and opens no file of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import image_input, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizer_files import WORDS, save_tokenizer

from qcompile.data import arrays, images
from qcompile.data.batches import Data
from qcompile.data.processors import TextReader
from qcompile.data.readers import Batch
from qcompile.errors import DataError
from qcompile.model.preprocessing import TextPreprocessing, as_json
from qcompile.tensors import TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))
FUNCTION = """
import numpy as np

def batches():
    for extent in {extents}:
        yield np.zeros((extent, 3), np.float32)
"""


def write(kind: str, path: Path, extents: list[int]) -> str:
    """Write samples of a kind, in batches of these extents where it has batches; return the spelling."""
    numbered = [rows(extent) + 100 * number for number, extent in enumerate(extents)]
    labels, file = np.arange(sum(extents)), path / f"a.{kind}"
    if kind == "npz":
        np.savez(file, x=rows(len(labels)), labels=labels)
    elif kind == "compressed":
        file = file.with_suffix(".npz")
        np.savez_compressed(file, x=np.asfortranarray(rows(len(labels))), labels=labels)
    elif kind == "npy":
        np.save(file, rows(len(labels)))
    elif kind == "folder":  # of files of several samples, of one that has no first axis, and of none
        file.mkdir()
        for number, values in enumerate(numbered):
            if number % 2:
                np.save(file / f"{number:02}.npy", values[0] if len(values) == 1 else values)
            else:
                np.savez(file / f"{number:02}.npz", x=values, labels=np.arange(len(values)))
    elif kind == "json":
        from polygraphy.json import save_json

        save_json([{"x": values} for values in numbered], str(file))
    elif kind == "function":
        (path / "d.py").write_text(FUNCTION.format(extents=extents))
        return f"{path}/d.py:batches"
    else:
        for number in labels:
            (file / f"class {number % 2}").mkdir(parents=True, exist_ok=True)
            image = Image.new("RGB", (5, 4), (int(number), 0, 0))
            image.save(file / f"class {number % 2}" / f"{number:02}.png")
    return str(file)


def inputs_of(kind: str, fixed: int | None = None) -> list[TensorInfo]:
    input_ = image_input() if kind == "images" else X
    return [replace(input_, shape=(fixed or "batch", *input_.shape[1:]))]


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


@pytest.mark.parametrize("kind", ["npz", "compressed", "npy", "folder", "json", "function", "images"])
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
    spec = write(kind, tmp_path_factory.mktemp("data"), extents) + query

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
    stated = data().extents()
    assert (stated is None) == (kind == "function")
    if stated is not None:
        assert [batch.samples if batch.can_be_split() else 1 for batch in data()] == list(stated)


def test_each_image_is_decoded_by_one_of_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = images.decode

    def noting(path: Path, mode: str, where: str) -> Image.Image:
        decoded.append(where)
        return decode(path, mode, where)

    monkeypatch.setattr(images, "decode", noting)
    spec = write("images", tmp_path, [23])
    for part in range(4):
        before = len(decoded)
        batches = list(Data(spec, inputs_of("images"), batch_size=2).at(partial(held, part, 4)))
        assert len(decoded) - before == sum(batch.samples for batch in batches) == (5 if part == 3 else 6)
    assert sorted(decoded) == sorted(map(str, Path(spec).rglob("*.png")))


def test_of_other_files_of_arrays_only_the_heads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = arrays.load_arrays
    monkeypatch.setattr(arrays, "load_arrays", lambda path: loaded.append(path.name) or load(path))
    spec = write("folder", tmp_path, [2] * 9)
    assert len(list(Data(spec, [X]).at(partial(held, 1, 3)))) == 3
    assert [name[:2] for name in loaded] == ["01", "04", "07"]


def test_texts_of_other_parts_are_not_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    spec = write("npz", tmp_path, [40])
    content = bytearray(Path(spec).read_bytes())
    at = content.find(np.float32(33).tobytes() * 3)
    content[at] ^= 1
    Path(spec).write_bytes(bytes(content))
    for part in range(2):
        with pytest.raises(DataError, match="Bad CRC-32"):
            list(Data(spec, [X], batch_size=4).at(partial(held, part, 2)))
