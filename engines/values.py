"""Verify that an artifact computes the values of its graph on this processor.

The artifact runs on samples, after every way of loading it (with fixed or dynamic shapes, for example). Three
outputs are compared, as sums over samples: `ref` of the graph as written, `plain` of the graph without
roundings of activations (`model.graph.reference_forms`), `out` of the artifact.

    q = Σ|ref − plain|²        error of rounding
    e = Σ|out − plain|² − q    error that execution adds
    An output fails if e > max(q, floor) + noise: execution adds a larger error than quantization.

Let out = ref + d. Then e = Σ|d|² + 2 Σ d·(ref − plain). The error d of a faulty kernel is independent of the
roundings, so the second sum is nearly 0 and e = Σ|d|². A correct kernel that rounds in other places, or not
at all, has no larger error than ref: Σ|out − plain|² is at most about q, and e at most about 0, although
`out` and `ref` differ. Without quantization q is 0, and e = Σ|out − ref|².

The floor is the error of rounding an output once to 8 bits: max(n / 12, 1) * (amax / 127)², for n elements of
largest magnitude amax. In a tiny model all roundings may be 0 by chance, while a correct kernel rounds to a
neighbouring integer. The noise allows for the precision of float layers (`judgement.lowest_db`).

If an output fails, prefixes of the graph (all nodes up to a layer) are built and compared by the same rule;
the first that fails ends in the wrong layer. Over few samples, independent rounding errors differ by chance:
for a Visformer with random weights on OpenVINO, e is up to 1.4 q for single samples, and 0.06 q for 16.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.artifact import Check
from ..core.files import temporary_folder
from ..core.processor import isa_here, why_not_exact
from ..errors import BuildError, DataError, EngineUnavailable, ModelError, QCompileError
from ..model import onnx
from ..model.graph.choices import (
    dependent_nodes,
    extent_deciders,
    part_before,
    selecting_operators,
    selection_inputs,
)
from ..model.graph.graph import consumers, model_io, producers, weighted_nodes
from ..model.graph.graph_edits import extract_tensors
from ..model.graph.onnx_file import Graph, copy_model, save_onnx
from ..model.graph.reference_forms import (
    is_random,
    rounds_activations,
    with_halves,
    without_roundings,
    without_saturation,
)
from ..model.graph.saturating_kernels import overflows
from ..model.outputs.judgement import lowest_db
from ..model.outputs.output_forms import BOUNDED
from ..model.sessions.other_extents import at_other_extents
from ..model.sessions.random_input import random_feeds, read_domains
from ..model.sessions.session import WEIGHT_BIAS_QUANTIZATION, make_session, run_session, session_options
from ..spec.tensors import Feeds, ModelIO, format_shape, mismatch, named_extents, samples_in
from .base import BuildRequest, Runner
from .deviation import Deviation

_EMPTY_IO = ModelIO((), ())
_DECLARE = "declare the extents that the graph gives, or a dynamic axis of another name"
SUBJECT = "computes what its graph says"
SAMPLES = 16
"""With fewer samples the sums are unreliable: two independent errors as large as q can differ by q."""
_FLOATS = ("fp32", "fp16", "bf16")
_CHOOSE = frozenset(["ArgMax", "ArgMin", "NonMaxSuppression", "TopK", "Unique"])
"""Operators that choose elements, so that the smallest error can change the result completely."""

_SHAPE_OPERATORS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
_MAX_MAGNIFIED = 16.0
"""Behind Softmax or Sigmoid, this multiple of the allowed error passes if every layer is right, because few
samples near the middle of the function make most of the error."""

Outputs = dict[str, list[NDArray[Any]]]
ByWay = dict[str, dict[str, Deviation]]


@dataclass(frozen=True)
class Execution:
    """How a runtime runs a graph: `make` builds an artifact from its file; `ways` maps names to functions
    that load the artifact, first as qcompile does. `halves` is "fp16" or "bf16" if the runtime computes
    float32 in that type. `fixed` is the way that loads the artifact for the extents of one input only."""

    runtime: str
    make: Callable[[Path, Path], None]
    ways: Mapping[str, Callable[[Path], Runner]]
    halves: str = ""
    fixed: str = ""


@dataclass(frozen=True)
class ValueCheck:
    """Result of `check_values`: the check for the manifest; for a failure its text, wrong layer and hint."""

    checks: Sequence[Check] = ()
    failure: str = ""
    wrong_layer: str = ""
    hint: str = ""
    warnings: Sequence[str] = ()


def check_values(
    request: BuildRequest, graph: onnx.ModelProto, artifact: Path, execution: Execution, feeds: Feeds
) -> ValueCheck:
    """Compare an artifact with its graph, in every way of loading it.

    Random input with the extents of `feeds`, on which the artifact has run, is added up to `SAMPLES`.
    """
    if rounds_activations(graph) and (reason := why_not_exact(request.spec.isa)):
        warning = f"values are not checked here: {reason}; check them with `qcompile diff` where it runs"
        return ValueCheck(warnings=[warning])
    runtime, samples = execution.runtime, list(request.samples)
    random = _random_feeds(graph, feeds, samples)
    inputs = [*samples, *random] or [feeds]
    rounds, whole_graph, places = rounds_activations(graph), graph, selection_inputs(graph)
    comparison = ValueComparison(request, execution, inputs, rounds=rounds, declared=_declared_io(graph))
    comparison.other_extents = at_other_extents(graph, inputs[0])
    if comparison.other_extents:  # repeat the first input, to find state of other shapes
        comparison.feeds += [*comparison.other_extents, inputs[0]]
    try:
        with ExitStack() as stack:
            choices: ByWay = {}
            if places:  # behind a selection (NonZero, ...), only shapes are compared
                shape_comparison = ValueComparison(
                    request, execution, inputs[:1], rounds=rounds, declared=comparison.declared
                )
                choices = shape_comparison.deviations(graph, artifact)
                graph = part_before(graph, places)
                folder = stack.enter_context(temporary_folder("part"))
                artifact = comparison.build_part(graph, folder)
            try:
                deviations = comparison.deviations(graph, artifact)
            except ModelError:  # the graph or the artifact refuses random input; compare without it
                random = [] if samples else [feeds]
                comparison.feeds, comparison.other_extents = [*samples, *random], []
                deviations = comparison.deviations(graph, artifact)
    except (EngineUnavailable, ModelError) as error:
        return _not_compared(error.message)
    except BuildError as error:
        words = error.message.removeprefix(f"{request.source or request.model}: ")
        return ValueCheck(
            [Check(SUBJECT, False, words)], f"{runtime} does not run it: {words}", "", error.hint
        )
    sums = {(way, name): each for way, outputs in deviations.items() for name, each in outputs.items()}
    sums |= {
        (way, name): each
        for way, outputs in choices.items()
        for name, each in outputs.items()
        if each.has_wrong_shape_or_type
    }
    counts = {
        "random inputs": sum(map(samples_in, random)),
        "of other extents": len(comparison.other_extents) - bool(comparison.refused),
    }  # fmt: skip
    data_text = request.spread or f"{sum(map(samples_in, samples))} samples"
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    inputs_text = " and ".join([data_text, *parts] if samples else parts).replace("spread and", "spread, and")
    if places:
        inputs_text += f", in front of {selecting_operators(whole_graph)}"
    excess = {key: comparison.excess(each) for key, each in sums.items()}
    items = [item for outputs in (*deviations.values(), *choices.values()) for item in outputs.items()]
    uncompared = {name: each.uncompared for name, each in items if each.uncompared}
    notes: list[str] = []
    layers: dict[str, onnx.NodeProto | None] = {}
    wrong = sorted((key for key in excess if excess[key] > 1), key=lambda key: -excess[key])
    for way, name in wrong:
        detail = f"{sums[way, name].words(name)}; {inputs_text}"
        if sums[way, name].declared_mismatch:
            return ValueCheck([Check(SUBJECT, False, detail)], f"{detail}, {way}", "", _DECLARE)
        comparison.execution = replace(execution, ways={way: execution.ways[way]})
        if way not in layers:
            layers[way] = first_layer(graph, lambda tensor: comparison.prefix_fails(graph, tensor))
        layer = layers[way]
        if layer is None and not sums[way, name].has_wrong_shape_or_type:
            if excess[way, name] <= _MAX_MAGNIFIED and (operator := _bounded_operator(graph, name)):
                notes.append(f"every layer is right; {operator} magnifies their roundings")
                continue
            tensors, nodes = dependent_nodes(graph, _CHOOSE)
            if name in tensors:  # among nearly equal values, another may be the largest
                choosing = ", ".join(sorted({node.op_type for node in nodes} & _CHOOSE))
                uncompared[name] = f"{choosing} may choose other elements: {detail}"
                continue
        right_ways = [way for way in execution.ways if all(way != other for other, _ in wrong)]
        return _failure(comparison, graph, layer, f"{detail}, {way}", way, right_ways)
    compared = [key for key in excess if key[1] not in uncompared]
    if not compared:
        return _not_compared(*dict.fromkeys(uncompared.values()))
    way, name = max(compared, key=lambda key: (excess[key], not sums[key].labels))
    detail = f"{sums[way, name].words(name)}; {inputs_text}, {' and '.join(execution.ways)}"
    notes += [f"output {name!r} is not compared: {reason}" for name, reason in uncompared.items()]
    check = Check(SUBJECT, True, "; ".join([detail, *dict.fromkeys(notes)]))
    return ValueCheck([check], warnings=[comparison.refused] if comparison.refused else [])


def _declared_io(graph: onnx.ModelProto) -> ModelIO:
    """Return the inputs of a graph, and the outputs with a declared shape."""
    with_shape = {v.name for v in graph.graph.output if v.type.tensor_type.HasField("shape")}
    io = model_io(graph)
    return replace(io, outputs=tuple(tensor for tensor in io.outputs if tensor.name in with_shape))


def _bounded_operator(graph: onnx.ModelProto, tensor: str) -> str:
    """Return the `BOUNDED` operator that computes a tensor, perhaps reshaped; else an empty string."""
    made_by = producers(graph.graph)
    while (node := made_by.get(tensor)) is not None and node.op_type in _SHAPE_OPERATORS:
        tensor = str(node.input[0])
    return node.op_type if node is not None and node.op_type in BOUNDED else ""


def _random_feeds(graph: onnx.ModelProto, feeds: Feeds, samples: Sequence[Feeds]) -> list[Feeds]:
    """Return random batches with the shapes of `feeds` and domains of `samples`, for `SAMPLES` in all."""
    shapes, count = {name: array.shape for name, array in feeds.items()}, sum(map(samples_in, samples))
    inputs, domains = model_io(graph).inputs, read_domains(graph, samples)
    batches: list[Feeds] = []
    while feeds and count < SAMPLES:
        try:
            values = random_feeds(inputs, seed=len(batches), shapes=shapes, domains=domains)
            batches.append({**feeds, **values})  # an artifact may have inputs that its graph lacks
        except DataError:  # strings cannot be random
            break
        count += max(samples_in(feeds), 1)
    return batches


def _failure(
    comparison: ValueComparison, graph: onnx.ModelProto, layer: onnx.NodeProto | None, detail: str, way: str,
    right_ways: Sequence[str],
) -> ValueCheck:  # fmt: skip
    place = "in the whole graph, and in no prefix of it" if layer is None else f"from layer {layer.name!r} on"
    failure = f"{comparison.execution.runtime} computes something else, {place}: {detail}"
    hint = "choose another target, or give `allow_fallback`; `qcompile reproduce` cuts it down for a report"
    if layer is not None:
        hint = f"keep it in float (`layers` {layer.name}=fp32), {hint}"
    if right_ways:
        failure += f"; it is right {' and '.join(right_ways)}, and wrong {way}"
        hint = (
            "export the model with fixed extents (`inputs`), choose another target, or give `allow_fallback`"
        )
    elif layer is not None and isa_here() == "avx2" and overflows(graph, layer):
        failure += "; pairs of its products overflow the 16 bits in which this processor adds them"
        hint = "quantize it again with `isa` avx2, or give `allow_fallback`"
    name = layer.name if layer is not None else ""
    return ValueCheck([Check(SUBJECT, False, detail)], failure, name, hint)


def _not_compared(*reasons: str) -> ValueCheck:
    return ValueCheck(warnings=[f"its values are not compared with its graph's: {'; '.join(reasons)}"])


class ValueComparison:
    """Compares graphs with their artifacts on the same samples; one session is open at a time."""

    def __init__(
        self, request: BuildRequest, execution: Execution, feeds: Sequence[Feeds], *, rounds: bool,
        declared: ModelIO = _EMPTY_IO,
    ) -> None:  # fmt: skip
        self.execution, self.feeds, self.declared = execution, list(feeds), declared
        self.other_extents: list[Feeds] = []  # inputs in `feeds` that the graph may refuse
        self.refused = ""  # the artifact's error on an input of `other_extents`
        precision, floats = request.precision, request.spec.floats
        # If the graph rounds only weights, the runtime may round activations, too, so int8 noise is allowed.
        computed_in = precision if precision in _FLOATS or not rounds else "" if floats == "fp32" else floats
        self.noise_db = lowest_db(computed_in) if computed_in else None
        self.integers = rounds or precision not in _FLOATS
        self.threads = request.spec.threads
        self.progress = request.progress

    def deviations(self, graph: onnx.ModelProto, artifact: Path) -> ByWay:
        """Return the deviation of each output, keyed by way of loading and then by output name."""
        self.progress("compare with its graph")
        written, halves = without_saturation(graph), self.execution.halves
        rounds = rounds_activations(graph) or halves
        ref = self._outputs(with_halves(written, halves) if halves else written, is_first=True)
        plain = self._outputs(without_roundings(graph)) if rounds else ref
        dependent, draws = extent_deciders(graph), is_random(graph)
        by_way: ByWay = {}
        for words, opened in self.execution.ways.items():
            outputs = {name: Deviation() for name in ref}
            with opened(artifact) as runner:
                for index, feeds in enumerate(self.feeds):
                    has_other_extents = any(feeds is other for other in self.other_extents)
                    if words == self.execution.fixed and has_other_extents:
                        continue
                    try:
                        out = runner.infer({tensor.name: feeds[tensor.name] for tensor in runner.io.inputs})
                    except ModelError as error:
                        if has_other_extents and not self._is_another_batch(feeds):
                            self.refused = f"{error.message} ({words}): the artifact refuses such input"
                            continue
                        raise BuildError(f"{error.message} ({words})", hint=error.hint) from error
                    for name, sums in outputs.items():
                        a, b, output = ref[name][index], plain[name][index], out.get(name)
                        decider = dependent.get(name, "")
                        if difference := mismatch(a, output):
                            is_alike = output is not None and (a.ndim, a.dtype) == (output.ndim, output.dtype)
                            if decider and is_alike:
                                sums.uncompared = f"its extents depend on values ({decider})"
                            else:
                                sums.mismatch = f"is {difference[1]} where its graph gives {difference[0]}"
                        elif draws:
                            sums.uncompared = "operators of the graph draw random numbers"
                        elif a.shape != b.shape:
                            sums.uncompared = "its extents depend on rounded values"
                        elif output is not None:
                            sums.add(a, b, output)
                        if output is not None and not has_other_extents:
                            sums.declared_mismatch = sums.declared_mismatch or self._shape_error(
                                name, feeds, output, decider
                            )
            by_way[words] = outputs
        return by_way

    def _shape_error(self, name: str, feeds: Feeds, output: NDArray[Any], decider: str) -> str:
        """Return how the extents of an output differ from the declared shape; empty if they fit."""
        tensor = next((tensor for tensor in self.declared.outputs if tensor.name == name), None)
        if tensor is None:
            return ""
        shapes = {} if decider else {name: array.shape for name, array in feeds.items()}
        extents = named_extents(self.declared.inputs, shapes)
        fits = (
            extent in extents.get(dim, {extent}) if isinstance(dim, str) else dim < 1 or dim == extent
            for dim, extent in zip(tensor.shape, output.shape, strict=False)
        )  # fmt: skip
        if output.ndim == len(tensor.shape) and all(fits):
            return ""
        return f"is {format_shape(output.shape)} where the file declares {format_shape(tensor.shape)}"

    def _is_another_batch(self, feeds: Feeds) -> bool:
        first = self.feeds[0]
        return any(array.shape[:1] != first[name].shape[:1] for name, array in feeds.items())

    def excess(self, deviation: Deviation) -> float:
        return deviation.excess(integers=self.integers, noise_db=self.noise_db)

    def prefix_fails(self, graph: onnx.ModelProto, tensor: str) -> bool:
        """Build the part of a graph up to a tensor, with the same options; return whether the part fails."""
        part = copy_model(graph)
        extract_tensors(part, [tensor])
        with temporary_folder("prefix") as folder:
            try:
                by_way = self.deviations(part, self.build_part(part, folder))
            except QCompileError:  # a prefix that cannot be built is no evidence
                return False
        return any(self.excess(sums) > 1 for outputs in by_way.values() for sums in outputs.values())

    def build_part(self, graph: onnx.ModelProto, folder: Path) -> Path:
        """Build a part of the graph in a folder, with the same options; return the artifact's path."""
        path, artifact = folder / "part.onnx", folder / "artifact.onnx"
        save_onnx(graph, path)
        self.execution.make(path, artifact)
        return artifact

    def _outputs(self, graph: onnx.ModelProto, *, is_first: bool = False) -> Outputs:
        """Return a graph's outputs by name, each a list of arrays by batch, without integer kernels.

        With `is_first`, inputs of `other_extents` that the graph refuses are removed from the comparison.
        """
        io = model_io(graph)
        names = [tensor.name for tensor in io.outputs]
        options = session_options(self.threads, integers=False, layouts=False)
        reference = Graph(graph, Path("reference.onnx"))
        session = make_session(reference, options, without=[WEIGHT_BIAS_QUANTIZATION])
        runs = []
        for feeds in list(self.feeds):
            few = {value.name: feeds[value.name] for value in io.inputs}
            try:
                runs.append(run_session(session, names, few, "the graph"))
            except ModelError:
                if not is_first or not any(feeds is other for other in self.other_extents):
                    raise
                self.other_extents = [other for other in self.other_extents if other is not feeds]
                self.feeds = [batch for batch in self.feeds if batch is not feeds]
        return {
            name: arrays
            for name, arrays in zip(names, map(list, zip(*runs, strict=True)), strict=True)
            if all(isinstance(array, np.ndarray) for array in arrays)
        }


_FUSED = frozenset(["Add", "Cast", "Clip", "Mul", "Relu"])
"""Operators that runtimes fuse into the preceding kernel, without Q/DQ in between."""


def first_layer(graph: onnx.ModelProto, fails: Callable[[str], bool]) -> onnx.NodeProto | None:
    """Return the layer at the end of the first prefix that fails, or None if no prefix fails.

    Binary search: a prefix that fails leaves the layer's ancestors as suspects; another excludes them.
    """
    weighted = {node.name: node for nodes in weighted_nodes(graph).values() for node in nodes}
    suspects = [node for node in graph.graph.node if node.name in weighted]
    made_by, readers = producers(graph.graph), consumers(graph.graph)
    first_failing: onnx.NodeProto | None = None
    while suspects:
        middle = suspects[len(suspects) // 2]
        tensor = _result_tensor(middle, readers, weighted)
        before = _ancestors(tensor, made_by) - {middle.name}
        if fails(tensor):
            first_failing = middle
            suspects = [node for node in suspects if node.name in before]
        else:
            suspects = [node for node in suspects if node.name not in before | {middle.name}]
    return first_failing


def _result_tensor(
    node: onnx.NodeProto, readers: Mapping[str, Sequence[onnx.NodeProto]], layers: Collection[str]
) -> str:
    """Return the tensor with a layer's result: behind its Q/DQ pair, else behind operators that are fused."""
    fused = tensor = str(node.output[0])
    is_fused = True
    while True:
        next_nodes = readers.get(tensor, [])
        quantized = [node for node in next_nodes if node.op_type == "QuantizeLinear"]
        follower = quantized[0] if quantized else next_nodes[0] if len(next_nodes) == 1 else None
        if follower is None or follower.name in layers:
            return fused
        tensor = str(follower.output[0])
        if follower.op_type == "DequantizeLinear":
            return tensor
        is_fused &= follower.op_type in _FUSED
        fused = tensor if is_fused else fused


def _ancestors(tensor: str, made_by: Mapping[str, onnx.NodeProto]) -> set[str]:
    names: set[str] = set()
    waiting = [tensor]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is not None and node.name not in names:
            names.add(node.name)
            waiting += node.input
    return names
