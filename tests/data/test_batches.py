"""Arrays and functions batch by batch; reading some batches opens no file of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches_to_read import Script, image_input, labels_of, npz, rows, samples_of
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizer_files import WORDS, save_tokenizer

from qcompile.data import arrays
from qcompile.data.batches import Data
from qcompile.data.processors import TextReader
from qcompile.data.readers import Batch
from qcompile.errors import DataError, InvalidOption, MissingFile
from qcompile.model.sources.preprocessing import TextPreprocessing, as_json
from qcompile.spec.tensors import TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))
MASK = TensorInfo("mask", "bool", ("batch",))


def test_an_npz_is_read_in_batches_with_its_labels(tmp_path: Path) -> None:
    spec = npz(tmp_path / "data.npz", x=rows(7), labels=np.arange(7) * 10)
    data = Data(spec, [X], batch_size=3)
    batches = list(data)
    assert samples_of(list(data)) == samples_of(batches)  # it can be read again and again
    assert [batch.samples for batch in batches] == [3, 3, 1]
    assert samples_of(batches) == list(range(7))
    assert labels_of(batches) == [0, 10, 20, 30, 40, 50, 60]
    assert batches[1].where == "data.npz[3:6]"
    fixed = TensorInfo("x", "float32", (2, 3))  # decides over the size
    assert [batch.samples for batch in Data(spec, [fixed], batch_size=5)] == [2, 2, 2]


@pytest.mark.parametrize(("limit", "expected"), [(None, 7), (1, 1), (3, 3), (4, 4), (7, 7), (100, 7)])
def test_a_limit_stops_at_exactly_so_many_samples(tmp_path: Path, limit: int | None, expected: int) -> None:
    spec = npz(tmp_path / "data.npz", x=rows(7), labels=np.arange(7))
    data = Data(spec, [X], batch_size=3, limit=limit)
    assert data.total == expected  # before it is read
    batches = list(data)
    assert samples_of(batches) == labels_of(batches) == list(range(expected))


@pytest.mark.parametrize("limit", [None, 4, 100])
def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path, limit: int | None) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    npz(folder / "2.npz", labels=np.array([3, 4]), x=rows(5)[3:])
    np.save(folder / "1.npy", rows(3)[1:])
    np.save(folder / "0.npy", rows(1)[0])  # one sample, without the first axis
    (folder / "notes.txt").write_text("no sample")
    data = Data(str(folder), [X], limit=limit)
    assert data.total == min(limit or 5, 5)  # before it is read
    batches = list(data)
    assert samples_of(batches) == list(range(data.total or 0))
    end = " sample 0" if limit == 4 else ""
    assert [batch.where for batch in batches] == ["samples/0.npy", "samples/1.npy", f"samples/2.npz{end}"]
    assert [batch.labels is None for batch in batches] == [True, True, False]
    with pytest.raises(DataError, match="has no input names, and the model takes 2 inputs"):
        list(Data(str(folder), [X, MASK]))


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        ("yield X[:2]\nyield X[2:]", None),
        ("yield (X[:2],)\nyield [X[2:]]", None),
        ("yield {'x': X[:2]}\nyield {'x': X[2:]}", None),
        ("yield X[:2], L[:2]\nyield X[2:], L[2:]", [0, 1, 2]),
        ("yield {'x': X[:2], 'labels': L[:2]}\nyield {'x': X[2:], 'labels': L[2:]}", [0, 1, 2]),
        ("yield {'x': X[:2]}, L[:2]\nyield [{'x': X[2:]}, L[2:]]", [0, 1, 2]),
        ("return [(X[:2], [0, 1]), (X[2:], [2])]", [0, 1, 2]),
    ],
)
def test_a_function_may_give_arrays_tuples_dicts_and_labels(
    script: Script, body: str, labels: list[int] | None
) -> None:
    head = "X = np.repeat(np.arange(3, dtype=np.float32)[:, None], 3, axis=1)\nL = np.arange(3)"
    batches = list(Data(script(body, head=head), [X]))
    assert samples_of(batches) == [0, 1, 2]
    assert [batch.where for batch in batches] == ["samples batch 0", "samples batch 1"]
    assert labels_of(batches) == labels


def test_nothing_is_read_past_the_limit(script: Script) -> None:
    spec = script("yield np.zeros((4, 3), np.float32)\nraise RuntimeError('read too far')")
    assert [batch.samples for batch in Data(spec, [X], limit=4)] == [4]


@pytest.mark.parametrize("options", [{"limit": 0}, {"batch_size": 0}, {"limit": -1}, {"batch_size": -3}])
def test_less_than_one_sample_cannot_be_asked_for(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="at least 1 is required"):
        Data(npz(tmp_path / "data.npz", x=rows(1)), [X], **options)


def test_data_that_is_not_there_empty_or_of_another_kind_is_named(tmp_path: Path) -> None:
    npz(tmp_path / "calibration.npz", x=rows(1))
    with pytest.raises(MissingFile) as caught:
        Data("calibraton.npz", [X], base=tmp_path)
    assert caught.value.hint == f"did you mean {tmp_path / 'calibration.npz'}?"
    with pytest.raises(MissingFile):
        Data(f"{tmp_path / 'none.py'}:samples", [X])
    (tmp_path / "data.xyz").write_text("1,2,3")
    with pytest.raises(InvalidOption, match=r"is of no known kind; KIND:PATH with one of images, text"):
        Data(str(tmp_path / "data.xyz"), [X])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no \.npy or \.npz file"):
        list(Data(f"{tmp_path}/empty", [X]))
    for name in ("data.pkl", "data_batch_1"):
        (tmp_path / name).write_bytes(b"\x80\x04N.")
        with pytest.raises(DataError, match=r"holds pickles; unpickling can run code\n  hint: save arrays"):
            Data(str(tmp_path / name), [X])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3))}, r"data\.npz\[0:2\]: input 'x' is float64; float32 is required"),
        ({"x": np.zeros((2, 4), np.float32)}, r"input 'x' has shape 2x4; \[batch,3\] is required"),
        ({"y": np.zeros((2, 3), np.float32)}, r"data\.npz: input 'x' is missing; found y"),
        ({"x": rows(2), "z": rows(2)}, r"no input 'z' in the model; it takes x"),
        ({"x": rows(2), "labels": np.arange(3)}, r"differ in their number of samples \(x 2, labels 3\)"),
        ({"x": rows(2), "labels": np.array(3)}, "labels"),
        ({"x": rows(0)}, "holds no samples"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(Data(npz(tmp_path / "data.npz", **arrays), [X]))


def test_a_generator_that_raises_is_an_error_naming_batch_and_line(script: Script) -> None:
    batches = iter(Data(script("yield np.zeros((1, 3), np.float32)\nraise OSError('disk')"), [X]))
    assert next(batches).samples == 1
    with pytest.raises(DataError, match=r"raised OSError at batch 1: disk \(data\.py, line 5\)") as caught:
        next(batches)
    assert caught.value.data["sample"] == 1
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield 'a.png'", "samples batch 0: holds str; arrays or tensors are required"),
        ("yield 1, 2, 3", r"samples batch 0: 3 arrays; the model takes 1 \(x\)"),
        ("return 5", "returned int; an iterable of samples is required"),
        ("yield {'X': np.zeros((1, 3), np.float32)}", "samples batch 0: input 'x' is missing; found X"),
        ("yield np.zeros((1, 3))", "samples batch 0: input 'x' is float64"),
        ("yield np.zeros((1, 3), np.float32)\nnext(iter(()))", "at batch 1"),
        ("return []", "holds no samples"),
        ("return iter(())", "holds no samples"),
        ("yield np.zeros((0, 3), np.float32)", "holds no samples"),
    ],
)
def test_what_a_function_may_not_give_is_named(script: Script, body: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(Data(script(body), [X]))


def test_the_digest_changes_with_the_data(tmp_path: Path, script: Script) -> None:
    path, folder = tmp_path / "data.npz", tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "0.npy", rows(1))
    spec = script("return []")

    def digests() -> list[str]:
        return [Data(given, [X]).digest() for given in (npz(path, x=rows(3)), str(folder), spec)]

    first = digests()
    assert digests() == first
    (folder / "0.npy").rename(folder / "1.npy")
    (tmp_path / "data.py").write_text("def samples(): return [1]\n")
    assert [new == old for new, old in zip(digests(), first, strict=True)] == [True, False, False]
    assert Data(npz(path, x=rows(4)), [X]).digest() != first[0]


def test_the_total_of_a_function_is_the_limit_or_unknown(script: Script) -> None:
    spec = script("for _ in range(5): yield np.zeros((2, 3), np.float32)")
    assert Data(spec, [X]).total is None
    limited = Data(spec, [X], limit=3)
    assert limited.total == 3
    assert [batch.samples for batch in limited] == [2, 1]


def test_a_limit_does_not_cut_a_batch_that_cannot_be_split(script: Script) -> None:
    scale = TensorInfo("scale", "float32", ())
    spec = script("for _ in range(3): yield np.zeros((4, 3), np.float32), np.float32(2)")
    assert [made.samples for made in Data(spec, [X, scale], limit=10)] == [4, 4]


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
    found = [all_of(partial(data().select_batches, partial(held, part, parts))) for part in range(parts)]
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


def test_each_image_is_decoded_by_one_of_the_parts(tmp_path: Path, decoded: list[str]) -> None:
    spec = write("images", tmp_path, [23])
    for part in range(4):
        before = len(decoded)
        batches = list(Data(spec, inputs_of("images"), batch_size=2).select_batches(partial(held, part, 4)))
        assert len(decoded) - before == sum(batch.samples for batch in batches) == (5 if part == 3 else 6)
    assert sorted(decoded) == sorted(map(str, Path(spec).rglob("*.png")))


def test_of_other_files_of_arrays_only_the_heads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = arrays.load_arrays
    monkeypatch.setattr(arrays, "load_arrays", lambda path: loaded.append(path.name) or load(path))
    spec = write("folder", tmp_path, [2] * 9)
    assert len(list(Data(spec, [X]).select_batches(partial(held, 1, 3)))) == 3
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
    part = Data(str(tmp_path / "t.txt"), inputs, batch_size=2).select_batches(partial(held, 1, 2))
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
            list(Data(spec, [X], batch_size=4).select_batches(partial(held, part, 2)))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 200), samples=st.integers(1, 40), behind=st.sampled_from([0, 5, 32]))
def test_samples_that_are_spread_lie_evenly_over_all_of_an_array(
    count: int, samples: int, behind: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = npz(tmp_path_factory.mktemp("spread") / "data.npz", x=rows(count))
    spread = Data(spec, [X]).spread(samples, behind=behind)
    numbers = [int(row[0]) for feeds in spread.batches for row in feeds["x"]]
    first = behind if count - behind >= samples else 0
    taken = min(samples, count)
    assert len(numbers) == spread.samples == taken
    part = (count - first) / taken
    assert all(first + n * part - 1 <= number < first + (n + 1) * part for n, number in enumerate(numbers))
    unit = "sample" if count == 1 else "samples"
    assert str(spread) == (f"{taken} {unit}" if taken == count else f"{taken} of {count} {unit}, spread")


def test_samples_of_a_function_are_spread_in_one_pass_without_keeping_the_rest(script: Script) -> None:
    text = "for i in range(128): yield np.repeat(np.arange(4 * i, 4 * i + 4, dtype='f4')[:, None], 3, 1)"
    spread = Data(script(text), [X]).spread(16, behind=32)
    numbers = [int(row[0]) for feeds in spread.batches for row in feeds["x"]]
    assert len(numbers) == 16
    assert min(numbers) >= 32
    assert 20 <= min(np.diff(numbers)) <= max(np.diff(numbers)) <= 50
    assert [len(feeds["x"]) for feeds in spread.batches] == [4, 4, 4, 4]
    assert str(spread) == "16 of 512 samples, spread"


def test_a_function_that_never_ends_is_read_up_to_a_limit(script: Script) -> None:
    spread = Data(script("while True: yield np.zeros((5, 3), 'f4')"), [X]).spread(16)
    assert str(spread) == "16 of the first 2050 samples, spread"


def test_a_limit_can_take_samples_from_all_of_the_data(script: Script, tmp_path: Path) -> None:
    spec = npz(tmp_path / "data.npz", x=rows(40))
    assert samples_of(list(Data(spec, [X], limit=4, is_spread=True))) == [5, 15, 25, 35]
    text = "for i in range(40): yield np.full((1, 3), i, 'f4')"
    numbers = samples_of(list(Data(script(text), [X], limit=4, is_spread=True)))
    assert len(numbers) == 4
    assert max(numbers) >= 30
