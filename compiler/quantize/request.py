"""The request of `quantize`, the checks of its options, and the selection of nodes by name."""

from __future__ import annotations

import fnmatch
import glob
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...calibration import Ranges
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...errors import InvalidOption, QuantizationError
from ...model.graph.graph_rules import graph_rules, targets_where
from ...model.graph.onnx_file import Graph
from ...model.outputs.judgement import Judgement
from ...spec.artifacts import QuantizeSpec
from ...spec.words import CALIBRATED, HALVES

if TYPE_CHECKING:
    import onnx

    from ..check import OnnxReference


@dataclass(frozen=True)
class QuantizeRequest:
    """One quantization of a float model with loaded weights."""

    graph: Graph
    digest: str
    spec: QuantizeSpec
    ranges: Ranges | None = None  # observed ranges, for static INT8, and for values beyond float16
    # nodes that are not quantized because the runtime computes them in float, each with the reason
    in_float: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = silent
    observed: Ranges | None = None  # all float activations on some samples, for FP16 layers beside INT8
    corrected_on: int = 32  # samples for bias correction: the mean error of every layer
    dynamic_lstms: bool = False  # whether static INT8 computes LSTMs with scales found at run time

    @property
    def model(self) -> onnx.ModelProto:
        return self.graph.model

    @property
    def path(self) -> Path:
        """The model's file, for messages."""
        return self.graph.path

    @property
    def half_ranges(self) -> Ranges | None:
        """Ranges to find values beyond float16: `ranges`, and `observed` for the other tensors."""
        if self.ranges is None or self.observed is None:
            return self.ranges or self.observed
        histograms = {**self.observed.histograms, **self.ranges.histograms}
        shared = {**self.observed.shared, **self.ranges.shared}
        return replace(self.ranges, histograms=histograms, shared=shared)

    def with_options(self, **options: Any) -> QuantizeRequest:
        """Return the request with other options."""
        return replace(self, spec=replace(self.spec, **options))

    def samples(self, limit: int | None, *, is_spread: bool = False) -> Data:
        """Return the first `limit` samples, or as many spread over the data; all samples for None."""
        if self.spec.data is None:
            raise InvalidOption(
                "`data` is missing; this quantization needs samples", hint="give `data`", option="data"
            )
        return Data(self.spec.data, self.graph.io.inputs, batch_size=1, limit=limit, is_spread=is_spread)


@dataclass(frozen=True)
class OutputQuality:
    """How close the outputs of a quantized graph are to the float model's."""

    outputs: tuple[Judgement, ...]
    # signal-to-noise ratio of the worst float output, in decibels: -inf if one became NaN or infinite, inf
    # without float outputs
    snr_db: float
    # ratio of the part that differs between samples, if lower: detectors add it to anchor boxes, which are
    # the same for all samples
    varying_db: float = math.inf
    # ratio that methods are compared by: the lower of both; for probabilities that of their logits
    choice_db: float = math.inf
    broken: str = ""  # name of an output that became NaN or infinite

    @property
    def rank_db(self) -> float:
        """Lower of `snr_db` and `varying_db`."""
        return min(self.snr_db, self.varying_db)

    @property
    def failed(self) -> list[Judgement]:
        """Outputs that `diff` would reject."""
        return [one for one in self.outputs if not one.passed]


@dataclass(frozen=True)
class Outcome:
    """The graph that a mode returns, and the facts about it for the manifest."""

    model: onnx.ModelProto
    proof: Mapping[str, object]
    warnings: Sequence[str] = ()
    judged: OutputQuality | None = None  # if the search compared it already
    run: OnnxReference | None = None  # session that executes the model, if the target is ONNX Runtime


def check_options(spec: QuantizeSpec) -> None:
    """Raise InvalidOption if options contradict each other."""
    precision, mode, target, float_precision = spec.precision, spec.mode, spec.target, spec.floats
    layers = spec.layer_precisions
    rules = graph_rules(target)
    if mode == "dynamic" and precision == "int8" and not rules.by_onnxruntime:
        raise InvalidOption(
            f"dynamic INT8 for {target}: only ONNX Runtime supports it; static is required",
            hint="calibrate, then quantize with `mode` static and `ranges`",
        )
    if precision == "int4" and mode != "weights":
        raise InvalidOption(
            "int4 is for weights alone: no runtime here multiplies 4-bit activations",
            hint="give `mode` weights",
            option="mode",
        )
    if precision == "fp8" and (mode != "static" or precision not in rules.formats):
        setting = f"`target` {target}" if precision not in rules.formats else f"`mode` {mode}"
        raise InvalidOption(
            f"{precision} with {setting}: only TensorRT multiplies FP8, with static scales",
            hint=f"give `target` {targets_where(lambda rules: precision in rules.formats)}, `mode` static "
            "and `ranges`, or `precision` int8",
            option="precision",
        )
    if mode != "static" and (float_precision != "fp32" or layers):
        mixing = "float_precision" if float_precision != "fp32" else "layers"
        raise InvalidOption(f"`{mixing}` mixes precisions in `mode` static; `mode` is {mode}")
    precisions = {float_precision, *layers.values()}
    if precision != "int8" and "int8" in precisions:
        raise InvalidOption(f"`layers` int8 is for static INT8; `precision` is {precision}", option="layers")
    halves = precisions & set(HALVES)
    if len(halves) > 1 or (precision in HALVES and halves - {precision}):
        raise InvalidOption("fp16 and bf16 in one graph: one of them is required")
    static = mode == "static" and precision not in HALVES
    if static and rules.why_no_halves and (float_precision in HALVES or "bf16" in precisions):
        option = "`float_precision`" if float_precision in HALVES else "`layers`"
        kind = float_precision if float_precision in HALVES else "bf16"
        raise InvalidOption(
            f"{option} {kind} for {target}: {rules.why_no_halves}",
            hint=f"leave it out, or choose `target` {targets_where(lambda rules: not rules.why_no_halves)}",
            option=option,
        )


def check_ranges(request: QuantizeRequest) -> None:
    """Raise if ranges are missing, from another model, or unusable for the requested precision."""
    ranges = request.ranges
    if ranges is None:
        if request.spec.precision in CALIBRATED and request.spec.mode == "static":
            raise InvalidOption(
                f"static {request.spec.precision.upper()} needs the ranges of the activations",
                hint="run `qcompile calibrate` first and give `ranges`",
                option="ranges",
            )
        return
    if ranges.fixed and request.spec.precision in HALVES:
        raise InvalidOption(
            "TensorRT's calibration cache holds scales, not the largest values, which FP16 needs",
            hint="give a ranges file, or `data`",
            option="ranges",
        )
    if ranges.fixed and not graph_rules(request.spec.target).symmetric:
        raise InvalidOption(
            f"TensorRT's calibration cache holds symmetric scales: they waste half of the range of "
            f"{request.spec.target}",
            hint="calibrate with `qcompile calibrate`, or quantize with `target` "
            + targets_where(lambda rules: rules.symmetric),
            option="ranges",
        )
    ranges.require_model(request.path, request.digest)


def nothing_to_quantize(reasons: Mapping[str, str], absent: str, hint: str) -> QuantizationError:
    """Return the error for a model without nodes to quantize: a reason of `left`, or else `absent`."""
    name, reason = next(iter(reasons.items()), ("", absent))
    if reason.startswith(_BY_USER):
        hint = "narrow `exclude` or widen `only`"
    return QuantizationError(
        f"nothing to quantize: {f'node {name!r}: ' if name else ''}{reason}",
        hint="simplify first" if "simplify" in reason else hint,
        reasons=dict(reasons),
    )


def hint_without_static(operators: AbstractSet[str], *, by_onnxruntime: bool) -> str:
    """Return a hint for a model with these operators, none of which static INT8 quantizes."""
    if by_onnxruntime and "LSTM" in operators:
        return (
            "`mode` dynamic computes LSTM in 8 bits, with ranges found at run time: measure the "
            "loss with `qcompile diff`, or keep it in float"
        )
    if "GRU" in operators or "RNN" in operators:
        return "no runtime has an integer kernel for GRU or RNN: `mode` dynamic stores GRU's weights as int8"
    if operators & {"Loop", "Scan", "If"}:
        return (
            "products inside Loop, Scan and If stay in float: write a recurrence as LSTM, or keep it in float"
        )
    return "choose another target, or keep it in float"


def require_reached(planned: Collection[str], reached: Collection[str]) -> None:
    """Raise QuantizationError if planned nodes are not quantized."""
    missed = [name for name in planned if name not in set(reached)]
    if missed:
        raise QuantizationError(
            f"{len(missed)} of {len(planned)} planned nodes stayed in float: {', '.join(missed[:5])}",
            hint="to leave them in float, exclude them by name",
            nodes=missed,
        )


_BY_USER = "excluded by ", "not among "
"""Beginnings of reasons that `match_nodes` gives."""


def match_nodes(
    graph: onnx.GraphProto, exclude: Iterable[str], *, only: Iterable[str] = ()
) -> dict[str, str]:
    """Return name to reason for the excluded nodes.

    Args:
        exclude: Names, globs (`/head/*`) or operator types of nodes to exclude.
        only: The same, for the nodes to include; empty for all.
    """
    excluded = {
        name: f"excluded by {pattern!r}"
        for pattern in exclude
        for name in _matching_names(graph, pattern, "`exclude`")
    }
    included = {name for pattern in only for name in _matching_names(graph, pattern, "`only`")}
    if included:
        reason = f"not among {', '.join(map(repr, only))}"
        excluded |= {node.name: reason for node in graph.node if node.name not in included | set(excluded)}
    return excluded


def glob_for_name(name: str) -> str:
    """Return a glob that matches only this name, even if it contains `[` or `*` or is an operator's name."""
    first = f"[{name[0]}]" if name[:1].isalnum() else glob.escape(name[:1])
    return first + glob.escape(name[1:])


def _matching_names(graph: onnx.GraphProto, pattern: str, option: str) -> list[str]:
    hits = [
        node.name
        for node in graph.node
        if pattern in (node.op_type, node.name) or fnmatch.fnmatchcase(node.name, pattern)
    ]
    if not hits:
        raise InvalidOption(
            f"{option} {pattern!r}: no node of that name, glob or operator type",
            hint="`qcompile inspect` with `nodes` lists them",
            option=option,
        )
    return hits
