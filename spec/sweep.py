"""A matrix of artifacts: `[sweep]` of a recipe, and `qcompile sweep`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..errors import UsageError
from ..tensors import parse_shapes
from .artifacts import PLAIN_NAME
from .cluster import LOCAL, SchedulerOptions
from .decode import Checked, Refused
from .option import COMMA, SHAPES, argument, option
from .words import TENSORRT_TARGETS, BuildPrecision, NamedModel, Target

EACH_GPU = "each"
"""In `sweep.gpus`: every kind of GPU that the workers have."""
THIS_PROCESS = "none"
"""In place of a scheduler's address: no processes but this one."""
_LABEL = re.compile(r"([\w][\w.+-]*)=(.+)")
_BATCH = re.compile(r"[0-9]{1,9}")

Extents = tuple[int, ...]


@dataclass(frozen=True)
class SweepShape:
    """A shape of the matrix.

    Attributes:
        label: What stands for it in names, such as "b8".
        text: As the recipe spells it, without the label.
        batch: Samples per call that are measured.
        inputs: Input to the least shape, the one that is measured, and the largest; empty for a batch alone.
    """

    label: str
    text: str
    batch: int
    inputs: Mapping[str, tuple[Extents, Extents, Extents]]


@dataclass(frozen=True)
class Combination:
    """What is built of a model; for TensorRT a kind of GPU, or "" for the one in the machine."""

    target: Target
    precision: BuildPrecision
    gpu: str = ""

    @property
    def name(self) -> str:
        """Of the artifact: "tensorrt-rtx-fp16-sm86"."""
        return "-".join(filter(None, (self.target, self.precision, self.gpu)))


@dataclass(frozen=True, kw_only=True)
class SweepModel(Checked):
    """`[[sweep.model]]`: a model with inputs or data of its own, in place of the recipe's."""

    name: Annotated[str, option("Name of the model.", metavar="a plain file name", pattern=PLAIN_NAME)]
    source: Annotated[str, option("MODEL, as `model.source` spells it.", min_length=1, metavar="MODEL")]
    inputs: Annotated[
        tuple[str, ...],
        option("An input, as `model.inputs` spells it.", metavar="NAME:SHAPE[:DTYPE]"),
    ] = ()
    weights: Annotated[str, option("Weights, as `model.weights` spells them.", metavar="random|FILE")] = ""
    preprocessing: Annotated[
        str, option("How samples become the inputs, as `model.preprocessing`.", metavar="NAME|FILE.json")
    ] = ""
    calibration: Annotated[str, option("Samples to calibrate on.")] = ""
    evaluation: Annotated[str, option("Labelled samples for accuracy and output difference.")] = ""


@dataclass(frozen=True, kw_only=True)
class SweepSection(Checked):
    """`[sweep]`: models, shapes, targets, precisions and GPUs, of which `qcompile sweep` builds and measures
    every combination."""

    models: Annotated[
        tuple[NamedModel, ...],
        option("Model to sweep over, in place of `model.source`.", metavar="NAME=MODEL"),
    ] = ()
    model: Annotated[
        tuple[SweepModel, ...], option("Models with inputs or data of their own, one table each.")
    ] = ()
    targets: Annotated[
        tuple[Target, ...], option("Runtime to build for; an artifact for each of `precisions`.")
    ] = ()
    precisions: Annotated[
        tuple[BuildPrecision, ...], option("Precision to build in, for each of `targets`.")
    ] = ()
    shapes: Annotated[
        tuple[str, ...],
        option(
            "Shape to measure: a batch size such as 8, an input such as x:8x3x224x224, or the least, the "
            "measured and the largest shape of an engine, x:1x3x224x224..8x3x224x224..32x3x224x224.",
            metavar="[LABEL=]SHAPE",
        ),
    ] = ()
    gpus: Annotated[
        tuple[str, ...],
        option(
            "Compute capability to build for, such as sm86, or each for every kind that the workers have; an "
            "engine of TensorRT for each.",
            metavar="SM",
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        option("Cells to leave out: globs over their names, such as *-openvino-fp16.", metavar="GLOB"),
    ] = ()

    def check(self) -> None:
        """Read the shapes, and refuse what is given twice."""
        if bool(self.targets) != bool(self.precisions):
            key = "precisions" if self.targets else "targets"
            raise Refused(key, "is missing; every target is built in every precision")
        for index, text in enumerate(self.models):
            if not re.match(PLAIN_NAME, text.partition("=")[0].strip()):
                raise Refused(f"models[{index}]", "a plain file name before the = is required", value=text)
        for key, names in (
            ("models", [one.name for one in self.every_model()]),
            ("targets", self.targets),
            ("precisions", self.precisions),
            ("shapes", [one.label for one in self.read_shapes()]),
            ("gpus", self.gpus),
        ):
            seen: set[str] = set()
            for index, name in enumerate(names):
                if name.casefold() in seen:
                    where = f"{key}[{index}]" if index < len(getattr(self, key)) else "model"
                    raise Refused(where, "another one is required: it is taken", value=name)
                seen.add(name.casefold())

    def every_model(self) -> list[SweepModel]:
        """Return the models: those of `models`, then those with a table."""
        named = (text.partition("=") for text in self.models)
        return [*(SweepModel(name=name.strip(), source=model) for name, _, model in named), *self.model]

    def combinations(self, gpus: Sequence[str] | None = None) -> Iterator[Combination]:
        """Yield what is built of each model and shape.

        Args:
            gpus: Kinds of GPU in place of those that the recipe names.
        """
        known = tuple(one for one in self.gpus if one != EACH_GPU) if gpus is None else tuple(gpus)
        for target in self.targets:
            takes = known if target in TENSORRT_TARGETS and known else ("",)
            for precision in self.precisions:
                for gpu in takes:
                    yield Combination(target, precision, gpu)

    def read_shapes(self) -> list[SweepShape]:
        """Return the shapes.

        Raises:
            Refused: If one cannot be read.
        """
        return [_shape(text, f"shapes[{index}]") for index, text in enumerate(self.shapes)]


def _shape(text: str, key: str) -> SweepShape:
    """`8`, `x:8x3x32x32`, `small=x:1x3x32x32..8x3x32x32..16x3x32x32`."""
    named = _LABEL.fullmatch(text.strip())
    label, body = (named[1], named[2].strip()) if named else ("", text.strip())
    if _BATCH.fullmatch(body):
        if int(body) < 1:
            raise Refused(key, "a batch of at least 1 is required", value=text)
        return SweepShape(label or f"b{int(body)}", body, int(body), {})
    inputs = dict(_inputs(body, key, text))
    batches = {opt[0] for _, opt, _ in inputs.values() if opt}
    if len(batches) != 1:
        found = ", ".join(map(str, sorted(batches))) or "none"
        raise Refused(
            key, f"one batch, the first extent of every input, is required; found {found}", value=text
        )
    return SweepShape(label or _label(body), body, batches.pop(), inputs)


def _inputs(body: str, key: str, text: str) -> Iterator[tuple[str, tuple[Extents, Extents, Extents]]]:
    seen = set()
    for part in re.split(SHAPES, body):
        name, colon, spelled = part.strip().rpartition(":")
        shapes = spelled.split("..")
        if not colon or not name or len(shapes) not in (1, 3):
            raise Refused(key, "a batch size, NAME:SHAPE or NAME:MIN..OPT..MAX is required", value=text)
        if name in seen:
            raise Refused(key, f"the input {name!r} is given twice", value=text)
        seen.add(name)
        try:
            low, opt, high = (
                parse_shapes([f"{name}:{shape}"], option=key)[name]
                for shape in (shapes if len(shapes) == 3 else shapes * 3)
            )
        except UsageError as error:
            raise Refused(key, error.message.removeprefix(f"{key}: "), value=text, hint=error.hint) from error
        ordered = len(low) == len(opt) == len(high) and all(
            1 <= a <= b <= c for a, b, c in zip(low, opt, high, strict=True)
        )
        if not ordered:
            raise Refused(key, "MIN up to OPT up to MAX, of as many axes, is required", value=text)
        yield name, (low, opt, high)


def _label(body: str) -> str:
    """A plain part of a file name: `x:8x3x32x32` becomes `x-8x3x32x32`."""
    return re.sub(r"[^\w.+]+", "-", body.replace("..", "-to-")).strip("-.")


@dataclass(frozen=True, kw_only=True)
class SweepCommand(SchedulerOptions):
    """Build and measure every cell of the matrix in `[sweep]` of a RECIPE: model x shape x target x precision
    x GPU. A cell that fails is told, the rest goes on; running again does only what is missing.

    OUTPUT/sweep.json holds the results, OUTPUT/sweep.html the report. The exit code is 1 if a cell failed.
    """

    recipe: Annotated[Path, argument("TOML file.")]
    scheduler: Annotated[
        str,
        option(
            "Dask scheduler whose workers carry out the stages: tls://HOST:PORT, its file, local for "
            "processes on this machine, or none for one stage after the other in this process.",
            metavar="ADDRESS",
        ),
    ] = LOCAL
    output: Annotated[
        Path | None,
        option("Folder of the results, instead of the recipe's.", short="-o", metavar="FOLDER"),
    ] = None
    only: Annotated[
        tuple[str, ...],
        option(
            "Cells to build and measure: glob over their names, such as *-int8; default: all.",
            metavar="GLOB",
            split=COMMA,
        ),
    ] = ()
    again: Annotated[
        tuple[str, ...],
        option("Stage to run again although nothing changed, such as bench.", metavar="STAGE", split=COMMA),
    ] = ()
    dry_run: Annotated[bool, option("Print the cells and the number of stages without running any.")] = False
    trust: Annotated[
        bool,
        option("Run code that the recipe names outside its folder, write there, and load files with code."),
    ] = False
