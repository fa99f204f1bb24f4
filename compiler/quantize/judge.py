"""Compare the outputs of a candidate, a quantized graph that the search tries, with the float model's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import starmap
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...core.processor import isa_here, why_not_exact
from ...model.graph.choices import Place, part_before, selecting_operators, selection_inputs
from ...model.graph.graph_rules import graph_rules
from ...model.graph.onnx_file import Graph
from ...model.outputs.judgement import decibels, judge_outputs
from ...model.outputs.masks import not_finite
from ...model.outputs.output_forms import OutputForm, Parts, output_forms
from ...model.sessions.random_input import run_on
from ...spec.tensors import Feeds
from ...spec.words import CPU_TARGETS, HALVES
from ..check import OnnxReference
from .half.casts import in_float32
from .request import Outcome, OutputQuality, QuantizeRequest

JUDGED_ON = 16
"""Samples for comparing candidates, spread over those behind the first `_LEARNT_FROM` samples."""

_LEARNT_FROM = 32  # first samples, from which scales, biases and factors are computed
_VARYING, _VARYING_SHARE = 8, 1e-4  # minimum number of samples; minimum varying share of an output's energy
_SUM, _LEAST = 1e-3, 1e-7  # rows of probabilities: tolerance of the sum 1; lower bound before the logarithm


def reference(request: QuantizeRequest, model: onnx.ModelProto, run: OnnxReference | None) -> OnnxReference:
    """Return a session of ONNX Runtime's CPU provider for a result; `run` if that session fits.

    The provider has few half kernels: between nodes that it computes in float32 values are not rounded, and
    values beyond float16 remain finite. So half types become float32 with explicit rounding (`in_float32`).
    FP8 runs without the optimizer, which computes stored values incorrectly (1.31.1).

    Convolutions for OpenVINO use integer kernels, too: they differ from Q/DQ pairs in float by rounding only,
    and take a third of the time (ResNet-50). Not on AVX2, where each runtime adds other products in 16 bits.
    """
    optimize = graph_rules(request.spec.target).by_onnxruntime and not why_not_exact(request.spec.isa)
    convolves = request.spec.target in CPU_TARGETS and any(n.op_type == "Conv" for n in model.graph.node)
    integers = optimize or (convolves and isa_here() != "avx2")
    kinds = {request.spec.precision, request.spec.floats, *request.spec.layer_precisions.values()}
    if not kinds & {"bf16", "fp16"}:
        if run is not None and optimize and "fp8" not in kinds:
            return run
        graph = Graph(model, request.path)
        return OnnxReference(graph, optimize="fp8" not in kinds, integers=integers, layouts=integers)
    for half in kinds & {*HALVES}:
        model = in_float32(model, HALVES[half])
    return OnnxReference(Graph(model, request.path), optimize=optimize)


class Judge:
    """Rates quantized graphs against the float model's outputs on samples or random input."""

    def __init__(self, request: QuantizeRequest) -> None:
        self._request, self._spread = request, ""

    @cached_property
    def _places(self) -> list[Place]:
        return selection_inputs(self._request.model)

    def _part(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the compared part of a graph: all of it, or everything in front of a choice of elements."""
        return part_before(model, self._places) if self._places else model

    @cached_property
    def _float(self) -> Graph:
        """The compared part of the float model."""
        request = self._request
        return Graph(self._part(request.model), request.path) if self._places else request.graph

    @property
    def place(self) -> str:
        """The number of samples, and the operators in front of which tensors are compared, as text."""
        _ = self._samples
        samples = f" ({self._spread})" if self._spread else ""
        return (
            f"{samples}, in front of {selecting_operators(self._request.model)}" if self._places else samples
        )

    @cached_property
    def _forms(self) -> dict[str, OutputForm]:
        """Forms of the outputs, from the graph and the user's rules."""
        forms = output_forms(self._request.model, self._request.spec.rules)
        if not self._places:
            return forms
        parts = output_forms(self._float.model)
        return {
            name: forms[name] if name in forms else replace(part, rule="signal")
            for name, part in parts.items()
        }

    @cached_property
    def _samples(self) -> tuple[list[Feeds], dict[str, list[NDArray[Any]]]]:
        """The feeds of each batch, and the float model's outputs by name."""
        request = self._request
        run = OnnxReference(self._float)
        if request.spec.data is None:
            feeds, outputs = run_on(request.model, None, run)
            all_feeds, batches = [feeds], [outputs]
        else:
            spread = request.samples(None).spread(JUDGED_ON, behind=_LEARNT_FROM)
            all_feeds, self._spread = spread.batches, str(spread)
            batches = [run(feeds) for feeds in all_feeds]
        return all_feeds, dict(zip(run.names, map(list, zip(*batches, strict=True)), strict=True))

    def __call__(self, outcome: Outcome) -> OutputQuality:
        """Return the comparison of a quantized model over all samples."""
        as_executed = None if self._places else outcome.run
        run = reference(self._request, self._part(outcome.model), as_executed)
        all_feeds, required = self._samples
        outputs = list(zip(*(run(feeds) for feeds in all_feeds), strict=True))
        actual = dict(zip(required if self._places else run.names, map(list, outputs), strict=True))
        judged = tuple(judge_outputs(required, actual, self._forms))
        floats = {name for name, batches in required.items() if batches[0].dtype.kind == "f"}
        pairs = {name: zip(required[name], actual[name], strict=True) for name in floats}
        broken = [
            name
            for name, batches in pairs.items()
            if any(array.any() for array in starmap(not_finite, batches))
        ]
        worst = {one.output: one.snr_db for one in judged if one.output in floats}
        varying = {name: varying_db(required[name], actual[name], self._forms[name].parts) for name in floats}
        choices = [
            min(plain, varying[name])
            if (logits := logits_db(required[name], actual[name])) is None
            else logits
            for name, plain in worst.items()
        ]
        snr, varied, choice = (
            min(values, default=math.inf) for values in (worst.values(), varying.values(), choices)
        )
        return OutputQuality(judged, snr, varied, choice, min(broken, default=""))


def logits_db(required: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]]) -> float | None:
    """Return the signal-to-noise ratio of the logits behind probabilities, less each row's mean, in decibels.

    None if the rows are not probabilities, or do not differ. Probabilities near 0 and 1 are unreliable:
    for a classifier (trained on digits) a method had 54.9 dB on the samples of the comparison, 30.5 on 500.
    """
    signal = noise = 0.0
    for expected, computed in zip(required, actual, strict=True):
        if expected.ndim < 2 or expected.shape[-1] < 2 or not expected.size or expected.min() < 0:
            return None
        if not np.allclose(expected.sum(axis=-1), 1, atol=_SUM):
            return None
        x, y = (np.log(np.maximum(side.astype(np.float64), _LEAST)) for side in (expected, computed))
        x, y = (side - side.mean(axis=-1, keepdims=True) for side in (x, y))
        signal, noise = signal + float((x**2).sum()), noise + float(((x - y) ** 2).sum())
    return decibels(signal, noise) if noise else None


def varying_db(
    required: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]], parts: Parts | None = None
) -> float:
    """Return the SNR in decibels of an output's worst part, less its mean over the samples.

    It is infinite for less than eight samples, different shapes, and outputs that do not vary.
    """
    if len({array.shape[1:] for array in required}) > 1 or not required[0].ndim:
        return math.inf
    a, b = (np.concatenate(side).astype(np.float64) for side in (required, actual))
    if len(a) < _VARYING or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    axis, ends = (parts.axis, parts.ends[:-1]) if parts is not None and parts.axis else (1, ())
    worst = math.inf
    for x, y in zip(*(np.split(side, ends, axis) if len(ends) else [side] for side in (a, b)), strict=True):
        signal = float(((x - x.mean(0)) ** 2).sum())
        if signal > _VARYING_SHARE * float((x**2).sum()):
            worst = min(worst, decibels(signal, float(((x - y) ** 2).sum())))
    return worst
