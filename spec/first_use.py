"""The verbs of the first ten minutes: `init` and `auto`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .cluster import SchedulerOptions
from .decode import Checked, Refused
from .measure import MaxDrop
from .models import DOWNLOAD, WEIGHTS
from .option import COMMA, argument, option
from .words import METRIC, METRIC_PATTERN, TARGETS, NonNegative, Positive, Target


class ProposalOptions(Checked):
    """What a recipe is proposed from."""

    data: Annotated[
        str,
        option(
            "Samples for calibration and for accuracy: one set is divided between the two, where it can be.",
            "DATA",
        ),
    ] = ""
    calibration: Annotated[str, option("Samples to calibrate on; default: those of --data.", "DATA")] = ""
    evaluation: Annotated[str, option("Labelled samples for accuracy; default: those of --data.", "DATA")] = (
        ""
    )
    inputs: Annotated[
        tuple[str, ...], option("Input of a MODEL that declares none.", "--input -i NAME:SHAPE[:DTYPE]")
    ] = ()
    weights: WEIGHTS = ""
    download: DOWNLOAD = False
    targets: Annotated[
        tuple[str, ...],
        option(
            f"Runtime to build for: {', '.join(TARGETS)}; default: those installed.",
            "--target TARGET",
            split=COMMA,
        ),
    ] = ()
    gpus: Annotated[
        tuple[str, ...],
        option(
            "Compute capability to build TensorRT-RTX engines for; default: sm86 and sm89, or the GPU here.",
            "--gpu SM",
            split=COMMA,
        ),
    ] = ()
    metric: Annotated[
        str,
        option(
            f"Accuracy metric: {METRIC}; auto is by the task and the labels.", METRIC, pattern=METRIC_PATTERN
        ),
    ] = "auto"
    max_time_s: Annotated[
        Positive | None,
        option(
            "Time limit of the measurement, in seconds; default: by the number of artifacts.",
            "--max-time SECONDS",
        ),
    ] = None

    trust: Annotated[bool, option("Load a .pt2 that runs code, or a SavedModel that touches files.")] = False

    def check(self) -> None:
        """Refuse a target that there is none of."""
        for target in self.targets:
            if target not in TARGETS:
                raise Refused("targets", f"one of {', '.join(TARGETS)} is required", value=target)

    @property
    def asked(self) -> tuple[Target, ...]:
        """The targets that were asked for, in the order of all."""
        return tuple(name for name in TARGETS if name in self.targets)


class InitSpec(ProposalOptions):
    """All that `init` is told beside the model."""

    output: Annotated[Path, option("Recipe to write.", "-o FILE")] = Path("recipe.toml")
    max_drop: Annotated[
        NonNegative | None, option("Largest drop in accuracy of a recommended artifact, in points.", "POINTS")
    ] = None
    force: Annotated[bool, option("Overwrite an existing recipe.")] = False


_MODEL = Annotated[str, argument("Model: timm:NAME, hf:NAME_OR_FOLDER, file.py:function, .onnx, ...")]


class InitCommand(InitSpec):
    """Write a commented recipe for MODEL, which `qcompile run` runs as it is.

    It looks at the model, the data and what is installed here. Each choice has a comment with its reason.
    Without data, the recipe builds and measures what needs none.
    """

    model: _MODEL


class AutoSpec(ProposalOptions):
    """All that `auto` is told beside the model."""

    max_drop: MaxDrop
    output: Annotated[Path | None, option("Folder to write; default: auto-NAME.", "-o FOLDER")] = None
    force: Annotated[bool, option("Write the recipe in the folder anew.")] = False


class AutoCommand(SchedulerOptions, AutoSpec):
    """Find the artifact of MODEL to use, within an accuracy budget: init, run, tune, report.

    The last line names the artifact and what it costs. The exit code is 1 if no artifact is faster within the
    budget. An artifact keeps the budget if the upper end of the interval of its drop does. A second call
    skips what is done.
    """

    model: _MODEL
