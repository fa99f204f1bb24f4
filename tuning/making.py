"""One trial: a candidate is quantized, built and scored, by this process or by another with the same files.

TrialSetting ─▶ TrialMaker ── TrialAsk ─▶ files and Score
             └▶ Elsewhere  ── TrialAsk ─▶ files and Score, several at a time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from ..bench.metrics.metric import Metric, Outputs, Scored, Truth
from ..bench.outputs import paired
from ..building import build_lowered
from ..calibration import Ranges, load_ranges, parse_method
from ..compiler.quantize.sensitivity import LayerSensitivity, rank_layers
from ..data.batches import Data
from ..data.readers import Batch
from ..engines.registry import capabilities, engine
from ..errors import DataError
from ..lowering import lower
from ..model.graph_rules import graph_target
from ..model.onnx_file import load_onnx, model_io
from ..progress import Progress, silent
from ..spec.artifacts import BuildSpec
from ..spec.decode import parse_spec
from ..spec.words import FloatPrecision, Isa, Target
from ..tensors import TensorInfo

_LOOKED_AT = 8  # samples that rank the layers


@dataclass(frozen=True)
class TrialSetting:
    """What all trials of one tuning share.

    Attributes:
        model: Float ONNX file.
        ranges: Its ranges file.
        data: Samples that accuracy is measured on.
        metric: What accuracy is.
        samples: At most so many of them; None for all.
        method: Calibration method; None for the ranges' own.
        exclude: Patterns of nodes that stay in float.
        threads: Of every artifact; 0 takes every core.
        isa: What INT8 is for, wherever it is made.
    """

    model: Path
    ranges: Path
    data: str
    metric: str
    samples: int | None = None
    method: str | None = None
    exclude: tuple[str, ...] = ()
    threads: int = 0
    isa: Isa = "auto"


@dataclass(frozen=True)
class TrialAsk:
    """What one trial is: "fp32", "bf16" or "int8" for a target, and the name of its file.

    For INT8, `in_float` are the layers that are left in float, computed in `float_precision`.
    """

    name: str
    target: Target
    precision: str
    in_float: frozenset[str] = frozenset()
    float_precision: FloatPrecision = "fp32"

    @property
    def file(self) -> str:
        """Name of the artifact's file."""
        return f"{self.name}{engine(self.target).suffix}"

    def as_json(self) -> dict[str, Any]:
        """Return the form that is sent; the same ask is the same text."""
        return {**vars(self), "in_float": sorted(self.in_float)}


def read_ask(value: Mapping[str, Any]) -> TrialAsk:
    """Return the ask of `TrialAsk.as_json`."""
    return msgspec.convert(value, TrialAsk)


class Score(msgspec.Struct, frozen=True):
    """The metric of an artifact, its drop against the float model, and the ends of its paired interval."""

    value: float
    drop: float
    low: float | None
    high: float | None


class Elsewhere(Protocol):
    """Makes trials and ranks layers in other processes or on other machines.

    Attributes:
        parallel: How many may be asked for at a time, each from a thread of its own.
    """

    parallel: int

    def make(self, ask: TrialAsk) -> tuple[Score, Sequence[Path]]:
        """Make one trial, and return its score, and its files here."""

    def rank(self, target: Target, part: int, parts: int) -> list[LayerSensitivity]:
        """Return the damage of the layers of one part, of 1 to `parts`, as `rank_part`."""

    def close(self) -> None:
        """Nothing more is asked for."""


class TrialMaker:
    """Makes trials of one float model in this process; its data has the labels that the metric needs."""

    def __init__(self, setting: TrialSetting, progress: Progress = silent) -> None:
        self.setting = setting
        io = model_io(load_onnx(setting.model, external_data=False))
        self.ranges: Ranges = load_ranges(setting.ranges)
        metric = read_metric(setting.metric).for_inputs(io.inputs)
        self.batches: list[Batch] = list(Data(setting.data, io.inputs, limit=setting.samples))
        if metric.needs_labels and any(batch.labels is None for batch in self.batches):
            raise DataError(
                f"{setting.data}: has no labels, and metric {metric.name} needs them",
                hint="yield (inputs, labels), put `labels` beside the arrays, or give `metric` cosine",
            )
        if not self.batches:
            raise DataError(f"{setting.data}: holds no samples; accuracy needs at least one")
        progress("run the float model")
        with engine("onnxruntime").open(str(setting.model), threads=setting.threads) as runner:
            self.reference: list[Outputs] = [runner.infer(batch.feeds) for batch in self.batches]
        truths = [Truth(batch.labels, batch.samples, batch.where) for batch in self.batches]
        self.metric: Metric = metric.resolved(self.reference[0], truths[0])
        self.scored = [
            self.metric.score(outputs, outputs, truth)
            for truth, outputs in zip(truths, self.reference, strict=True)
        ]
        self._float = self._sums(self.scored)
        self.float_value = self._float.value()

    def make(self, ask: TrialAsk, folder: Path, progress: Progress = silent) -> Score:
        """Build an artifact in a folder and score it."""
        spec, chosen = self._spec(ask), engine(ask.target)
        path, graph = folder / ask.file, folder / f"{ask.name}.graph.onnx"
        lowered = lower(self.setting.model, spec, capabilities(chosen), graph, ranges=self.ranges)
        progress(f"build {ask.name}")
        build_lowered(self.setting.model, path, spec, lowered)
        progress(f"accuracy of {ask.name}")
        scored = []
        with chosen.open(str(path), threads=self.setting.threads) as runner:
            for batch, expected in zip(self.batches, self.reference, strict=True):
                outputs = paired(expected, runner.infer(batch.feeds))
                truth = Truth(batch.labels, batch.samples, batch.where)
                scored.append(self.metric.score(outputs, expected, truth))
        found = accuracy(self._sums(scored), self._float)
        assert found.drop is not None, "every artifact is compared with the float model"
        return Score(found.value, found.drop.value, found.drop.low, found.drop.high)

    def _spec(self, ask: TrialAsk) -> BuildSpec:
        """What a trial is; what an artifact is worth is measured, also of one that missed its precision."""
        setting = self.setting
        options: dict[str, Any] = {"target": ask.target, "precision": ask.precision, "isa": setting.isa}
        if ask.precision == "int8":
            options |= {
                "float_precision": ask.float_precision, "method": setting.method,
                "exclude": (*setting.exclude, *sorted(ask.in_float)), "correct_bias": False,
            }  # fmt: skip
        return parse_spec(BuildSpec, {**options, "threads": setting.threads, "allow_fallback": True})

    def _sums(self, scored: Sequence[Scored]) -> ScoreSums:
        sums = ScoreSums(self.metric)
        for batch, own, reference in zip(self.batches, scored, self.scored, strict=True):
            sums.add(own, reference, batch.samples)
        return sums


def rank_part(
    setting: TrialSetting, target: Target, part: int = 1, parts: int = 1, *, progress: Progress = silent
) -> list[LayerSensitivity]:
    """Return the damage of the layers of one part of the graph, by default of all, the worst first."""
    model = load_onnx(setting.model)
    io = model_io(model)
    return rank_layers(
        model,
        graph_target(target),
        load_ranges(setting.ranges),
        Data(setting.data, io.inputs, batch_size=1, limit=_looked_at(io.inputs)),
        method=parse_method(setting.method) if setting.method else None,
        exclude=setting.exclude,
        part=(part, parts),
        progress=progress,
    )


def _looked_at(inputs: Sequence[TensorInfo]) -> int:
    """How many samples rank the layers: at least one batch of a model that takes no smaller one."""
    fixed = [int(one.shape[0]) for one in inputs if one.shape and isinstance(one.shape[0], int)]
    return max(_LOOKED_AT, *fixed) if fixed else _LOOKED_AT
