"""Models to observe, and a plain session as their oracle."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from written_models import computed, text_model

from qcompile.calibration.taps import choose_taps
from qcompile.calibration.workers import open_observer
from qcompile.model.graph.onnx_file import read_weightless

Array = NDArray[Any]

Arrays = dict[str, Array]


MATRIX = "(float[n, 4] x) => (float[n, m] y)"


def model(body: str, signature: str = MATRIX, **options: Any) -> onnx.ModelProto:
    """A model from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    return text_model(f"{signature} {{ {body} }}", also=', "custom" : 1', **options)


def normal(*shape: int, dtype: str = "float32") -> Array:
    return np.asarray(np.random.default_rng(list(shape)).standard_normal(shape) * 0.3).astype(dtype)


def saved(made: onnx.ModelProto, path: Path) -> Path:
    onnx.save(made, path)
    return path


def observed(path: Path, feeds: Arrays, wanted: Collection[str] | None = None, threads: int = 1) -> Arrays:
    """What the observer returns."""
    weightless = read_weightless(path)
    taps = choose_taps(weightless.model, wanted)
    assert not taps.skipped
    with open_observer(weightless, taps, threads) as observer:
        pairs = observer.run(feeds, "here")
        again = observer.run(feeds, "here")
    found = dict(pairs)
    assert len(pairs) == len(found)
    assert sorted(found) == sorted(name for name in taps.names if name not in feeds)
    for name, array in again:
        np.testing.assert_array_equal(array, found[name])
    return found


def expected(path: Path, names: Collection[str], feeds: Arrays) -> Arrays:
    """What a plain session returns for the same tensors."""
    return computed(path, feeds, *names, optimize=True)


def assert_same_values(found: Arrays, oracle: Arrays) -> None:
    assert found.keys() == oracle.keys()
    for name, array in oracle.items():
        assert found[name].dtype == array.dtype
        # Equal counts of values, too: the padding of a blocked layout would be too many.
        np.testing.assert_array_equal(np.sort(found[name], axis=None), np.sort(array, axis=None), name)


def assert_observed(path: Path, feeds: Arrays, wanted: Collection[str] | None = None) -> Arrays:
    found = observed(path, feeds, wanted)
    assert_same_values(found, expected(path, list(found), feeds))
    return found
