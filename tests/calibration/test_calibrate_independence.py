"""Ranges depend on the values alone: not on batches, order, threads, layout or storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from calibrated import (
    COUNT,
    SAMPLES,
    MakePath,
    assert_counts,
    assert_equal,
    function_of,
    observed,
    plain,
    property_test,
)
from hypothesis import given
from hypothesis import strategies as st

from qcompile.calibration import Ranges, calibrate, observe
from qcompile.calibration.taps import choose_taps
from qcompile.data.batches import Data
from qcompile.model.weightless import read_weightless


def batches_in_any_order() -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """The order of the samples, and where to cut it."""
    cuts = st.sets(st.integers(1, COUNT - 1)).map(sorted)
    return st.tuples(st.permutations(range(COUNT)), cuts)


@property_test
@given(batches_in_any_order(), st.integers(1, 3))
def test_neither_batches_nor_order_nor_threads_leave_a_trace(
    network: Path,
    whole: Ranges,
    tmp_path_factory: pytest.TempPathFactory,
    ordered: tuple[list[int], list[int]],
    threads: int,
) -> None:
    order, cuts = ordered
    spec = function_of(tmp_path_factory.mktemp("batches") / "d", np.split(SAMPLES[order], cuts))
    assert_equal(observed(network, spec, threads=threads), whole)


def test_an_npz_and_a_folder_of_the_same_samples_give_the_same(
    network: Path, data: str, whole: Ranges, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "0.npy", SAMPLES[0])
    np.save(folder / "1.npy", SAMPLES[1:6])
    np.savez_compressed(folder / "2.npz", x=SAMPLES[6:], labels=np.arange(7))
    assert_equal(observed(network, folder), whole)
    inputs = read_weightless(network).io.inputs
    assert_equal(observe(network, Data(data, inputs, batch_size=5)), whole)


def test_samples_that_are_mapped_and_cannot_be_written_are_counted(
    network: Path, whole: Ranges, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    body = f"    yield from np.split(np.load({str(tmp_path / 'x.npy')!r}, mmap_mode='r'), [1, 4])"
    (tmp_path / "data.py").write_text(f"import numpy as np\ndef samples():\n{body}\n")
    assert_equal(observed(network, f"{tmp_path / 'data.py'}:samples"), whole)


def test_a_model_with_large_activations_gets_fewer_workers_and_the_same_counts(
    network: Path, data: str, whole: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcompile.calibration.workers.IN_FLIGHT_BYTES", 1)
    assert_equal(observed(network, data, threads=3), whole)


def test_the_same_calibration_gives_the_same_bytes(network: Path, data: str, tmp_path: Path) -> None:
    files = [
        calibrate(network, data, tmp_path / f"{threads}.ranges", threads=threads).path.read_bytes()
        for threads in (1, 2, 0)
    ]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_histograms_count_what_onnx_runtime_computes_for_each_sample(
    tiny_file: MakePath, samples: MakePath, name: str
) -> None:
    model, path = tiny_file(name), samples(name, 8)
    found = observed(model, path)
    assert sorted(found.histograms) == sorted(choose_taps(onnx.load(model)).names)
    assert "labels" not in found.histograms
    with np.load(path) as arrays:
        feeds = [{"x": row[None]} for row in arrays["x"]]
    for tensor, arrays in plain(model, list(found.histograms), feeds).items():
        assert_counts(found.histograms[tensor], arrays)
