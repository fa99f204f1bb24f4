"""Models, samples and runs for the tests of calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from written_models import computed, model_of

from qcompile.calibration import Ranges, load_ranges, observe
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.data.batches import Data
from qcompile.model.graph.onnx_file import read_weightless

MakePath = Callable[..., Path]
Array = NDArray[Any]
Said = list[tuple[str, int, int | None]]

# Machines share these cores: an example that once takes long is not an error.
property_test = settings(deadline=None, max_examples=12)

COUNT = 13
DEADLINE_S = 120


def save(path: Path, body: str, signature: str, **weights: Array) -> Path:
    """A model file from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    onnx.save(model_of(f"{signature} {{ {body} }}", **weights), path)
    return path


def normal(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def npz(path: Path, **arrays: Array) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


FUNCTION = """
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def samples():
    for index, path in enumerate(sorted(HERE.glob("*.npy"))):
        if (HERE / f"fail {index}").exists():
            raise RuntimeError("the disk is gone")
        if (HERE / f"hang {index}").exists():
            (HERE / "hanging").touch()
            time.sleep(600)
        yield np.load(path)
"""


def function_of(folder: Path, batches: Sequence[Array]) -> str:
    """The spelling of a function that yields these batches.

    Before a batch it fails or hangs if a file of that name lies beside it, as `fail 3`.
    """
    folder.mkdir()
    (folder / "data.py").write_text(FUNCTION)
    for index, batch in enumerate(batches):
        np.save(folder / f"{index:03}.npy", batch)
    return f"{folder / 'data.py'}:samples"


def function_from(folder: Path, body: str) -> str:
    """The spelling of a function with this body."""
    folder.mkdir(exist_ok=True)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (folder / "data.py").write_text(f"import numpy as np\ndef samples():\n{lines}")
    return f"{folder / 'data.py'}:samples"


def half_product(path: Path) -> Path:
    """A float16 product of 200s, whose results are rounded, or overflow."""
    w = np.full((4, 8), 200, np.float16)
    return save(path, "a = MatMul(x, w) y = Sigmoid(a)", "(float16[n, 4] x) => (float16[n, 8] y)", w=w)


def ranges_of(model: Path, data: str | Path, output: Path, **options: Any) -> Ranges:
    return load_ranges(calibrate(model, str(data), output, method="minmax", **options).path)


def observed(model: Path, data: str | Path, **options: Any) -> Ranges:
    weightless = read_weightless(model)
    limit = options.pop("limit", None)
    return observe(weightless, Data(str(data), weightless.io.inputs, batch_size=1, limit=limit), **options)


def assert_equal(found: Ranges, expected: Ranges) -> None:
    assert found.samples == expected.samples
    assert found.histograms.keys() == expected.histograms.keys()
    for name, histogram in expected.histograms.items():
        again = found.histograms[name]
        assert (again.exponent, again.min, again.max) == (histogram.exponent, histogram.min, histogram.max)
        np.testing.assert_array_equal(again.counts, histogram.counts)


def plain(model: Path, names: Sequence[str], feeds: Sequence[dict[str, Array]]) -> dict[str, list[Array]]:
    """What a plain session computes, one inference at a time."""
    found: dict[str, list[Array]] = {name: [] for name in names}
    for fed in feeds:
        inside = [name for name in names if name not in fed]
        arrays = fed | (computed(model, fed, *inside, optimize=True) if inside else {})
        for name in names:
            found[name].append(arrays[name])
    return found


def assert_counts(histogram: Histogram, arrays: Sequence[Array]) -> None:
    """The histogram counts the floor of each value divided by a width that the largest one decides."""
    values = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)
    exponent = int(np.frexp(np.abs(values).max())[1]) - 11
    bins, counts = np.unique(np.floor(values / 2.0**exponent), return_counts=True)
    assert (histogram.exponent, histogram.min, histogram.max) == (exponent, values.min(), values.max())
    filled = np.flatnonzero(histogram.counts)
    np.testing.assert_array_equal(filled - BINS, bins)
    np.testing.assert_array_equal(histogram.counts[filled], counts)


class Interrupted:
    """A progress that interrupts after so many samples, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        self.left -= text == "calibrate"
        if self.left < 0:
            raise KeyboardInterrupt


class Listener:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.said: Said = []

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        self.said.append((text, done, total))

    def continued(self) -> list[int]:
        """After how many samples a calibration went on."""
        return [done for text, done, _ in self.said if text == f"continue after {done} samples"]


def interrupt(model: Path, data: str, checkpoint: Path, after: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        observed(
            model, data, checkpoint=checkpoint, checkpoint_every_s=0, progress=Interrupted(after), **options
        )


SAMPLES = normal(COUNT, 3, 6, 6)
