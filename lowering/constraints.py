"""Which layers must have which precision, where the engine chooses the types: its constraints.

what the user names (`layers`, `exclude`, `only`)     as it is named
what half precision would break                       float32, as where the graph has the types
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import InvalidOption

if TYPE_CHECKING:
    from ..calibration import Ranges
    from ..engines.capabilities import Capabilities
    from ..spec.artifacts import ArtifactOptions, BuildSpec

_FLOATS = ("fp32", "tf32")
_LOOKED_AT = 16  # samples in which FP16 looks for activations that overflow
_BLIND = "no data was given: values beyond float16's 65504 were not looked for"
_HALVES: Mapping[str, Literal["float16", "bfloat16"]] = {"fp16": "float16", "bf16": "bfloat16"}


def half_left_to_engine(spec: ArtifactOptions, capabilities: Capabilities) -> str:
    """Return the half precision whose layers the engine chooses, "fp16" or "bf16"; empty for none."""
    half = spec.precision if spec.precision in _HALVES else spec.floats
    if half not in _HALVES or half not in capabilities.in_graph or not capabilities.keeps_layers:
        return ""
    weak = spec.tensorrt.typing == "weak"
    chooses = bool(spec.calibrator) or capabilities.needed(half, weak=weak) == "fp32"
    return half if chooses else ""


@dataclass(frozen=True)
class Constraints:
    """What decides the constraints of one build.

    Attributes:
        model: The user's float model, whose nodes they name.
        spec: What is built.
        capabilities: Of its engine.
        needed: The precision of the graph; another than the spec's where the engine chooses.
        ranges: Observed values of activations.
    """

    model: Path
    spec: BuildSpec
    capabilities: Capabilities
    needed: str
    ranges: Path | Ranges | None

    def of(self, graph: Path, output: Path) -> tuple[dict[str, str], Path, list[str]]:
        """Return node of the graph to precision, the graph, and what the user should know.

        Args:
            graph: The fitted graph.
            output: Where it is written with a name for each node, after which layers are named.

        Raises:
            InvalidOption: If the user names layers, and the engine takes no constraints.
        """
        named = self._named()
        half = half_left_to_engine(self.spec, self.capabilities)
        if not half:
            return named, graph, []
        from ..compiler.quantize.half.precision import nodes_to_protect
        from ..model.onnx_file import load_onnx, save_onnx

        model = load_onnx(graph)
        ranges = self._observed() if half == "fp16" else None  # bf16 reaches as far as float32
        protected = nodes_to_protect(model, _HALVES[half], ranges=ranges)
        names = [node.name for node in model.graph.node]
        save_onnx(model, output)
        asked = {name: kind for one, kind in named.items() for name in _nodes_of(one, names)}
        blind = half == "fp16" and ranges is None
        return dict.fromkeys(protected, "fp32") | asked, output, [_BLIND] * blind

    def _observed(self) -> Ranges | None:
        """The ranges that were given, or those of the first samples; None without either."""
        from ..calibration import Ranges, load_ranges, observe
        from ..calibration.tensorrt_cache import is_cache
        from ..data.batches import Data
        from ..model.weightless import read_weightless

        if isinstance(self.ranges, Ranges):
            return self.ranges
        if self.ranges is not None and not is_cache(self.ranges):
            return load_ranges(self.ranges)
        if self.spec.data is None:
            return None
        inputs = read_weightless(self.model).io.inputs  # the graph's may be of other types
        samples = Data(self.spec.data, inputs, batch_size=1, limit=_LOOKED_AT)
        return observe(self.model, samples, infinite=True)

    def _named(self) -> dict[str, str]:
        """Node of the model to precision, of what the user named."""
        from ..compiler.quantize.request import match_nodes
        from ..model.weightless import read_weightless

        spec = self.spec
        if spec.precision in _FLOATS or self.needed == spec.precision:
            return {}
        if not (spec.layers or spec.exclude or spec.only):
            return {}
        if not self.capabilities.keeps_layers:
            raise InvalidOption(
                f"{spec.precision} for {spec.target}: it chooses the types of all layers by itself",
                hint="leave `layers` and `exclude` out, or choose another precision or target",
            )
        graph = read_weightless(self.model).model.graph
        above = dict.fromkeys(match_nodes(graph, spec.exclude, only=spec.only), "fp32")
        return above | {
            name: kind
            for pattern, kind in spec.layer_precisions.items()
            for name in match_nodes(graph, [pattern])
        }


def _nodes_of(asked: str, names: Sequence[str]) -> list[str]:
    """A node of the model as it is in the graph: itself, or those that it was written out in."""
    return [asked] if asked in names else [name for name in names if name.startswith(f"{asked}/")] or [asked]
