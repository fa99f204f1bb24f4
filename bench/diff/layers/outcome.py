"""Result of a layer comparison: layers ranked by lost SNR, the first bad one, and its neighbours.

`LayerDiff` is `layers.json`, key for key, but that infinite figures are null there.
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
"""Signal-to-noise ratio from which a tensor does not diverge, by the artifact's precision."""

CAP_DB = {
    "fp32": 100.0, "tf32": 60.0, "fp16": 60.0, "bf16": 40.0, "fp8": 30.0, "int8": 30.0, "int4": 20.0,
    "nvfp4": 20.0, "mxfp8": 30.0,
}  # fmt: skip
"""Signal-to-noise ratio that rounding to the precision explains: above it nothing counts as lost."""


class Layer(Struct, frozen=True):
    """One pair of tensors that was measured.

    Attributes:
        tensor: Its name in the reference.
        artifact_tensor: Its name in the artifact.
        operator, node: What makes it in the artifact.
        snr_db: Signal-to-noise ratio; `inf` when equal, `-inf` when an error is infinite.
        drop_db: How far that is below the lowest before it, see `search`.
        max_abs_error, max_abs: Largest error, and largest magnitude of the reference.
        elements: How many were compared.
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

    def __post_init__(self) -> None:
        force_setattr(self, "state", state_of(self.snr_db))


class FirstBad(Struct, frozen=True):
    """The tensor that loses most on the way to one that diverges, and what makes it in the artifact."""

    tensor: str
    operator: str | None = ""
    node: str | None = ""


class PairCounts(Struct, frozen=True):
    """What was compared with what.

    Attributes:
        paired: Number of pairs of tensors.
        measured: How many of them were measured.
        reference_only, artifact_only: Names of float tensors without a partner.
    """

    paired: Whole = 0
    measured: Whole = 0
    reference_only: Sequence[str] = ()
    artifact_only: Sequence[str] = ()


class Neighbour(Struct, frozen=True):
    """A tensor near the first bad one.

    Attributes:
        steps: -2 and -1 before it, 0 itself, 1 and 2 behind it.
        tensor, operator, node: See `Layer`.
        snr_db: Null where it was not measured, or is infinite.
        under: Index in the list of the tensor it hangs on; null for the first bad one itself.
        measured: Whether it was measured.
    """

    steps: int
    tensor: str
    operator: str
    node: str
    snr_db: float | None
    under: int | None
    measured: bool


class EngineSearch(Struct, frozen=True):
    """How the first tensor that diverges was sought inside an engine.

    Attributes:
        layers: Number of tensors that could be the first.
        builds, max_builds: Engines that were built, and how many were allowed.
        survey: Whether one build showed many tensors at once as debug tensors: "unfused", "marked" or "".
        before: The tensors right before the first bad one, with their ratios; those that were measured.
        after_db: Ratio of the first bad one.
        confirmed: Whether the first bad one diverges in a graph that ends with it, and those before do not.
        unknown: What the search could not tell, one sentence each.
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
    """A comparison of layers; true when none diverges.

    Attributes:
        schema_version: Of the format.
        passed: Whether no tensor diverges.
        reference, artifact, precision: What was compared, and the artifact's precision.
        samples: How many.
        threshold_db: A tensor below it diverges.
        first_bad: The first of `layers`, where a tensor diverges.
        gradual: No layer makes more noise than all before it: it adds up, and `first_bad` is the first below
            the threshold.
        tensors: Everything that was measured: the first bad one, then the largest drop first.
        pairs: What was compared with what.
        around: Two steps around the first bad one.
        outputs: The artifact's own outputs, as it runs without taps: name to signal-to-noise ratio.
        runs: Runs of the artifact, the one without taps included.
        peak_memory_bytes: Largest memory of a run with taps.
        plain_peak_memory_bytes: Largest memory of a run without.
        memory_bytes: Both for each side.
        warnings: What the user should know.
        engine: The search inside an engine; missing where the artifact's own tensors were read.
        complete: Whether every pair was measured that can be. The file does not hold it.
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
    """Read `layers.json`; texts in it can be shown."""
    hint = "`qcompile diff` with `layers` writes it"
    value = read_json(path, what="a file of layers")
    kind, version = kind_and_version(value)
    if kind != KIND or version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: {kind or 'a file of no kind'} of version {version}; "
            f"{KIND} of version {SCHEMA_VERSION} is required",
            hint=hint,
            file=path,
        )
    try:
        return msgspec.convert(_with_infinities(clean(value)), LayerDiff)
    except (ValueError, KeyError) as error:  # of msgspec, and of texts that no file can hold
        message = f"{path}: not a file of layers ({type(error).__name__}: {error})"
        raise ArtifactError(message, hint=hint, file=path) from error


def _with_infinities(value: dict[str, Any]) -> dict[str, Any]:
    """The value with the infinite figures of its tensors, which are null in the file."""
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
