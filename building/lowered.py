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

from ..core.artifact import read_manifest
from ..errors import ArtifactError
from ..model.graph.onnx_file import Graph
from ..spec.words import HALVES, FloatPrecision, Precision

if TYPE_CHECKING:
    from ..engines.registry import Capabilities
    from ..spec.artifacts import ArtifactOptions

RECORD = "lowered"
"""The option of a manifest that says what a graph does not."""

_NOT_RECORDED = ("path", "passes", "graph")


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
        if not isinstance(record, dict):
            raise ValueError("nothing is said")
        return msgspec.convert({**record, "path": str(path)}, LoweredGraph)
    except ValueError as error:
        problem = f"{path}: its manifest does not say how it was lowered ({error})"
        raise ArtifactError(problem, hint="make it again", file=path) from error


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
