"""Which layers must have which precision, where the engine chooses the types: its constraints.

what the user names (`layers`, `exclude`, `only`)     as it is named
what half precision would break                       float32, as where the graph has the types
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .errors import InvalidOption

if TYPE_CHECKING:
    from .calibration import Ranges
    from .engines.capabilities import Capabilities
    from .spec.artifacts import BuildSpec

_FLOATS = ("fp32", "tf32")
_HALVES: Mapping[str, Literal["float16", "bfloat16"]] = {"fp16": "float16", "bf16": "bfloat16"}


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

    def of(self, graph: Path, output: Path) -> tuple[dict[str, str], Path]:
        """Return node of the graph to precision, and the graph.

        Args:
            graph: The fitted graph.
            output: Where it is written again if nodes without a name must have one, as layers are
                named after them.

        Raises:
            InvalidOption: If the user names layers, and the engine takes no constraints.
        """
        named = self._named()
        half = self.spec.precision if self.spec.precision in _HALVES else self.spec.float_precision
        if half not in _HALVES or not self.capabilities.keeps_layers or not self._chooses(half):
            return named, graph
        from .compiler.quantize.half.protect import nodes_to_protect
        from .model.onnx_file import load_onnx, save_onnx

        model = load_onnx(graph)
        unnamed = any(not node.name for node in model.graph.node)
        protected = nodes_to_protect(model, _HALVES[half], ranges=self._observed())
        names = [node.name for node in model.graph.node]
        if protected and unnamed:
            save_onnx(model, output)
            graph = output
        asked = {name: kind for one, kind in named.items() for name in _nodes_of(one, names)}
        return dict.fromkeys(protected, "fp32") | asked, graph

    def _chooses(self, half: str) -> bool:
        """Whether the engine chooses which layers of a build have a half type."""
        weak = bool(self.spec.calibrator) or self.spec.tensorrt.typing == "weak"
        return bool(self.spec.calibrator) or self.capabilities.needed(half, weak=weak) == "fp32"

    def _observed(self) -> Ranges | None:
        from .calibration import Ranges, load_ranges
        from .calibration.tensorrt_cache import is_cache

        if self.ranges is None or isinstance(self.ranges, Ranges):
            return self.ranges
        return None if is_cache(self.ranges) else load_ranges(self.ranges)

    def _named(self) -> dict[str, str]:
        """Node of the model to precision, of what the user named."""
        from .compiler.quantize.match_nodes import match_nodes
        from .model.weightless import read_weightless

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
