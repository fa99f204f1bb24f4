"""From a model, data and a machine to the artifacts of a recipe, each with its reason; and what is left out.

model   float                 -> FP32 on ONNX Runtime, INT8 where there are products or convolutions
        attention, recurrent  -> INT8 dynamic too: it needs no calibration
        Q/DQ already          -> INT8 alone
data    none                  -> no static INT8
machine no builder of a kind  -> none of its artifacts; the line that installs it is named
        no GPU                -> TensorRT-RTX engines ahead of time, which this machine cannot measure
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engines.gpu import find_gpu
from ...engines.registry import engine
from ...engines.words import When
from ...processor import processor, why_emulated
from ...spec.words import AUTO, TARGETS, TENSORRT_TARGETS, Target
from ...tensors import TensorInfo, format_shape
from ..recipe import DEFAULT_MAX
from .data_facts import DataFacts
from .model_facts import ModelFacts

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
class Machine:
    """What can be built and run here.

    Attributes:
        missing: Target to why nothing can be built for it here; those that can are not in it.
        fixes: Target to what installs it; empty where nothing does.
        gpu: Compute capability of its GPU; empty without one.
        emulates_bf16: Why the processor does not multiply in bfloat16; empty where it does.
    """

    missing: dict[str, str]
    fixes: dict[str, str]
    gpu: str = ""
    processor: str = ""
    cores: int = 1
    emulates_bf16: str = ""


def look_at_machine(targets: Sequence[Target] = TARGETS) -> Machine:
    """Look at the targets, as `doctor` does; imports their runtimes."""
    from ...model.session import usable_cores

    reasons = {target: engine(target).why_not_build() for target in targets}
    missing: dict[str, str] = {target: reason for target, reason in reasons.items() if reason}
    fixes: dict[str, str] = {target: engine(target).fix() for target in targets if target in missing}
    gpu = find_gpu()
    return Machine(
        missing, fixes, gpu.architecture if gpu else "",
        str(processor()["processor"]), usable_cores(), why_emulated("bf16"),
    )  # fmt: skip


@dataclass(frozen=True)
class Proposed:
    """An artifact: its name, why it is there, and its keys."""

    name: str
    why: str
    lines: tuple[Line, ...]

    @property
    def target(self) -> str:
        """What it is built for."""
        return str(next(value for key, value, _ in self.lines if key == "target"))


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
    chosen = _Chooser(model, data, machine, tuple(targets), tuple(gpus))
    return Choice(tuple(chosen.artifacts()), tuple(chosen.left_out()))


class _Chooser:
    def __init__(
        self,
        model: ModelFacts,
        data: DataFacts,
        machine: Machine,
        targets: tuple[Target, ...],
        gpus: tuple[str, ...],
    ) -> None:
        self.model, self.data, self.machine = model, data, machine
        self.asked, self.gpus = targets, gpus
        self.is_quantized = model.precision != "fp32"
        self.quantizes = bool(model.kinds) and not self.is_quantized
        self.has_ranges = bool(data.calibration) or model.precision == "int8"
        self.dynamic = bool(model.kinds & {"attention", "recurrent"}) or "convolution" not in model.kinds

    def takes(self, target: Target) -> bool:
        """Whether a target is proposed."""
        return target in self.asked if self.asked else target not in self.machine.missing

    def artifacts(self) -> Iterator[Proposed]:
        for target in TARGETS:
            is_tensorrt = target in TENSORRT_TARGETS
            lines = [*self._built_for(target), *self._shapes()] if is_tensorrt else []
            for one in engine(target).proposals() if self.takes(target) else ():
                if self._fits(one.when, target):
                    mode: list[Line] = [("mode", one.mode, "")] if one.mode else []
                    yield _artifact(one.name, target, one.precision, one.why, *lines, *mode)

    def _fits(self, when: When, target: Target) -> bool:
        """Whether the model, the data and the processor are what a proposal is for."""
        return {
            "float": not self.is_quantized,
            "float alone": not self._static and not self.is_quantized,
            "static": self._static,
            "dynamic": self.quantizes and self.dynamic,
            "bf16": not self.machine.emulates_bf16 and not self.is_quantized,
            "named": target in self.asked,
        }[when]

    def _proposes(self, when: When) -> Iterator[Target]:
        """Targets that are taken and have a proposal of a kind."""
        for target in filter(self.takes, TARGETS):
            if any(one.when == when for one in engine(target).proposals()):
                yield target

    @property
    def _static(self) -> bool:
        return (self.quantizes and self.has_ranges) or self.model.precision == "int8"

    def _built_for(self, target: Target) -> Iterator[Line]:
        if target != "tensorrt-rtx":
            return
        if self.gpus:
            yield "gpus", list(self.gpus), "as asked for"
        elif self.machine.gpu:
            yield "gpus", [self.machine.gpu], "the GPU of this machine"
        else:
            yield "gpus", list(USUAL_GPUS), "Ampere and Ada, ahead of time: this machine has no GPU"

    def _shapes(self) -> Iterator[Line]:
        """Shapes of an engine whose axes beyond the batch are dynamic: the defaults know only of batches."""
        if not self.model.has_open_axes:
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


def _artifact(name: str, target: str, precision: str, why: str, *lines: Line) -> Proposed:
    return Proposed(name, why, (("target", target, ""), ("precision", precision, ""), *lines))


def _extents(one: TensorInfo, model: ModelFacts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Least, usual and largest shape of an input."""
    said = {extents.axis: extents for extents in one.extents}
    longest = getattr(model.preprocessing, "max_length", 0)
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
    if model.fixed_batch is not None:
        return model.fixed_batch, "the model takes no other"
    if not model.multiply_adds:
        return 1, "the latency of one sample"
    batch, most = 1, DEFAULT_MAX if samples is None else min(DEFAULT_MAX, samples)
    while 2 * batch <= most and 2 * batch * model.multiply_adds <= CALL_MULTIPLY_ADDS:
        batch *= 2
    if batch == 1:
        return 1, "the latency of one sample; a larger one measures throughput"
    return batch, "one sample is too little work to measure; 1 measures its latency"


def bench_lines(
    model: ModelFacts,
    data: DataFacts,
    artifacts: Sequence[Proposed],
    *,
    metric: str = "auto",
    max_drop: float | None = None,
    max_time_s: float | None = None,
) -> list[Line]:
    """Return the keys of `[bench]`."""
    lines: list[Line] = [("batch_size", *batch_size(model, data.samples))]
    first = artifacts[0].name
    if model.is_onnx:
        lines.append(("baseline", first, "there is no PyTorch model to compare with"))
    if data.evaluation:
        known = metric != AUTO
        lines.append(("metric", *((metric, "as asked for") if known else (data.metric, data.why_metric))))
        if max_drop is not None:
            lines.append(
                ("max_drop", max_drop, "the report recommends nothing that may lose more, in points")
            )
    if max_time_s is not None:
        lines.append(("max_time_s", max_time_s, "as asked for"))
    else:
        seconds = min(max(_SECONDS_EACH * (len(artifacts) + 1), _SECONDS[0]), _SECONDS[1])
        why = f"{_SECONDS_EACH:g} s for each of {len(artifacts) + 1} rows; more narrows the intervals"
        lines.append(("max_time_s", seconds, why))
    return lines
