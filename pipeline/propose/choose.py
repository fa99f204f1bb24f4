"""Choose a recipe's artifacts for a model, data and machine, each with its reason; list the omitted ones.

model   float                 -> FP32 on ONNX Runtime, INT8 if it has products or convolutions
        attention, recurrent  -> also dynamic INT8, which needs no calibration
        recurrent alone       -> static INT8 for targets that quantize its products: TensorRT
        Q/DQ already          -> INT8 alone
data    none                  -> no static INT8
machine no builder of a kind  -> none of its artifacts; a hint shows the command to install it
        no GPU                -> TensorRT-RTX engines ahead of time, which this machine cannot measure
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.metrics.metric import Truth
from ...bench.metrics.names import choose
from ...bench.results.drop import EXACT, Need, samples_for_budget
from ...bench.results.row import unit_of
from ...core.processor import why_emulated
from ...core.progress import Progress
from ...data.batches import Data
from ...data.spelling import FUNCTION, parse_spelling
from ...engines.gpu import find_gpu
from ...engines.registry import engine
from ...engines.words import When
from ...model.graph.graph_rules import graph_rules
from ...model.sources.source import parse_source
from ...spec.engines import rows
from ...spec.recipes import InitSpec
from ...spec.tensors import TensorInfo, first_axes_differ, format_shape
from ...spec.words import AUTO, CPU_TARGETS, TARGETS, TENSORRT_TARGETS, Target
from ..recipe.batches import DEFAULT_MAX
from .model_facts import ModelFacts, relocate_source, shortest_path_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

Line = tuple[str, object, str]
"""A key, its value and its reason for the comment; an empty reason gives no comment."""
CALIBRATION_SAMPLES = 256
USUAL_GPUS = ("sm86", "sm89")
"""Ampere and Ada: two generations of desktop and inference cards."""
CALL_MULTIPLY_ADDS = 1_000_000_000
"""Of one call: with far fewer, the runtime's overhead per call is a large share of the measured time."""
_SECONDS_PER_ROW = 8.0
_SECONDS_LIMITS = (20.0, 120.0)


@dataclass(frozen=True)
class DataFacts:
    """The data for a proposal; kind, samples, labels and default metric describe the evaluation data.

    `shared` is "" for two sets, "divided" for one set in two parts, or "same" if one set cannot be divided.
    `samples` is None if only reading all samples would give their number. Samples are ragged, and cannot be
    batched, if the first ones differ in shape.
    """

    calibration: str = ""
    evaluation: str = ""
    shared: str = ""
    kind: str = ""
    samples: int | None = None
    has_labels: bool = False
    metric: str = ""
    why_metric: str = ""
    notes: tuple[str, ...] = ()
    is_ragged: bool = False


def look_at_data(
    spec: InitSpec, inputs: Sequence[TensorInfo], outputs: Mapping[str, NDArray[Any]], *, progress: Progress
) -> DataFacts:
    """Return the facts about a model's samples; `calibration` and `evaluation` of `spec` override `data`."""
    progress("look at the data")
    batches = [tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], int)]
    limit = max([16, *batches])  # at least one batch, for models with a larger fixed batch
    specs, shared = dict.fromkeys(("calibration", "evaluation"), spec.data), ""
    spelling = parse_spelling(spec.data) if spec.data and not (spec.calibration or spec.evaluation) else None
    # Samples of a function are not divided between calibration and evaluation.
    if spelling and spelling.kind != FUNCTION and "part" not in spelling.query:
        specs = {part: str(replace(spelling, query={**spelling.query, "part": part})) for part in specs}
        shared = "divided"
    calibration = spec.calibration or specs["calibration"]
    evaluation = spec.evaluation or specs["evaluation"]
    if calibration and calibration != evaluation:
        next(iter(Data(calibration, inputs, limit=limit)))
    if not evaluation:
        return DataFacts(calibration)
    data = Data(evaluation, inputs, limit=limit)
    batches_read = iter(data)
    first = next(batches_read)
    is_ragged = False
    if any(axis for tensor in inputs for axis in tensor.dynamic_axes):
        shapes = [
            {name: array.shape[1:] for name, array in batch.feeds.items()} for batch in (first, *batches_read)
        ]
        is_ragged = any(shape != shapes[0] for shape in shapes)
    answers = {name: _resize_output(array, first.samples) for name, array in outputs.items()}
    metric, why = choose(answers, Truth(first.labels, first.samples, first.where), inputs)
    return DataFacts(
        calibration, evaluation, shared or ("same" if calibration == evaluation else ""),
        data.spelling.kind, Data(evaluation, inputs).total, first.labels is not None, metric, why,
        tuple(data.notes()), is_ragged,
    )  # fmt: skip


def _resize_output(array: NDArray[Any], samples: int) -> NDArray[Any]:
    """Return an output resized to `samples`; only shape, dtype and the lengths of rows matter."""
    import numpy as np

    shape = (samples, *array.shape[1:])
    return np.resize(array, shape) if array.ndim == 2 else np.zeros(shape, array.dtype)


def relocate_data(spec: str, folder: Path) -> str:
    """Return a DATA argument rewritten for a file in `folder`."""
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        return relocate_source(parse_source(spelling.path), folder)
    located = spelling.located(Path.cwd())
    return str(replace(located, path=shortest_path_text(folder, Path(located.path))))


@dataclass(frozen=True)
class Omission:
    """An omitted artifact or measurement, the reason, and how to add it."""

    what: str
    why: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; {self.how}" if self.how else "")


@dataclass(frozen=True)
class Machine:
    """This machine: the targets that it cannot build (`missing`), its GPU and its CPU.

    `gpu` is the compute capability, empty without a GPU; `emulates_bf16` is the reason, empty if native.
    """

    missing: dict[str, Omission]
    gpu: str = ""
    emulates_bf16: str = ""


def look_at_machine() -> Machine:
    """Return the facts about this machine, as `doctor` determines them; imports the targets' runtimes."""
    reasons = {target: engine(target).why_not_build() for target in TARGETS}
    missing: dict[str, Omission] = {
        target: Omission(target, reason, engine(target).fix()) for target, reason in reasons.items() if reason
    }
    gpu = find_gpu()
    return Machine(missing, gpu.architecture if gpu else "", why_emulated("bf16"))


@dataclass(frozen=True)
class Proposed:
    """A proposed artifact: its name, reason and keys."""

    name: str
    why: str
    lines: tuple[Line, ...]

    @property
    def target(self) -> str:
        return str(self.lines[0][1])


class ArtifactChoice:
    """The artifacts of a recipe, and the omitted ones.

    The user's `targets` are proposed even if only another machine can build them. TensorRT-RTX builds for
    `gpus`, by default for this machine's GPU, or else `USUAL_GPUS`.
    """

    def __init__(
        self,
        model: ModelFacts,
        data: DataFacts,
        machine: Machine,
        *,
        targets: Sequence[Target] = (),
        gpus: Sequence[str] = (),
    ) -> None:
        self.model, self.data, self.machine, self.targets, self.gpus = model, data, machine, targets, gpus
        why = f"it has no {', '.join(model.learners)} of ai.onnx.ml"
        unsupported = [name for name in TARGETS if name != "onnxruntime" and model.learners]
        self.missing = machine.missing | {name: Omission(name, why) for name in unsupported}
        self.is_float = model.precision == "fp32"
        self.quantizes = bool(model.kinds) and self.is_float
        self.has_ranges = bool(data.calibration) or model.precision == "int8"
        self.static = (self.quantizes and self.has_ranges) or model.precision == "int8"
        self.dynamic = bool(model.kinds & {"attention", "recurrent"}) or "convolution" not in model.kinds
        self.artifacts = tuple(self._artifacts())
        self.left_out = tuple(self._left_out())

    def _artifacts(self) -> Iterator[Proposed]:
        for target in self._selected():
            lines = list(self._tensorrt_lines(target)) if target in TENSORRT_TARGETS else []
            static = self.static and self._has_integers(target)
            applies: dict[When, bool] = {
                "float": self.is_float,
                "float alone": not static and self.is_float,
                "static": static,
                "dynamic": self.quantizes and self.dynamic,
                "bf16": not self.machine.emulates_bf16 and self.is_float,
                "named": target in self.targets,
            }
            for proposal in engine(target).proposals():
                if applies[proposal.when]:
                    head = ("target", target, ""), ("precision", proposal.precision, "")
                    mode: list[Line] = [("mode", proposal.mode, "")] if proposal.mode else []
                    yield Proposed(proposal.name, proposal.why, (*head, *lines, *mode))

    def _has_integers(self, target: Target) -> bool:
        """Return whether static INT8 of a target covers any kind of layer in the model."""
        if self.model.kinds != {"recurrent"} or not (placed_for := rows()[target].placed_for):
            return True
        return graph_rules(placed_for).opens_recurrences

    def _selected(self) -> list[Target]:
        targets, missing = self.targets, self.missing
        return [name for name in TARGETS if (name in targets if targets else name not in missing)]

    def _targets_with(self, when: When) -> list[Target]:
        """Return the selected targets with a proposal for `when`."""
        return [name for name in self._selected() if any(p.when == when for p in engine(name).proposals())]

    def _tensorrt_lines(self, target: Target) -> Iterator[Line]:
        """Yield GPUs, and shapes if axes beyond the batch are dynamic; defaults exist only for the batch."""
        if target == "tensorrt-rtx" and self.gpus:
            yield "gpus", list(self.gpus), "as requested"
        elif target == "tensorrt-rtx" and self.machine.gpu:
            yield "gpus", [self.machine.gpu], "the GPU of this machine"
        elif target == "tensorrt-rtx":
            yield "gpus", list(USUAL_GPUS), "Ampere and Ada, ahead of time: this machine has no GPU"
        if not any(axis for tensor in self.model.inputs for axis in tensor.dynamic_axes):
            return
        named: dict[str, tuple[int, int, int]] = {}
        shapes = {tensor.name: _extents(tensor, self.model, named) for tensor in self.model.inputs}
        why = ("smallest shapes", "shapes to optimize for", "largest shapes: other inputs are refused")
        for index, kind in enumerate(("min_shapes", "opt_shapes", "max_shapes")):
            yield kind, [f"{name}:{format_shape(shape[index])}" for name, shape in shapes.items()], why[index]

    def _left_out(self) -> Iterator[Omission]:
        if not self.targets:
            yield from (item for name, item in self.missing.items() if name != "torchscript")
            yield Omission("torchscript", "seldom faster than eager PyTorch", 'target = "torchscript"')
        if self.quantizes and not self.has_ranges:
            how = "give them as `data`; 100 to 500 are enough"
            yield Omission("static INT8", "it needs samples to calibrate on", how)
        no_int8 = [name for name in self._targets_with("static") if not self._has_integers(name)]
        if no_int8 and self.static:
            how = '`mode = "dynamic"` for ONNX Runtime'
            yield Omission(f"static INT8 for {', '.join(no_int8)}", "it takes no recurrent layer", how)
        if not self.data.evaluation:
            why = "no labelled samples: the table compares speed alone"
            yield Omission("accuracy", why, "give samples as `data`")
        if not self.model.kinds:
            yield Omission("INT8", "no layer of the model multiplies with weights")
        elif self.quantizes and not self.dynamic and self._targets_with("dynamic"):
            why = "it quantizes products of matrices alone: convolutions would stay in float"
            yield Omission("dynamic INT8", why, 'mode = "dynamic"')
        if self.machine.emulates_bf16 and self.is_float:
            for target in self._targets_with("bf16"):
                yield Omission(f"{target} bf16", self.machine.emulates_bf16)


def _extents(
    tensor: TensorInfo, model: ModelFacts, named: dict[str, tuple[int, int, int]]
) -> list[tuple[int, ...]]:
    """Return min, opt and max shape of an input; `named` stores the extents of named axes across inputs."""
    from ...model.sources.preprocessing import preprocessing_of

    extents = {extents.axis: extents for extents in tensor.extents}
    longest = getattr(preprocessing_of(model.inputs), "max_length", 0)
    axes: list[tuple[int, int, int]] = []
    for axis, dim in enumerate(tensor.shape):
        if isinstance(dim, int):
            axes.append((dim, dim, dim))
        elif axis == 0:
            largest = 1 if first_axes_differ(model.inputs) else DEFAULT_MAX
            axes.append((1, batch_size(model)[0], largest))
        else:
            extent = extents.get(axis)
            low = extent.minimum if extent else 1
            high = (extent.maximum if extent else 0) or longest or 512
            axes.append((low, (extent.traced if extent else 0) or max(low, min(high, 128)), high))
        if isinstance(dim, str) and dim != "?":
            axes[-1] = named.setdefault(dim, axes[-1])
    return [tuple(axis[kind] for axis in axes) for kind in range(3)]


def batch_size(model: ModelFacts, samples: int | None = None, *, is_ragged: bool = False) -> tuple[int, str]:
    """Return the batch size to measure and the reason: a power of two with enough work for stable timing.

    The batch size is at most the number of evaluation samples, if known.
    """
    if first_axes_differ(model.inputs):
        return 1, "the first axis of an input is no batch: a call takes a sample as it is"
    for tensor in model.inputs:
        if tensor.shape and isinstance(tensor.shape[0], int):
            return tensor.shape[0], "the model takes no other"
    if is_ragged:
        return 1, "the samples differ in shape"
    if not model.multiply_adds:
        return 1, "the latency of one sample"
    batch, limit = 1, DEFAULT_MAX if samples is None else min(DEFAULT_MAX, samples)
    while 2 * batch <= limit and 2 * batch * model.multiply_adds <= CALL_MULTIPLY_ADDS:
        batch *= 2
    if batch == 1:
        return 1, "the latency of one sample; a larger one measures throughput"
    return batch, "one sample is too little work to measure; 1 measures its latency"


def budget_need(data: DataFacts, artifacts: Sequence[Proposed], spec: InitSpec) -> Need | None:
    """Return how many samples the budget needs; None without a budget or for a metric not in points."""
    metric = data.metric if spec.metric == AUTO else spec.metric
    if spec.max_drop is None or not data.evaluation or unit_of(metric) != "points":
        return None
    is_measured = [item.target in CPU_TARGETS or find_gpu() is not None for item in artifacts]
    quantized = [
        item for item, measured in zip(artifacts, is_measured, strict=True)
        if measured and dict(line[:2] for line in item.lines).get("precision", EXACT[0]) not in EXACT
    ]  # fmt: skip
    return samples_for_budget(spec.max_drop, max(1, len(quantized)), data.samples)


def bench_lines(
    model: ModelFacts, data: DataFacts, artifacts: Sequence[Proposed], spec: InitSpec
) -> list[Line]:
    """Return the lines of `[bench]`."""
    lines: list[Line] = [("batch_size", *batch_size(model, data.samples, is_ragged=data.is_ragged))]
    if model.is_onnx:
        lines.append(("baseline", artifacts[0].name, "there is no PyTorch model to compare with"))
    if data.evaluation:
        is_auto = spec.metric == AUTO
        metric = (data.metric, data.why_metric) if is_auto else (spec.metric, "as requested")
        lines.append(("metric", *metric))
        if spec.max_drop is not None:
            why = "the report recommends nothing that may lose more"
            need = budget_need(data, artifacts, spec)
            lines.append(("max_drop", spec.max_drop, f"{why}; {need.text}" if need else why))
    seconds, why = spec.max_time_s, "as requested"
    if seconds is None:
        rows = len(artifacts) + 1
        seconds = min(max(_SECONDS_PER_ROW * rows, _SECONDS_LIMITS[0]), _SECONDS_LIMITS[1])
        why = f"{_SECONDS_PER_ROW:g} s for each of {rows} rows; more narrows the intervals"
    return [*lines, ("max_time_s", seconds, why)]
