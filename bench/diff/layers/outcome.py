"""Result of a layer comparison: layers ranked by lost SNR, the first bad one, and its neighbours.

`LayerDiff` has the keys of `layers.json`, where infinite figures are null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from ....core.figures import clean, finite
from ....core.files import read_json, write_json
from ....errors import ArtifactError
from ...results.results import kind_and_version
from ...results.row import State, state_of

KIND = "qcompile.layers"
SCHEMA_VERSION = 1
Whole = Annotated[int, Meta(ge=0)]

THRESHOLD_DB = {
    "fp32": 80.0, "tf32": 40.0, "fp16": 40.0, "bf16": 25.0, "fp8": 15.0, "int8": 15.0, "int4": 10.0,
    "nvfp4": 10.0, "mxfp8": 15.0,
}  # fmt: skip
"""Lowest signal-to-noise ratio of a tensor that does not diverge, by the artifact's precision."""

CAP_DB = {
    "fp32": 100.0, "tf32": 60.0, "fp16": 60.0, "bf16": 40.0, "fp8": 30.0, "int8": 30.0, "int4": 20.0,
    "nvfp4": 20.0, "mxfp8": 30.0,
}  # fmt: skip
"""Signal-to-noise ratio that rounding to the precision explains; losses above it do not count."""


class Layer(Struct, frozen=True):
    """One measured pair of tensors.

    Attributes:
        tensor: Its name in the reference.
        artifact_tensor: Its name in the artifact.
        module: Module of PyTorch that computes it; "" if unknown.
        operator, node: Its producer in the artifact.
        snr_db: Signal-to-noise ratio; `inf` if equal, `-inf` if an error is infinite.
        drop_db: Difference to the lowest ratio upstream, see `search`.
        max_abs_error, max_abs: Largest error, and largest magnitude of the reference.
        elements: Number of compared elements.
        state: Which infinity the ratio is, if any: in `layers.json`, null stands for both.
    """

    tensor: str
    artifact_tensor: str = ""
    operator: str = ""
    node: str = ""
    snr_db: float = math.inf
    drop_db: float = math.inf
    max_abs_error: float = math.inf
    max_abs: float = math.inf
    elements: Whole = 0
    state: State = "equal"
    module: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "state", state_of(self.snr_db))


class FirstBad(Struct, frozen=True):
    """The tensor with the largest drop among diverging tensors and those upstream, and its producer."""

    tensor: str
    operator: str | None = ""
    node: str | None = ""


class PairCounts(Struct, frozen=True):
    """Numbers of paired and measured tensors, and tensors without a partner.

    Attributes:
        paired: Number of pairs of tensors.
        measured: Number of measured pairs.
        reference_only, artifact_only: Names of float tensors without a partner.
    """

    paired: Whole = 0
    measured: Whole = 0
    reference_only: Sequence[str] = ()
    artifact_only: Sequence[str] = ()


class Neighbour(Struct, frozen=True):
    """A tensor near the first bad one.

    Attributes:
        steps: -2 and -1 upstream of it, 0 itself, 1 and 2 downstream.
        tensor, operator, node: See `Layer`.
        snr_db: Null if not measured, or infinite.
        under: Index in the list of the neighbour one step closer; null for the first bad one.
        measured: Whether the tensor was measured.
    """

    steps: int
    tensor: str
    operator: str
    node: str
    snr_db: float | None
    under: int | None
    measured: bool


class EngineSearch(Struct, frozen=True):
    """The search for the first diverging tensor inside an engine.

    Attributes:
        layers: Number of searched tensors.
        builds, max_builds: Number of engines built, and its limit.
        survey: How one build exposed many tensors as debug tensors: "unfused", "marked", or "" without it.
        before: Ratios of the measured tensors directly before the first bad one.
        after_db: Ratio of the first bad one.
        confirmed: Whether builds that end with the first bad one and with its parents show the drop.
        unknown: Open questions, one sentence each.
    """

    layers: int
    builds: int
    max_builds: int
    survey: str
    before: dict[str, float | None]
    after_db: float | None
    confirmed: bool
    unknown: Sequence[str]


class LayerDiff(Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """A comparison of layers; true if no tensor diverges.

    Attributes:
        schema_version: Version of the format.
        passed: Whether no tensor diverges.
        reference, artifact, precision: The compared files, and the artifact's precision.
        samples: Number of samples.
        threshold_db: A tensor below it diverges.
        first_bad: The first of `tensors` if a tensor diverges.
        gradual: Whether noise accumulates and no layer adds more than all before it; `first_bad` is then the
            first tensor below the threshold.
        tensors: All measured tensors: the first bad one, then by drop, largest first.
        pairs: Numbers of tensors, and tensors without a partner.
        around: The tensors within two steps of the first bad one.
        outputs: Signal-to-noise ratios of the artifact's outputs, run without taps, by name.
        runs: Runs of the artifact, including the one without taps.
        peak_memory_bytes: Largest memory of a run with taps.
        plain_peak_memory_bytes: Largest memory of a run without taps.
        memory_bytes: Both for each side.
        warnings: Warnings for the user.
        engine: The search inside an engine; missing if the artifact's tensors were read directly.
        complete: Whether all pairs that can be measured were. The file does not hold it.
    """

    schema_version: int = SCHEMA_VERSION
    passed: bool = True
    reference: str
    artifact: str
    precision: str = ""
    samples: Whole = 0
    threshold_db: float = 0.0
    first_bad: FirstBad | None = None
    gradual: bool = False
    layers: Sequence[Layer] = field(name="tensors")
    pairs: PairCounts = PairCounts()
    around: Sequence[Neighbour] = ()
    outputs: dict[str, float | None] = {}
    runs: Whole = 0
    peak_memory_bytes: Whole = 0
    plain_peak_memory_bytes: Whole = 0
    memory_bytes: dict[str, dict[str, int]] = {}
    warnings: Sequence[str] = ()
    engine: EngineSearch | None = None
    complete: bool = True

    def __post_init__(self) -> None:
        force_setattr(self, "passed", self.first_bad is None)
        for key, side in (("peak_memory_bytes", "tapped"), ("plain_peak_memory_bytes", "plain")):
            sizes = [memory[side] for memory in self.memory_bytes.values()]
            force_setattr(self, key, max(sizes, default=getattr(self, key)))

    def __bool__(self) -> bool:
        return self.passed

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = finite(msgspec.to_builtins(self))
        del value["complete"]
        return value if self.engine else {key: item for key, item in value.items() if key != "engine"}

    def save(self, path: Path) -> None:
        write_json(path, self.as_json())


def load_layers(path: Path) -> LayerDiff:
    """Read `layers.json`, with its texts made printable."""
    hint = "`qcompile diff` with `layers` writes it"
    value = read_json(path, what="a file of layers")
    kind, version = kind_and_version(value)
    if kind != KIND or version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: {kind or 'unknown kind'} of version {version}; "
            f"{KIND} of version {SCHEMA_VERSION} is required",
            hint=hint,
            file=path,
        )
    try:
        return msgspec.convert(_with_infinities(clean(value)), LayerDiff)
    except (ValueError, KeyError) as error:  # of msgspec, and of invalid texts
        message = f"{path}: not a file of layers ({type(error).__name__}: {error})"
        raise ArtifactError(message, hint=hint, file=path) from error


def _with_infinities(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value with the infinite figures of its tensors, which are null in the file."""
    tensors = value.get("tensors")
    if not isinstance(tensors, list):
        return value
    whole: list[Any] = []
    for tensor in tensors:
        if isinstance(tensor, dict):
            figures = {key: item for key, item in tensor.items() if item is not None}
            is_equal = tensor.get("state", "equal") == "equal"
            tensor = {"snr_db": math.inf if is_equal else -math.inf, **figures}
        whole.append(tensor)
    return value | {"tensors": whole}
