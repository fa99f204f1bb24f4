"""What `benchmarks/gpu_worker.py` feeds an engine with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qcompile.tensors import ModelIO, TensorInfo


def test_feeds_are_paired_with_inputs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import gpu_worker

    inputs = tuple(TensorInfo(name, "int32", (2,)) for name in ("mask", "tokens"))  # the engine's own order
    runner = SimpleNamespace(io=ModelIO(inputs, ()))
    monkeypatch.setattr(gpu_worker, "open_engine", lambda _: runner)
    np.savez(tmp_path / "x.npz", tokens=np.array([5, 6], np.int64), mask=np.array([1, 0], np.int64))
    feeds = gpu_worker.engine_subject({"feeds": tmp_path / "x.npz"}).feeds
    assert {name: array.tolist() for name, array in feeds.items()} == {"mask": [1, 0], "tokens": [5, 6]}
    assert {array.dtype.name for array in feeds.values()} == {"int32"}
