"""The result of lowering: a graph that an engine can build from, stored with a record in its manifest.

Importing this module does not load onnx: a `run` with nothing to do reads records and decides without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..core.artifact import Manifest, read_manifest
from ..errors import ArtifactError
from ..model.graph.onnx_file import Graph
from ..spec.tensors import TensorInfo
from ..spec.words import HALVES, FloatPrecision, Precision

if TYPE_CHECKING:
    from ..engines.registry import Capabilities
    from ..spec.artifacts import ArtifactOptions

RECORD = "lowered"
"""The option of a manifest that records the fields of a `LoweredGraph`."""

_NOT_RECORDED = ("path", "passes", "source_digest", "reasons", "inputs", "graph")


@dataclass(frozen=True)
class LoweredGraph:
    """A graph that an engine can build from, and the facts that its file does not contain.

    Attributes:
        path: The ONNX file, the model itself if nothing had to change; or a MODEL spelling.
        precision: Precision of the build, never "best".
        layers: Node to its required precision: constraints for an engine that chooses types.
        planned: Layers to quantize, before the engine reported those that it runs in floating point.
        left_in_float: Those layers of `planned` to the engine's reason; they are not quantized.
        worked_around: Known fault of the engine to the nodes that were rewritten because of it.
        passes: Name of each pass that ran, in this order, to the number of nodes that it changed.
        source_digest: Digest of the source ONNX file.
        reasons: Layer that is not quantized to the reason, from the manifest of the graph.
        inputs: Inputs of the source ONNX file, for reading samples.
        graph: The graph in memory, for an engine of ONNX files; not in the manifest.
    """

    path: str
    precision: Precision
    float_precision: FloatPrecision = "fp32"
    layers: Mapping[str, str] = field(default_factory=dict)
    planned: Sequence[str] = ()
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    worked_around: Mapping[str, Sequence[str]] = field(default_factory=dict)
    passes: Mapping[str, int] = field(default_factory=dict)
    source_digest: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[TensorInfo, ...] = field(default=(), compare=False)
    graph: Graph | None = field(default=None, compare=False)

    def as_json(self) -> dict[str, object]:
        """Return the fields that the manifest records."""
        record = asdict(replace(self, graph=None))
        return {name: value for name, value in record.items() if name not in _NOT_RECORDED}


def load_lowered(path: Path) -> LoweredGraph:
    """Return a graph that `lower` wrote; raise ArtifactError if its manifest has no valid record."""
    manifest = read_manifest(path)
    record = manifest.options.get(RECORD) if manifest else None
    try:
        if not (manifest and isinstance(record, dict)):
            raise ValueError("no record")
        beside = {"source_digest": manifest.sources.get("model", ""), "reasons": reasons_in(manifest)}
        return msgspec.convert({**record, "path": str(path), **beside}, LoweredGraph)
    except ValueError as error:
        problem = f"{path}: its manifest has no valid lowering record ({error})"
        raise ArtifactError(problem, hint="make it again", file=path) from error


def reasons_in(manifest: Manifest | None) -> Mapping[str, str]:
    """Return layer to the reason why it is not quantized, from a manifest."""
    reasons: Mapping[str, str] = manifest.proof.get("left_in_float", {}) if manifest else {}
    return reasons


def must_lower(spec: ArtifactOptions, capabilities: Capabilities) -> bool:
    """Return whether lowering must write a graph because the build needs more than the float32 model."""
    if capabilities.takes != "onnx" or spec.calibrator:
        return False
    if spec.precision == "best" or half_chosen_by_engine(spec, capabilities):
        return True  # the data may show half-precision overflow, which becomes constraints
    weak, precision = spec.tensorrt.typing == "weak", spec.precision
    return precision in capabilities.in_graph and capabilities.needed(precision, weak=weak) != "fp32"


def half_chosen_by_engine(spec: ArtifactOptions, capabilities: Capabilities) -> str:
    """Return the half precision ("fp16" or "bf16") that the engine assigns to layers itself, or ""."""
    half = spec.precision if spec.precision in HALVES else spec.floats
    if half not in HALVES or half not in capabilities.in_graph or not capabilities.keeps_layers:
        return ""
    weak = spec.tensorrt.typing == "weak"
    chooses = bool(spec.calibrator) or capabilities.needed(half, weak=weak) == "fp32"
    return half if chooses else ""
