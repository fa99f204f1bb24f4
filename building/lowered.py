"""The one decision which graph an engine needs, and the making of it.

lower ─▶ quantized or cast (`compiler`) ─▶ `fitting`: what the parser reads ─▶ `constraints` left over

What is made of it is read here, and whether it is made, which a `run` with nothing to do asks: without onnx.
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
"""The option of a manifest that says what a graph does not."""

_NOT_RECORDED = ("path", "passes", "source_digest", "reasons", "inputs", "graph")


@dataclass(frozen=True)
class LoweredGraph:
    """A graph that an engine can build from, and what the graph does not say.

    Attributes:
        path: The ONNX file, the model itself where nothing had to change; or a MODEL spelling.
        precision: What is built: never "best".
        layers: Name of a node to the precision it must have: constraints for an engine that chooses types.
        planned: Names of the layers that were to be quantized before the engine was asked.
        left_in_float: Those of them that it computes in float, with what it said; they are not quantized.
        worked_around: Known fault of the engine to the nodes that were rewritten because of it.
        passes: Name of each pass that ran, in this order, to the number of nodes that it changed.
        source_digest: Digest of the ONNX file that it was made from.
        reasons: Name of each layer that is not quantized to the reason, by the manifest of the graph.
        inputs: Inputs of the ONNX file that it was made from, as samples are read for them.
        graph: The graph in memory, for an engine of ONNX files; a manifest does not hold it.
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
        """Return what the graph does not say, for its manifest."""
        record = asdict(replace(self, graph=None))
        return {name: value for name, value in record.items() if name not in _NOT_RECORDED}


def load_lowered(path: Path) -> LoweredGraph:
    """Return a graph that `lower` wrote."""
    manifest = read_manifest(path)
    record = manifest.options.get(RECORD) if manifest else None
    try:
        if not (manifest and isinstance(record, dict)):
            raise ValueError("nothing is said")
        beside = {"source_digest": manifest.sources.get("model", ""), "reasons": reasons_in(manifest)}
        return msgspec.convert({**record, "path": str(path), **beside}, LoweredGraph)
    except ValueError as error:
        problem = f"{path}: its manifest does not say how it was lowered ({error})"
        raise ArtifactError(problem, hint="make it again", file=path) from error


def reasons_in(manifest: Manifest | None) -> Mapping[str, str]:
    """Return the name of each layer that is not quantized to the reason, as a manifest has them."""
    reasons: Mapping[str, str] = manifest.proof.get("left_in_float", {}) if manifest else {}
    return reasons


def writes_types(spec: ArtifactOptions, capabilities: Capabilities) -> bool:
    """Whether the graph must have another precision than float32, so that it is made, and not the model."""
    if capabilities.takes != "onnx" or spec.calibrator:
        return False
    if spec.precision == "best" or half_left_to_engine(spec, capabilities):
        return True  # what the data shows of a half type becomes constraints
    weak, precision = spec.tensorrt.typing == "weak", spec.precision
    return precision in capabilities.in_graph and capabilities.needed(precision, weak=weak) != "fp32"


def half_left_to_engine(spec: ArtifactOptions, capabilities: Capabilities) -> str:
    """Return the half precision whose layers the engine chooses, "fp16" or "bf16"; empty for none."""
    half = spec.precision if spec.precision in HALVES else spec.floats
    if half not in HALVES or half not in capabilities.in_graph or not capabilities.keeps_layers:
        return ""
    weak = spec.tensorrt.typing == "weak"
    chooses = bool(spec.calibrator) or capabilities.needed(half, weak=weak) == "fp32"
    return half if chooses else ""
