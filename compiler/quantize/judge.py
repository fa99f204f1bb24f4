"""What a candidate of quantization is worth: its outputs beside the float model's."""

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
from ...model.graph.choices import Place, before_choices, chosen_by, part_before
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
from .request import Judged, Outcome, QuantizeRequest

JUDGED_ON = 16
"""Samples on which candidates are compared, spread over those behind the ones from which they learn."""

_LEARNT_FROM = 32
_VARYING, _VARYING_SHARE = 8, 1e-4  # so many samples; such a share of an output's energy
_SUM, _LEAST = 1e-3, 1e-7  # of a row of probabilities: how far from 1, and what is told from 0


def reference(request: QuantizeRequest, model: onnx.ModelProto, run: OnnxReference | None) -> OnnxReference:
    """What runs the result: ONNX Runtime's CPU; `run` where the model is run as it executes it.

    It has few kernels for halves, and rounds nothing between two nodes that it computes in float32: what
    float16 cannot hold stays finite. So each result is rounded as the graph says. FP8 is not optimized: its
    optimizer computes what is stored wrongly (1.31.1).

    Convolutions for OpenVINO are computed in integers, too: rounding apart they are what pairs of floats are,
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
    """The float model's outputs on some samples, or on random input, which others are judged by."""

    def __init__(self, request: QuantizeRequest) -> None:
        self._request, self._spread = request, ""

    @cached_property
    def _places(self) -> list[Place]:
        return before_choices(self._request.model)

    def _part(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """What is compared of a graph: all of it, or what a choice of elements reads."""
        return part_before(model, self._places) if self._places else model

    @cached_property
    def _float(self) -> Graph:
        """What is compared of the float model."""
        request = self._request
        return Graph(self._part(request.model), request.path) if self._places else request.graph

    @property
    def place(self) -> str:
        """On how many samples, and in front of which operators tensors are compared, in words."""
        _ = self._samples
        samples = f" ({self._spread})" if self._spread else ""
        return f"{samples}, in front of {chosen_by(self._request.model)}" if self._places else samples

    @cached_property
    def _forms(self) -> dict[str, OutputForm]:
        """What the graph and the user say of the outputs."""
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
        """The feeds of each batch, and the float model's outputs by name, computed once."""
        request = self._request
        run = OnnxReference(self._float)
        if request.spec.data is None:
            feeds, outputs = run_on(request.model, None, run)
            every, batches = [feeds], [outputs]
        else:
            spread = request.samples(None).spread(JUDGED_ON, behind=_LEARNT_FROM)
            every, self._spread = spread.batches, str(spread)
            batches = [run(feeds) for feeds in every]
        return every, dict(zip(run.names, map(list, zip(*batches, strict=True)), strict=True))

    def __call__(self, outcome: Outcome) -> Judged:
        """Judge a quantized model, all samples together."""
        as_executed = None if self._places else outcome.run
        run = reference(self._request, self._part(outcome.model), as_executed)
        every, required = self._samples
        outputs = list(zip(*(run(feeds) for feeds in every), strict=True))
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
        chosen = [
            min(plain, varying[name])
            if (logits := logits_db(required[name], actual[name])) is None
            else logits
            for name, plain in worst.items()
        ]
        snr, varied, choice = (
            min(values, default=math.inf) for values in (worst.values(), varying.values(), chosen)
        )
        return Judged(judged, snr, varied, choice, min(broken, default=""))


def logits_db(required: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]]) -> float | None:
    """Return the signal-to-noise ratio of what a Softmax read, but for a constant of each row, in decibels.

    None where an output's rows are no probabilities, or equal. Probabilities next to 0 and 1 tell little: of
    a classifier (trained on digits) a method had 54.9 dB on the samples that judged, and 30.5 on 500.
    """
    signal = noise = 0.0
    for expected, found in zip(required, actual, strict=True):
        if expected.ndim < 2 or expected.shape[-1] < 2 or not expected.size or expected.min() < 0:
            return None
        if not np.allclose(expected.sum(axis=-1), 1, atol=_SUM):
            return None
        x, y = (np.log(np.maximum(side.astype(np.float64), _LEAST)) for side in (expected, found))
        x, y = (side - side.mean(axis=-1, keepdims=True) for side in (x, y))
        signal, noise = signal + float((x**2).sum()), noise + float(((x - y) ** 2).sum())
    return decibels(signal, noise) if noise else None


def varying_db(
    required: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]], parts: Parts | None = None
) -> float:
    """Return the signal-to-noise ratio of an output less its mean over the samples, of its worst part.

    Infinite with fewer than eight samples, samples of several shapes, and of what does not vary.
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
