"""Decoding in parallel: in order, within a bound, and ended by its reader."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qcompile.data.batches import Data
from qcompile.data.readers import AHEAD, in_order
from qcompile.model.preprocessing import ImagePreprocessing, as_json
from qcompile.tensors import TensorInfo


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_order_whoever_is_first(threads: int) -> None:
    def slow(number: int) -> int:
        time.sleep(0.002 * (number % 3 == 0))
        return number * number

    assert list(in_order(slow, range(40), threads=threads)) == [number * number for number in range(40)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_no_more_is_begun_than_the_bound(threads: int) -> None:
    begun: list[int] = []

    def note(number: int) -> int:
        begun.append(number)
        return number

    results = in_order(note, iter(range(10_000)), threads=threads)
    for taken in range(1, 20):
        next(results)
        time.sleep(0.001)
        assert len(begun) <= taken + AHEAD * threads
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 20 + AHEAD * threads


def test_an_exception_stands_where_its_item_does_and_ends_the_threads() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number

    before, results = threading.active_count(), in_order(fail, range(100), threads=3)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)
    assert threading.active_count() == before


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupted_reader_leaves_no_threads(stop: type[BaseException]) -> None:
    before, begun = threading.active_count(), []

    def note(number: int) -> int:
        begun.append(number)
        return number

    results = in_order(note, range(10_000), threads=3)
    next(results)
    with pytest.raises(stop):
        results.throw(stop)  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(begun) < 20


def test_a_large_folder_is_not_read_further_ahead_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number:03}.png")
    from qcompile.data import images, readers

    begun: list[str] = []
    real = images.decode

    def noting(path: Path, mode: str, where: str) -> Image.Image:
        begun.append(where)
        return real(path, mode, where)

    monkeypatch.setattr(images, "decode", noting)
    said = ImagePreprocessing(input="x", height=4, width=4)
    info = TensorInfo("x", "float32", ("n", 3, 4, 4), preprocessing=as_json(said))
    batches = iter(Data(str(tmp_path), [info], batch_size=3))
    for taken in range(1, 5):
        batch = next(batches)
        first = np.rint(batch.feeds["x"][:, 0, 0, 0] * 255).tolist()
        assert first == [3 * taken - 3, 3 * taken - 2, 3 * taken - 1]
        assert len(begun) <= 3 * taken + AHEAD * readers.threads_for_reading()
    batches.close()  # type: ignore[attr-defined]
    before = threading.active_count()
    assert next(iter(Data(str(tmp_path), [info]))).samples == 8
    assert threading.active_count() == before
