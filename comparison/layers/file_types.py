"""The types of `layers.json`, which `LayerDiff.as_json` writes; its JSON Schema is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0)]
_Bytes = Annotated[int, Meta(ge=0)]


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of tensors that was measured.

    Attributes:
        tensor: Its name in the reference.
        artifact_tensor: Its name in the artifact.
        operator, node: What makes it in the artifact.
        snr_db: Signal-to-noise ratio; null where `state` is not "finite".
        drop_db: How far that is below the lowest before it; null where it is infinite.
        max_abs_error: Largest error; null where it is infinite.
        max_abs: Largest magnitude of the reference.
        elements: How many were compared.
        state: "equal": no error. "not finite": NaN or infinity against a number, or an error where the
            reference is zero.
    """

    tensor: str
    artifact_tensor: str
    operator: str
    node: str
    snr_db: float | None
    drop_db: float | None
    max_abs_error: float | None
    max_abs: float | None
    elements: _Count
    state: Literal["equal", "finite", "not finite"]


class FirstBad(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor that diverges, and what makes it in the artifact."""

    tensor: str
    operator: str
    node: str


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Which tensors were compared.

    Attributes:
        paired: Pairs that were found.
        measured: Pairs that were measured.
        reference_only, artifact_only: Float tensors without a partner.
    """

    paired: _Count
    measured: _Count
    reference_only: tuple[str, ...]
    artifact_only: tuple[str, ...]


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor near the first bad one.

    Attributes:
        steps: -2 and -1 before it, 0 itself, 1 and 2 behind it.
        tensor, operator, node: As in `tensors`.
        snr_db: Null where it is infinite, or was not measured.
        under: Index in this list of the tensor it hangs on; null for the first bad one itself.
        measured: Whether it was.
    """

    steps: int
    tensor: str
    operator: str
    node: str
    snr_db: float | None
    under: int | None
    measured: bool


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """How the first tensor that diverges was sought inside an engine.

    Attributes:
        layers: Number of tensors that could be the first.
        builds, max_builds: Engines that were built, and how many were allowed.
        survey: Whether one build showed many tensors at once as debug tensors.
        before: The measured tensors right before the first bad one, to their signal-to-noise ratios in dB.
        after_db: Signal-to-noise ratio of the first bad one.
        confirmed: Whether it diverges in a graph that ends with it, and those before do not.
        unknown: What the search could not tell, one sentence each.
    """

    layers: _Count
    builds: _Count
    max_builds: _Count
    survey: Literal["", "unfused", "marked"]
    before: dict[str, float | None]
    after_db: float | None
    confirmed: bool
    unknown: tuple[str, ...]


class LayersFile(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of layers.

    Attributes:
        kind: What the file is.
        schema_version: Of the format.
        passed: Whether no tensor diverges.
        reference, artifact: What was compared.
        precision: The artifact's.
        samples: How many were run.
        threshold_db: A tensor below it diverges.
        first_bad: Null where nothing diverges.
        gradual: No single layer is to blame: the noise adds up.
        tensors: Everything that was measured, the largest drop first.
        pairs: What was compared with what.
        around: Two steps around the first bad tensor.
        outputs: The artifact's outputs as it runs without taps, to their signal-to-noise ratio in dB.
        runs: Runs of the artifact, the one without taps included.
        peak_memory_bytes, plain_peak_memory_bytes: Largest memory of a run with taps, and without.
        memory_bytes: Both for each side.
        warnings: What the user should know.
        engine: The search inside an engine; missing where the artifact's own tensors were read.
    """

    kind: Literal["qcompile.layers"]
    schema_version: Literal[1]
    passed: bool
    reference: str
    artifact: str
    precision: str
    samples: _Count
    threshold_db: float
    first_bad: FirstBad | None
    gradual: bool
    tensors: tuple[Tensor, ...]
    pairs: Pairs
    around: tuple[Neighbour, ...]
    outputs: dict[str, float | None]
    runs: _Count
    peak_memory_bytes: _Bytes
    plain_peak_memory_bytes: _Bytes
    memory_bytes: dict[str, dict[str, _Bytes]]
    warnings: tuple[str, ...]
    engine: Search | msgspec.UnsetType = msgspec.UNSET


def layers_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return msgspec.json.schema(LayersFile)
