"""A matrix of artifacts: `[sweep]` of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..errors import UsageError
from .artifacts import PLAIN_NAME
from .decode import Checked, Refused
from .option import SHAPES, option
from .tensors import parse_shapes
from .words import TENSORRT_TARGETS, BuildPrecision, NamedModel, Target, Texts

EACH_GPU = "each"
"""Value of `sweep.gpus` for every kind of GPU that the workers have."""
_LABEL = re.compile(r"([\w][\w.+-]*)=(.+)")
_BATCH = re.compile(r"[0-9]{1,9}")

Extents = tuple[int, ...]


@dataclass(frozen=True)
class SweepShape:
    """A shape of the matrix.

    `label` stands for it in names, such as "b8". `batch` is the number of samples per measured call. `inputs`
    has the min, opt and max shape of each input, and is empty for a batch size alone.
    """

    label: str
    batch: int
    inputs: Mapping[str, tuple[Extents, Extents, Extents]]


@dataclass(frozen=True)
class Combination:
    """An artifact of each model and shape; `gpu` is TensorRT's kind of GPU, or "" for the local GPU."""

    target: Target
    precision: BuildPrecision
    gpu: str = ""

    @property
    def name(self) -> str:
        """Name of the artifact: "tensorrt-rtx-fp16-sm86"."""
        return "-".join(filter(None, (self.target, self.precision, self.gpu)))


class SweepModel(Checked):
    """`[[sweep.model]]`: a model with inputs or data in place of the recipe's."""

    name: Annotated[str, "Name of the model.", option("a plain file name", pattern=PLAIN_NAME)]
    source: Annotated[
        str, "MODEL, as `model.source` spells it.", option("MODEL", min_length=1, names="model")
    ]
    inputs: Annotated[Texts, "An input, as `model.inputs` spells it.", option("NAME:SHAPE[:DTYPE]")] = ()
    weights: Annotated[
        str, "Weights, as `model.weights` spells them.", option("random|FILE", names="weights")
    ] = ""
    preprocessing: Annotated[
        str,
        "Preprocessing of the samples, as `model.preprocessing`.",
        option("NAME|FILE.json", names="preprocessing"),
    ] = ""
    calibration: Annotated[str, "Samples to calibrate on.", option(names="data")] = ""
    evaluation: Annotated[
        str, "Labelled samples for accuracy and output difference.", option(names="data")
    ] = ""


class SweepSection(Checked):
    """`[sweep]`: models, shapes, targets, precisions and GPUs, of which `qcompile sweep` builds and measures
    every combination."""

    models: Annotated[
        tuple[NamedModel, ...],
        "Model to sweep over, in place of `model.source`.",
        option("NAME=MODEL", names="model"),
    ] = ()
    model: Annotated[tuple[SweepModel, ...], "Models with separate inputs or data, one table each."] = ()
    targets: Annotated[tuple[Target, ...], "Runtime to build for; an artifact for each of `precisions`."] = ()
    precisions: Annotated[tuple[BuildPrecision, ...], "Precision to build in, for each of `targets`."] = ()
    shapes: Annotated[
        Texts,
        "Shape to measure: a batch size such as 8, an input such as x:8x3x224x224, or the least, the "
        "measured and the largest shape of an engine, x:1x3x224x224..8x3x224x224..32x3x224x224.",
        option("[LABEL=]SHAPE"),
    ] = ()
    gpus: Annotated[
        Texts,
        "Compute capability to build a TensorRT engine for, such as sm86; each means every kind that the "
        "workers have.",
        option("SM"),
    ] = ()
    exclude: Annotated[
        Texts, "Cells to leave out: globs over their names, such as *-openvino-fp16.", option("GLOB")
    ] = ()

    def check(self) -> None:
        """Read the shapes, and refuse duplicate names."""
        if bool(self.targets) != bool(self.precisions):
            key = "precisions" if self.targets else "targets"
            raise Refused(key, "is missing; every target is built in every precision")
        for index, text in enumerate(self.models):
            if not re.match(PLAIN_NAME, text.partition("=")[0].strip()):
                raise Refused(f"models[{index}]", "a plain file name before the = is required", value=text)
        for key, names in (
            ("models", [model.name for model in self.every_model()]),
            ("targets", self.targets),
            ("precisions", self.precisions),
            ("shapes", [shape.label for shape in self.read_shapes()]),
            ("gpus", self.gpus),
        ):
            if (duplicate := first_taken(names)) is not None:
                where = f"{key}[{duplicate}]" if duplicate < len(getattr(self, key)) else "model"
                raise Refused(where, "a unique value is required", value=names[duplicate])

    def every_model(self) -> list[SweepModel]:
        """Return the models: those of `models`, then those with a table."""
        pairs = (text.partition("=") for text in self.models)
        return [*(SweepModel(name=name.strip(), source=source) for name, _, source in pairs), *self.model]

    def combinations(self, kinds: Sequence[str] = ()) -> Iterator[Combination]:
        """Yield the artifacts of each model and shape; in `gpus`, "each" stands for all `kinds`."""
        gpus = dict.fromkeys(gpu for text in self.gpus for gpu in (kinds if text == EACH_GPU else (text,)))
        for target in self.targets:
            for precision in self.precisions:
                for gpu in (gpus if target in TENSORRT_TARGETS else ()) or ("",):
                    yield Combination(target, precision, gpu)

    def read_shapes(self) -> list[SweepShape]:
        """Return the shapes; raise `Refused` for an invalid one."""
        return [_parse_shape(text, f"shapes[{index}]") for index, text in enumerate(self.shapes)]


def first_taken(names: Iterable[str]) -> int | None:
    """Return the index of the first name that repeats an earlier one, ignoring case; None if all differ."""
    folded = [name.casefold() for name in names]
    return next((index for index, name in enumerate(folded) if name in folded[:index]), None)


def _parse_shape(text: str, key: str) -> SweepShape:
    """Read `8`, `x:8x3x32x32` or `small=x:1x3x32x32..8x3x32x32..16x3x32x32`."""
    labelled = _LABEL.fullmatch(text.strip())
    label, body = (labelled[1], labelled[2].strip()) if labelled else ("", text.strip())
    if _BATCH.fullmatch(body):
        if int(body) < 1:
            raise Refused(key, "a batch of at least 1 is required", value=text)
        return SweepShape(label or f"b{int(body)}", int(body), {})
    inputs: dict[str, tuple[Extents, Extents, Extents]] = {}
    for part in re.split(SHAPES, body):
        name, colon, spelled = part.strip().rpartition(":")
        shapes = spelled.split("..")
        if not colon or not name or len(shapes) not in (1, 3):
            raise Refused(key, "a batch size, NAME:SHAPE or NAME:MIN..OPT..MAX is required", value=text)
        if name in inputs:
            raise Refused(key, f"the input {name!r} is given twice", value=text)
        try:
            low, opt, high = (
                parse_shapes([f"{name}:{shape}"], option=key)[name]
                for shape in (shapes if len(shapes) == 3 else shapes * 3)
            )
        except UsageError as error:
            raise Refused(key, error.message.removeprefix(f"{key}: "), value=text, hint=error.hint) from error
        if not (
            len(low) == len(opt) == len(high)
            and all(1 <= a <= b <= c for a, b, c in zip(low, opt, high, strict=True))
        ):
            raise Refused(key, "MIN <= OPT <= MAX, of equal rank, is required", value=text)
        inputs[name] = low, opt, high
    batches = {opt[0] for _, opt, _ in inputs.values() if opt}
    if len(batches) != 1:
        shown = ", ".join(map(str, sorted(batches))) or "none"
        raise Refused(
            key, f"one batch, the first extent of every input, is required; found {shown}", value=text
        )
    # Valid in a file name: `x:8x3x32x32` becomes `x-8x3x32x32`.
    default = re.sub(r"[^\w.+]+", "-", body.replace("..", "-to-")).strip("-.")
    return SweepShape(label or default, batches.pop(), inputs)
