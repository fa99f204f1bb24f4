"""From a model, data and a machine to the artifacts of a recipe, each with its reason; and what is left out.

model   float                 -> FP32 on ONNX Runtime, INT8 where there are products or convolutions
        attention, recurrent  -> INT8 dynamic too: it needs no calibration
        Q/DQ already          -> INT8 alone
data    none                  -> no static INT8
machine no builder of a kind  -> none of its artifacts; the line that installs it is named
        no GPU                -> TensorRT-RTX engines ahead of time, which this machine cannot measure
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...bench.metrics.metric import Truth
from ...bench.metrics.names import choose
from ...data.arrays import map_arrays
from ...data.batches import Data
from ...data.readers import LABELS
from ...data.spelling import FUNCTION, parse_spelling
from ...engines.gpu import find_gpu
from ...engines.registry import engine
from ...engines.words import When
from ...errors import DataError, QCompileError
from ...model.source import parse_source
from ...model.user_code import beside, call, load_function
from ...processor import why_emulated
from ...progress import Progress
from ...spec.recipes import InitSpec
from ...spec.words import AUTO, TARGETS, TENSORRT_TARGETS, Target
from ...tensors import Feeds, TensorInfo, format_shape
from ..recipe import DEFAULT_MAX
from .model_facts import ModelFacts, seen_from, spelled_from

Line = tuple[str, object, str]
"""A key, its value and why; no comment where the reason is empty."""
CALIBRATION_SAMPLES = 256
USUAL_GPUS = ("sm86", "sm89")
"""Ampere and Ada: the desktop and inference cards of two generations."""
CALL_MULTIPLY_ADDS = 1_000_000_000
"""Of one call: with much less, the runtime's own time per call is a large share of what is measured."""
_SECONDS_EACH = 8.0
_SECONDS = (20.0, 120.0)


@dataclass(frozen=True)
class DataFacts:
    """What a proposal follows from; kind, samples, labels and the metric that fits are of the evaluation.

    `shared` says how one set serves both: "" for two sets, "divided", or "same" where it cannot be divided.
    `samples` is None where only reading them all would tell.
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


def look_at_data(
    asked: InitSpec,
    inputs: Sequence[TensorInfo],
    outputs: Mapping[str, Sequence[int | str]],
    *,
    progress: Progress,
) -> DataFacts:
    """Look at the samples that serve a model: `calibration` and `evaluation` are in place of `data`."""
    import numpy as np

    progress("look at the data")
    fixed = [one.shape[0] for one in inputs if one.shape and isinstance(one.shape[0], int)]
    limit = max([16, *fixed])  # at least a batch of a model that takes no smaller one
    spelling = parse_spelling(asked.data) if asked.data else None
    # What a function yields is not divided between calibration and evaluation.
    divided = spelling is not None and spelling.kind != FUNCTION and "part" not in spelling.query
    divided = divided and not (asked.calibration or asked.evaluation)
    parts = dict.fromkeys(("calibration", "evaluation"), asked.data)
    if spelling is not None and divided:
        parts = {part: str(replace(spelling, query={**spelling.query, "part": part})) for part in parts}
    calibration = asked.calibration or parts["calibration"]
    evaluation = asked.evaluation or parts["evaluation"]
    for spec in {calibration, evaluation} - {evaluation, ""}:
        next(iter(Data(spec, inputs, limit=limit)))
    if not evaluation:
        return DataFacts(calibration)
    read = Data(evaluation, inputs, limit=limit)
    first = next(iter(read))
    shared = "divided" if divided else "same" if calibration == evaluation else ""
    shapes = {
        name: (first.samples, *(extent if isinstance(extent, int) else 1 for extent in shape[1:]))
        for name, shape in outputs.items()
    }
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}  # shapes alone count
    metric, why = choose(zeros, Truth(first.labels, first.samples, first.where), inputs)
    return DataFacts(
        calibration, evaluation, shared, read.spelling.kind, Data(evaluation, inputs).total,
        first.labels is not None, metric, why, tuple(read.notes()),
    )  # fmt: skip


def first_sample(spec: str, names: Sequence[str]) -> Feeds | None:
    """Return the first sample of arrays, of a function, or an image as large as its preprocessing says.

    It is by input name, with the axis of samples; `names` are the arguments that the model requires.
    """
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        return _of_function(spelling.path, names)
    path = Path(spelling.path).expanduser()
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.npz"))), path)
    if path.suffix == ".npz" and path.is_file():
        return {name: array[:1] for name, array in map_arrays(path).items() if name != LABELS} or None
    import numpy as np

    from ...model.load import find_preprocessing
    from ...model.preprocessing import ImagePreprocessing

    preprocessing = spelling.query.get("preprocessing")
    image = find_preprocessing(preprocessing) if preprocessing else None
    if not isinstance(image, ImagePreprocessing) or len(names) != 1:
        return None
    return {names[0]: np.zeros((1, image.channels, image.height, image.width), np.float32)}


def _of_function(spec: str, names: Sequence[str]) -> Feeds | None:
    source = parse_source(spec)
    result = call(load_function(source), source)
    try:
        with beside(source):
            item = next(iter(itertools.islice(result, 1)), None)
    except QCompileError:
        raise
    except Exception as error:
        raise DataError(f"{spec}: raised {type(error).__name__} at its first sample: {error}") from error
    if item is None:
        return None
    if isinstance(item, Mapping):
        return {str(name): _array(value) for name, value in item.items() if name != LABELS}
    values = list(item) if isinstance(item, tuple | list) else [item]
    if len(values) == len(names) + 1:
        values.pop()  # the labels
    if len(values) != len(names):
        return None
    return {name: _array(value) for name, value in zip(names, values, strict=True)}


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def relocated(spec: str, folder: Path) -> str:
    """Return a spelling as a file in `folder` has it."""
    if not spec:
        return ""
    spelling = parse_spelling(spec)
    if spelling.kind == FUNCTION:
        return spelled_from(parse_source(spelling.path), folder)
    whole = spelling.located(Path.cwd())
    return str(replace(whole, path=seen_from(folder, Path(whole.path))))


@dataclass(frozen=True)
class Machine:
    """What can be built and run here: target to why not, and to what installs it, of those that cannot.

    `gpu` is the compute capability of its GPU, empty without one; `emulates_bf16` says why the processor does
    not multiply in bfloat16, empty where it does.
    """

    missing: dict[str, str]
    fixes: dict[str, str]
    gpu: str = ""
    emulates_bf16: str = ""


def look_at_machine() -> Machine:
    """Look at the targets, as `doctor` does; imports their runtimes."""
    reasons = {target: engine(target).why_not_build() for target in TARGETS}
    missing: dict[str, str] = {target: reason for target, reason in reasons.items() if reason}
    gpu = find_gpu()
    fixes = {target: engine(target).fix() for target in missing}
    return Machine(missing, fixes, gpu.architecture if gpu else "", why_emulated("bf16"))


@dataclass(frozen=True)
class Proposed:
    """An artifact: its name, why it is there, and its keys."""

    name: str
    why: str
    lines: tuple[Line, ...]

    @property
    def target(self) -> str:
        return str(self.lines[0][1])


@dataclass(frozen=True)
class LeftOut:
    """What is not proposed, why, and how to get it."""

    what: str
    why: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; {self.how}" if self.how else "")


@dataclass(frozen=True)
class Choice:
    """The artifacts of a recipe, and what was left out."""

    artifacts: tuple[Proposed, ...]
    left_out: tuple[LeftOut, ...]


def choose_artifacts(
    model: ModelFacts,
    data: DataFacts,
    machine: Machine,
    *,
    targets: Sequence[Target] = (),
    gpus: Sequence[str] = (),
) -> Choice:
    """Choose artifacts.

    `targets` that were asked for are proposed even where only another machine can build them. TensorRT-RTX
    builds for `gpus`; by default for the GPU's here, or `USUAL_GPUS`.
    """
    chosen = _Chooser(model, data, machine, targets, gpus)
    return Choice(tuple(chosen.artifacts()), tuple(chosen.left_out()))


@dataclass
class _Chooser:
    model: ModelFacts
    data: DataFacts
    machine: Machine
    asked: Sequence[Target]
    gpus: Sequence[str]

    def __post_init__(self) -> None:
        model, data = self.model, self.data
        self.is_quantized = model.precision != "fp32"
        self.quantizes = bool(model.kinds) and not self.is_quantized
        self.has_ranges = bool(data.calibration) or model.precision == "int8"
        self.dynamic = bool(model.kinds & {"attention", "recurrent"}) or "convolution" not in model.kinds

    def takes(self, target: Target) -> bool:
        return target in self.asked if self.asked else target not in self.machine.missing

    def artifacts(self) -> Iterator[Proposed]:
        for target in TARGETS:
            lines = list(self._of_tensorrt(target)) if target in TENSORRT_TARGETS else []
            fits: dict[When, bool] = {
                "float": not self.is_quantized,
                "float alone": not self._static and not self.is_quantized,
                "static": self._static,
                "dynamic": self.quantizes and self.dynamic,
                "bf16": not self.machine.emulates_bf16 and not self.is_quantized,
                "named": target in self.asked,
            }
            for one in engine(target).proposals() if self.takes(target) else ():
                if fits[one.when]:
                    what = ("target", target, ""), ("precision", one.precision, "")
                    mode: list[Line] = [("mode", one.mode, "")] if one.mode else []
                    yield Proposed(one.name, one.why, (*what, *lines, *mode))

    def _proposes(self, when: When) -> Iterator[Target]:
        """Targets that are taken and have a proposal of a kind."""
        for target in filter(self.takes, TARGETS):
            if any(one.when == when for one in engine(target).proposals()):
                yield target

    @property
    def _static(self) -> bool:
        return (self.quantizes and self.has_ranges) or self.model.precision == "int8"

    def _of_tensorrt(self, target: Target) -> Iterator[Line]:
        """GPUs, and shapes where axes beyond the batch are dynamic: the defaults know only of batches."""
        if target == "tensorrt-rtx" and self.gpus:
            yield "gpus", list(self.gpus), "as asked for"
        elif target == "tensorrt-rtx" and self.machine.gpu:
            yield "gpus", [self.machine.gpu], "the GPU of this machine"
        elif target == "tensorrt-rtx":
            yield "gpus", list(USUAL_GPUS), "Ampere and Ada, ahead of time: this machine has no GPU"
        if not any(axis for one in self.model.inputs for axis in one.dynamic_axes):
            return
        why = ("smallest shapes", "shapes to optimize for", "largest shapes: other inputs are refused")
        for index, kind in enumerate(("min_shapes", "opt_shapes", "max_shapes")):
            extents = {one.name: _extents(one, self.model)[index] for one in self.model.inputs}
            yield kind, [f"{name}:{format_shape(shape)}" for name, shape in extents.items()], why[index]

    def left_out(self) -> Iterator[LeftOut]:
        if not self.asked:
            for target, reason in self.machine.missing.items():
                if target != "torchscript":
                    yield LeftOut(target, reason, self.machine.fixes[target])
            yield LeftOut("torchscript", "seldom faster than eager PyTorch", 'target = "torchscript"')
        if self.quantizes and not self.has_ranges:
            how = "give them as `data`; 100 to 500 are enough"
            yield LeftOut("static INT8", "it needs samples to calibrate on", how)
        if not self.data.evaluation:
            why = "no labelled samples: the table compares speed alone"
            yield LeftOut("accuracy", why, "give samples as `data`")
        if not self.model.kinds:
            yield LeftOut("INT8", "no layer of the model multiplies with weights")
        elif self.quantizes and not self.dynamic and any(self._proposes("dynamic")):
            why = "it quantizes products of matrices alone: convolutions would stay in float"
            yield LeftOut("dynamic INT8", why, 'mode = "dynamic"')
        if self.machine.emulates_bf16 and not self.is_quantized:
            for target in self._proposes("bf16"):
                yield LeftOut(f"{target} bf16", self.machine.emulates_bf16)


def _extents(one: TensorInfo, model: ModelFacts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Least, usual and largest shape of an input."""
    from ...model.preprocessing import preprocessing_of

    said = {extents.axis: extents for extents in one.extents}
    longest = getattr(preprocessing_of(model.inputs), "max_length", 0)
    least, usual, most = [], [], []
    for axis, dim in enumerate(one.shape):
        if isinstance(dim, int):
            low = middle = high = dim
        elif axis == 0:
            low, middle, high = 1, batch_size(model)[0], DEFAULT_MAX
        else:
            known = said.get(axis)
            low = known.minimum if known else 1
            high = (known.maximum if known and known.maximum else 0) or longest or 512
            middle = (known.traced if known and known.traced else 0) or max(low, min(high, 128))
        least.append(low)
        usual.append(middle)
        most.append(high)
    return tuple(least), tuple(usual), tuple(most)


def batch_size(model: ModelFacts, samples: int | None = None) -> tuple[int, str]:
    """Return the batch that is measured, a power of two, and why: enough work to be measured, and no more.

    It does not exceed the `samples` of the evaluation, if their number is known.
    """
    for one in model.inputs:
        if one.shape and isinstance(one.shape[0], int):
            return one.shape[0], "the model takes no other"
    if not model.multiply_adds:
        return 1, "the latency of one sample"
    batch, most = 1, DEFAULT_MAX if samples is None else min(DEFAULT_MAX, samples)
    while 2 * batch <= most and 2 * batch * model.multiply_adds <= CALL_MULTIPLY_ADDS:
        batch *= 2
    if batch == 1:
        return 1, "the latency of one sample; a larger one measures throughput"
    return batch, "one sample is too little work to measure; 1 measures its latency"


def bench_lines(
    model: ModelFacts, data: DataFacts, artifacts: Sequence[Proposed], asked: InitSpec
) -> list[Line]:
    """Return the keys of `[bench]`."""
    lines: list[Line] = [("batch_size", *batch_size(model, data.samples))]
    first = artifacts[0].name
    if model.is_onnx:
        lines.append(("baseline", first, "there is no PyTorch model to compare with"))
    if data.evaluation:
        known = asked.metric != AUTO
        metric = (asked.metric, "as asked for") if known else (data.metric, data.why_metric)
        lines.append(("metric", *metric))
        if asked.max_drop is not None:
            why = "the report recommends nothing that may lose more, in points"
            lines.append(("max_drop", asked.max_drop, why))
    if asked.max_time_s is not None:
        lines.append(("max_time_s", asked.max_time_s, "as asked for"))
    else:
        seconds = min(max(_SECONDS_EACH * (len(artifacts) + 1), _SECONDS[0]), _SECONDS[1])
        why = f"{_SECONDS_EACH:g} s for each of {len(artifacts) + 1} rows; more narrows the intervals"
        lines.append(("max_time_s", seconds, why))
    return lines
