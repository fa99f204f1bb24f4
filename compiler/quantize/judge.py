"""Judge a quantized graph by its outputs' error against the float model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import temporary_folder
from ...model.judgement import Judgement, judge_outputs
from ...model.onnx_file import load_onnx, save_onnx
from ...model.random_input import run_on
from ...processor import why_not_exact
from ...spec.words import BLOCK_FORMATS
from ...tensors import Feeds
from ..check import OnnxReference
from ..opset.plain_forms import scatter_adds_to_products
from .blocks.simulate import simulated
from .half.emulate import in_float32
from .request import QuantizeRequest

JUDGED_ON = 16
"""Samples on which candidates are compared, after those from which they learn."""

_LEARNT_FROM = 32


def reference(request: QuantizeRequest, path: Path) -> OnnxReference:
    """What runs the result: ONNX Runtime's CPU.

    It has next to no kernels for bfloat16, and none that adds float16 at indices: both are rewritten. Halves
    for another runtime are not optimized: casts between kernels would go, and the rounding with them. Nor is
    FP8: its optimizer computes what is stored wrongly (1.31.1). NVFP4 and MXFP8 are rounded by arithmetic.
    """
    optimize = request.spec.target == "onnxruntime" and not why_not_exact(request.spec.isa)
    kinds = {request.spec.precision, request.spec.floats, *request.spec.layer_precisions.values()}
    if not kinds & {"bf16", "fp16", *BLOCK_FORMATS}:
        return OnnxReference(path, optimize="fp8" not in kinds, integers=optimize)
    model = load_onnx(path)
    changed = not optimize and bool(scatter_adds_to_products(model))
    if kinds & set(BLOCK_FORMATS):
        model, changed = simulated(model), True
    if "bf16" in kinds:
        model, changed = in_float32(model), True
    if not changed:
        return OnnxReference(path, optimize=optimize)
    with temporary_folder("emulated") as folder:
        emulated = folder / path.name
        save_onnx(model, emulated)
        return OnnxReference(emulated, optimize=optimize)


@dataclass(frozen=True)
class Judged:
    """What the outputs of a quantized graph are worth.

    Attributes:
        outputs: The verdict on each.
        snr_db: Signal-to-noise ratio of the worst output of floats, in decibels: -inf where one became NaN or
            infinite that was not, inf where there is none.
        broken: Name of an output that became NaN or infinite.
    """

    outputs: tuple[Judgement, ...]
    snr_db: float
    broken: str = ""

    @property
    def failed(self) -> list[Judgement]:
        """What `diff` would not let pass."""
        return [one for one in self.outputs if not one.passed]


class Judge:
    """The float model's outputs on some samples, or on random input, and what others' are worth beside them.

    Args:
        request: Whose data and float model.

    Raises:
        DataError, ModelError: If samples do not fit, or the model fails on them.
    """

    def __init__(self, request: QuantizeRequest) -> None:
        self._request = request
        expected = OnnxReference(request.path)
        if request.spec.data is None:
            feeds, outputs = run_on(request.model, None, expected)
            self._feeds, batches = [feeds], [outputs]
        else:
            self._feeds = _judging(request)
            batches = [expected(feeds) for feeds in self._feeds]
        self._expected = dict(zip(expected.names, map(list, zip(*batches, strict=True)), strict=True))

    def written(self, write: Callable[[Path], object]) -> Judged:
        """Judge a graph that `write` writes to a path."""
        with temporary_folder("candidate") as folder:
            path = folder / "candidate.onnx"
            write(path)
            return self.file(path)

    def file(self, path: Path) -> Judged:
        """Judge the graph of a file, all samples together."""
        run = reference(self._request, path)
        outputs = list(zip(*(run(feeds) for feeds in self._feeds), strict=True))
        actual = dict(zip(run.names, map(list, outputs), strict=True))
        judged = tuple(judge_outputs(self._expected, actual))
        floats = {name for name, batches in self._expected.items() if batches[0].dtype.kind == "f"}
        broken = [name for name in floats if any(map(_breaks, self._expected[name], actual[name]))]
        worst = min((one.snr_db for one in judged if one.output in floats), default=float("inf"))
        return Judged(judged, worst, min(broken, default=""))


def _judging(request: QuantizeRequest) -> list[Feeds]:
    """Samples behind those that are learnt from; the last of them where there are no more."""
    data = request.samples(_LEARNT_FROM + JUDGED_ON)
    ends: list[tuple[int, Feeds]] = []
    seen = 0
    for batch in data:
        seen += 1 if data.is_fixed else batch.samples
        ends.append((seen, batch.feeds))
    first = min(_LEARNT_FROM, max(seen - JUDGED_ON, 0))
    return [feeds for last, feeds in ends if last > first]


def _breaks(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    return bool(np.any(np.isfinite(expected) & ~np.isfinite(actual)))
