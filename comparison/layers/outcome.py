"""Result of a layer comparison: layers ranked by lost SNR, the first bad one, and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...files import write_json

SCHEMA_VERSION = 1

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


@dataclass(frozen=True)
class Layer:
    """One pair of tensors that was measured.

    Attributes:
        tensor: Its name in the reference.
        artifact_tensor: Its name in the artifact.
        operator, node: What makes it in the artifact.
        snr_db: Signal-to-noise ratio; `inf` when equal, `-inf` when an error is infinite.
        drop_db: How far that is below the lowest before it, see `search`.
        max_abs_error, max_abs: Largest error, and largest magnitude of the reference.
        elements: How many were compared.
    """

    tensor: str
    artifact_tensor: str
    operator: str
    node: str
    snr_db: float
    drop_db: float
    max_abs_error: float
    max_abs: float
    elements: int

    @property
    def state(self) -> str:
        """Which infinity the ratio is, if any: in `layers.json`, null stands for both."""
        return "equal" if self.snr_db == math.inf else "finite" if self.snr_db > -math.inf else "not finite"


@dataclass(frozen=True)
class Neighbour:
    """A tensor near the first bad one.

    Attributes:
        steps: -2 and -1 before it, 0 itself, 1 and 2 behind it.
        tensor, operator, node: See `Layer`.
        snr_db: None where it was not measured.
        under: Index in the list of the tensor it hangs on; None for the first bad one itself.
    """

    steps: int
    tensor: str
    operator: str
    node: str
    snr_db: float | None
    under: int | None


@dataclass(frozen=True)
class EngineSearch:
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
    before: Mapping[str, float]
    after_db: float | None
    confirmed: bool
    unknown: Sequence[str]


@dataclass(frozen=True)
class LayerDiff:
    """A comparison of layers; true when none diverges.

    Attributes:
        reference, artifact, precision: What was compared, and the artifact's precision.
        samples: How many.
        threshold_db: A tensor below it diverges.
        first_bad: The layer that loses most on the way to one that diverges; None where none does.
        gradual: No layer makes more noise than all before it: it adds up, and `first_bad` is the first below
            the threshold.
        layers: Everything that was measured, the largest drop first.
        paired: Number of pairs of tensors; `complete` when all of them were measured.
        reference_only, artifact_only: Names of float tensors without a partner.
        around: Two steps around the first bad one.
        outputs: The artifact's own outputs, as it runs without taps: name to signal-to-noise ratio.
        runs: Runs of the artifact, the one without taps included.
        peak_memory_bytes: Largest memory of a run with taps; `plain_peak_memory_bytes` without.
        memory_bytes: Both for each side.
        warnings: What the user should know.
        engine: The search inside an engine; None where the artifact's own tensors were read.
    """

    reference: str
    artifact: str
    precision: str
    samples: int
    threshold_db: float
    first_bad: Layer | None
    gradual: bool
    layers: Sequence[Layer]
    paired: int
    complete: bool
    reference_only: Sequence[str]
    artifact_only: Sequence[str]
    around: Sequence[Neighbour]
    outputs: Mapping[str, float]
    runs: int
    memory_bytes: Mapping[str, Mapping[str, int]]
    warnings: Sequence[str] = field(default_factory=tuple)
    engine: EngineSearch | None = None

    def __bool__(self) -> bool:
        return self.first_bad is None

    @property
    def peak_memory_bytes(self) -> int:
        """Largest memory of a run with taps."""
        return max(side["tapped"] for side in self.memory_bytes.values())

    @property
    def plain_peak_memory_bytes(self) -> int:
        """Largest memory of a run without taps."""
        return max(side["plain"] for side in self.memory_bytes.values())

    def as_json(self) -> dict[str, Any]:
        """Return the content of `layers.json`."""
        bad = self.first_bad
        value = {
            "kind": "qcompile.layers",
            "schema_version": SCHEMA_VERSION,
            "passed": bool(self),
            "reference": self.reference,
            "artifact": self.artifact,
            "precision": self.precision,
            "samples": self.samples,
            "threshold_db": self.threshold_db,
            "first_bad": {"tensor": bad.tensor, "operator": bad.operator, "node": bad.node} if bad else None,
            "gradual": self.gradual,
            "tensors": [{**vars(layer), "state": layer.state} for layer in self.layers],
            "pairs": {
                "paired": self.paired,
                "measured": len(self.layers),
                "reference_only": list(self.reference_only),
                "artifact_only": list(self.artifact_only),
            },
            "around": [{**vars(one), "measured": one.snr_db is not None} for one in self.around],
            "outputs": self.outputs,
            "runs": self.runs,
            "peak_memory_bytes": self.peak_memory_bytes,
            "plain_peak_memory_bytes": self.plain_peak_memory_bytes,
            "memory_bytes": self.memory_bytes,
            "warnings": list(self.warnings),
            **({"engine": vars(self.engine)} if self.engine else {}),
        }
        plain: dict[str, Any] = _finite(value)
        return plain

    def save(self, path: Path) -> None:
        """Write `layers.json`, whole or not at all."""
        write_json(path, self.as_json())


def _finite(value: Any) -> Any:
    """A value for JSON: null in place of what is not finite, lists in place of other sequences."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
