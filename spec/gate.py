"""`gate`: whether a new version of an artifact may replace the old one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from .decode import Checked, Refused
from .measure import Evaluation, Inputs, MetricName, Pythons, Timeout, Trust
from .option import argument, option
from .words import AUTO, NonNegative

OutputsRule = Literal["auto", "same", "any"]


@dataclass(frozen=True, kw_only=True)
class GateOptions(Checked):
    """What a new version must keep, and how it is measured."""

    max_slower: Annotated[float, option("Slowdown that passes, in percent.", metavar="PERCENT", gt=0)] = 2.0
    max_larger: Annotated[
        float,
        option("Growth of the file with its side files that passes, in percent.", metavar="PERCENT", ge=0),
    ] = 1.0
    max_drop: Annotated[
        NonNegative | None,
        option(
            "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: one "
            "whose interval contains 0.",
            metavar="POINTS",
        ),
    ] = None
    outputs: Annotated[
        OutputsRule,
        option(
            "Whether the outputs must be the same within the default tolerances of `diff`; auto: yes, unless "
            "accuracy decides or the precisions differ."
        ),
    ] = "auto"
    strict: Annotated[
        bool, option("Fail also where nothing could be decided, or an artifact cannot run here.")
    ] = False
    skip_identical: Annotated[
        bool, option("Pass files that are the same byte for byte without measuring them.")
    ] = False
    data: Annotated[
        str | None, option("Samples to time and compare outputs on, instead of random input.", metavar="DATA")
    ] = None
    evaluation: Evaluation = None
    metric: MetricName = AUTO
    inputs: Inputs = ()
    batch_size: Annotated[int | None, option("Samples per call of a model with a dynamic batch.")] = None
    threads: Annotated[
        int,
        option(
            "Threads of every artifact; 0 means all usable cores. Take 1 where others use the cores.", ge=0
        ),
    ] = 0
    max_time_s: Annotated[
        float,
        option(
            "Time limit for the rounds and launches of a pair, in seconds; a clear case ends earlier.",
            flag="--max-time",
            metavar="SECONDS",
            gt=0,
        ),
    ] = 30.0
    device: Annotated[
        str | None,
        option("Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1.", metavar="DEVICE"),
    ] = None
    python: Pythons = ()
    timeout_s: Timeout = 600.0
    trust: Trust = False

    def check(self) -> None:
        """Refuse a limit on accuracy that nothing measures."""
        if self.max_drop is not None and self.evaluation is None:
            raise Refused("max_drop", "accuracy needs labelled samples", hint="give `evaluation`")


@dataclass(frozen=True, kw_only=True)
class GateCommand(GateOptions):
    """Measure OLD and NEW, interleaved in one job; exit code 1 if NEW is slower, larger or less accurate.

    Both are an artifact or MODEL, or two folders of recipes: then every artifact that both hold is judged.
    Measuring goes on until the interval of the slowdown decides or the time is over. What stays undecided
    is reported and passes, unless --strict is given.
    """

    old: Annotated[str, argument("Artifact, MODEL or folder to compare with, such as the main branch's.")]
    new: Annotated[str, argument("Artifact, MODEL or folder to judge.")]
    junit: Annotated[Path | None, option("JUnit XML file to write.", metavar="FILE")] = None
    markdown: Annotated[Path | None, option("Markdown file to write.", metavar="FILE")] = None
