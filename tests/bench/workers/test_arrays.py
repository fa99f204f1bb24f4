"""Tensors of any name go to a worker and come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import qcompile
from qcompile.bench.workers.arrays import load_array, load_arrays, save_arrays
from qcompile.comparison.layers import layer_diff

pytestmark = pytest.mark.usefixtures("short_blocks")

NAMES = ["file", "allow_pickle", "x", "x.npy", ":x:", ":", "a/b", "../up", "/root", "self", "kwds", "名", ""]


def test_names_that_numpy_keeps_for_itself_and_paths_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    arrays = {name: np.full(3, number, np.float32) for number, name in enumerate(NAMES)}
    save_arrays(folder / "all.npz", arrays)
    found = load_arrays(folder / "all.npz")
    assert list(found) == NAMES
    for name, array in arrays.items():
        assert (found[name] == array).all()
        assert (load_array(folder / "all.npz", name) == array).all()
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "all.npz"]


def test_files_that_numpy_wrote_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(2), y=np.zeros(2))
    assert list(load_arrays(tmp_path / "x.npz")) == ["x", "y"]
    assert load_array(tmp_path / "x.npz", "x").sum() == 2


def test_texts_that_are_objects_become_numpys_texts(tmp_path: Path) -> None:
    texts = np.array(["a", "漢字", ""], dtype=object)
    save_arrays(tmp_path / "t.npz", {"texts": texts})
    loaded = load_arrays(tmp_path / "t.npz")["texts"]
    assert loaded.dtype.kind == "U"
    assert loaded.tolist() == texts.tolist()


def test_objects_are_never_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pickle"):
        save_arrays(tmp_path / "x.npz", {"x": np.array([object()])})


def test_tensors_called_file_and_allow_pickle_are_compared_and_measured(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["file", "../up"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["allow_pickle"]),
        ],
        "names",
        [helper.make_tensor_value_info(name, 1, ["batch", 3]) for name in ("file", "../up")],
        [helper.make_tensor_value_info("allow_pickle", 1, ["batch", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "names.onnx"
    onnx.save(model, path)
    assert qcompile.diff(str(path), str(path))
    assert layer_diff(str(path), str(path), samples=2)
    results = qcompile.benchmark([str(path)], baseline=str(path), threads=1, max_time_s=0.01)
    assert [row.status for row in results.rows] == ["measured"]
