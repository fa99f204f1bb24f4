"""How near a quantized graph comes to the float model, on samples: what candidates are chosen by."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.fidelity import decibels
from ..model.onnx_file import load_onnx, save_onnx
from ..shapes import Feeds
from .check import OnnxReference
from .half.emulate import in_float32
from .request import Request
from .scatter_adds import scatter_adds_to_products

JUDGED_ON = 16
"""Samples on which candidates are compared, after those from which they learn."""

_LEARNT_FROM = 32


def reference(request: Request, path: Path) -> OnnxReference:
    """What runs the result: ONNX Runtime's CPU.

    It has next to no kernels for bfloat16, and none that adds float16 at indices: both are rewritten.
    """
    optimize = request.target == "onnxruntime"
    kinds = {request.precision, request.rest, *request.layers.values()}
    if not kinds & {"bf16", "fp16"}:
        return OnnxReference(path, optimize=optimize)
    model = load_onnx(path)
    changed = not optimize and bool(scatter_adds_to_products(model))
    if "bf16" in kinds:
        model, changed = in_float32(model), True
    if not changed:
        return OnnxReference(path, optimize=optimize)
    with tempfile.TemporaryDirectory(prefix="qcompile-emulated-") as folder:
        emulated = Path(folder) / path.name
        save_onnx(model, emulated)
        return OnnxReference(emulated, optimize=optimize)


class Judge:
    """The float model's outputs on some samples, and the signal-to-noise ratio of others' to them.

    Args:
        request: Whose data and float model.

    Raises:
        DataError, ModelError: If samples do not fit, or the model fails on them.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._feeds = _judging(request)
        expected = OnnxReference(request.path)
        self._expected = [expected(feeds) for feeds in self._feeds]

    def snr_db(self, write: Callable[[Path], object]) -> float:
        """Return the signal-to-noise ratio of the worst output over all samples, in decibels.

        -inf where an output becomes NaN or infinite that was not; outputs of integers are not looked at.

        Args:
            write: Writes the candidate to a path.
        """
        with tempfile.TemporaryDirectory(prefix="qcompile-candidate-") as folder:
            path = Path(folder) / "candidate.onnx"
            write(path)
            candidate = reference(self._request, path)
            powers: dict[int, NDArray[np.float64]] = {}
            for feeds, expected in zip(self._feeds, self._expected, strict=True):
                for index, (wanted, found) in enumerate(zip(expected, candidate(feeds), strict=True)):
                    if wanted.dtype.kind == "f":
                        powers[index] = powers.get(index, np.zeros(2)) + _powers(wanted, found)
        return min((decibels(*map(float, power)) for power in powers.values()), default=float("inf"))


def _judging(request: Request) -> list[Feeds]:
    """Samples behind those that are learnt from; the last of them where there are no more."""
    data = request.samples(_LEARNT_FROM + JUDGED_ON)
    found: list[tuple[int, Feeds]] = []
    seen = 0
    for batch in data:
        seen += 1 if data.is_fixed else batch.samples
        found.append((seen, batch.feeds))
    first = min(_LEARNT_FROM, max(seen - JUDGED_ON, 0))
    return [feeds for last, feeds in found if last > first]


def _powers(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[np.float64]:
    """Of the signal and of the noise, where the signal is finite."""
    finite = np.isfinite(expected)
    signal = expected[finite].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        noise = float(np.square(found[finite].astype(np.float64) - signal).sum())
    return np.array([np.square(signal).sum(), noise if np.isfinite(noise) else np.inf])
