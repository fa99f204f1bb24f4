"""Fit a graph to the reader of its engine, which decides by version what it reads, and reads rightly.

    graph ─ types of inputs, outputs ─ forms that it lacks ─ opset ─ operators that it lacks ─ known faults ─▶

What was rewritten for the last two is compared with what it was, in ONNX Runtime, at 80 dB. What is rewritten
in a quantized graph alone is compared there, at 30 dB, as a value between two integers may go either way.

Where the engine chooses the types, its constraints are the layers that the user names (`layers`, `exclude`,
`only`), and float32 for what half precision would break.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler.io_types import set_io_types
from ..compiler.opset.cures import FAULTY_GRAPHS
from ..compiler.opset.dft import dft_to_products
from ..compiler.opset.exact_forms import MODES_RENAMED, find_cubic_modes
from ..compiler.opset.fit import fit_opset, rewritten_outputs
from ..compiler.opset.lower import require_operators, without_missing
from ..compiler.opset.scope import Cure
from ..compiler.opset.tensorrt_forms import (
    einsums_in_lower_case,
    eyes_to_ranges,
    find_trt_operators,
    folds_to_transposes,
    scatter_adds_to_products,
    with_kernel_shapes,
)
from ..data.batches import Data
from ..errors import InvalidOption, UnsupportedOperator
from ..files import temporary_folder
from ..model.graph import ONNX_DOMAINS, every_graph
from ..model.onnx_file import load_onnx, opset, save_onnx
from ..model.weightless import read_weightless
from ..progress import Progress
from ..spec.opsets import BFLOAT16_LAYERS, INT4
from ..spec.words import HALVES

if TYPE_CHECKING:
    import onnx

    from ..calibration import Ranges
    from ..engines.registry import Capabilities
    from ..engines.words import KnownFault
    from ..spec.artifacts import ArtifactOptions, BuildSpec

_OPSETS_OF_TYPES = {"bf16": BFLOAT16_LAYERS, "int4": INT4}
"""Opsets from which ONNX has a type for the operators that need it; parsers that list the type read it."""
_FLOATS = ("fp32", "tf32")
_LOOKED_AT = 16  # samples in which FP16 looks for activations that overflow
_BLIND = "no data was given: values beyond float16's 65504 were not looked for"


class Fitting:
    """What fits the graphs of one build; rewrites are compared on `model`, the user's float model.

    After each `fit` its `warnings` say what the user should know, and `worked_around` which nodes were
    rewritten because of a known fault.
    """

    def __init__(
        self,
        model: Path,
        spec: BuildSpec,
        ranges: Path | Ranges | None,
        capabilities: Capabilities,
        path: Path,
        progress: Progress,
    ) -> None:
        self.model, self.spec, self.ranges, self.capabilities = model, spec, ranges, capabilities
        self.path, self.progress = path, progress
        weak = spec.tensorrt.typing == "weak"
        self.needed = "fp32" if spec.calibrator else capabilities.needed(spec.precision, weak=weak)
        self.warnings: list[str] = []
        self.worked_around: dict[str, Sequence[str]] = {}

    def fit(self, graph: Path) -> Path:
        """Write a graph that the reader takes."""
        self.warnings, self.worked_around = [], {}
        types = {name: dtype for name, (dtype, _) in self.spec.tensorrt.tensor_formats.items() if dtype}
        graph = self._saved(set_io_types(load_onnx(graph), types)) if types else graph
        graph = self._without_lacking(graph)
        graph = self._in_older_opset(graph)
        graph = self._without_missing(graph)
        graph = with_kernel_shapes(graph, self.path, self.spec.target)
        if left := find_trt_operators(read_weightless(graph).model):
            self.warnings.append(
                f"ONNX Runtime has no {', '.join(left)}: what the engine computes cannot be compared with it"
            )
        return self._without_faults(graph)

    def _without_lacking(self, graph: Path) -> Path:
        """Write forms of operators that the reader lacks in others, where they can be."""
        rewrites = {
            "Col2Im": folds_to_transposes, "DFT": dft_to_products, "Einsum": einsums_in_lower_case,
            "EyeLike": eyes_to_ranges, "ScatterND": scatter_adds_to_products,
        }  # fmt: skip
        held = _operators(graph) & {*self.capabilities.lacks} & rewrites.keys()
        if not held:
            return graph
        model = load_onnx(graph)
        if not [name for operator in sorted(held) for name in rewrites[operator](model)]:
            return graph
        return self._saved(model)

    def _in_older_opset(self, graph: Path) -> Path:
        highest = self.capabilities.highest_opset
        if highest is None:
            return graph
        model = load_onnx(graph, external_data=False)
        highest = max(highest, _OPSETS_OF_TYPES.get(self.needed, 0))
        ignored = not any(fault.name == "grid-sample-mode" for fault in self._faults())
        if not ignored and find_cubic_modes(model):
            highest = min(highest, MODES_RENAMED - 1)  # no other name says cubic to every parser
        if opset(model) > highest:
            lowered = fit_opset(graph, self.path, highest, progress=self.progress)
            self.warnings += lowered.manifest.warnings
            return self.path
        return graph

    def _without_missing(self, graph: Path) -> Path:
        """Write operators that the version lacks in others, or refuse them by name."""
        known = self.capabilities.operators
        if known is None:
            return graph
        operators = frozenset(known)
        if _operators(graph) - operators:
            model = load_onnx(graph)
            replaced = without_missing(model, operators)
            if replaced:
                self.progress("compare what was written in other operators")
                self.warnings += self._compare(lambda one: without_missing(one, operators))
                graph = self._saved(model)
        if not self.spec.tensorrt.plugins:
            light = read_weightless(graph).model
            require_operators(light, operators, self.capabilities.reader, str(self.model))
        return graph

    def _without_faults(self, graph: Path) -> Path:
        """Rewrite what the engine is known to compute wrongly, refuse it, or warn of it."""
        faults = self._faults()
        light = read_weightless(graph).model
        found = {fault.name: names for fault in faults if (names := FAULTY_GRAPHS[fault.name].find(light))}
        if not found:
            return graph
        cures = [name for name in FAULTY_GRAPHS if name in found and FAULTY_GRAPHS[name].cure]
        for quantized in (False, True):
            names = [name for name in cures if FAULTY_GRAPHS[name].quantized == quantized]
            if not names:
                continue
            self.progress("compare what known faults made different")
            change = partial(cure, names=names)
            self.warnings += self._compare(change, graph if quantized else self.model)
            light = load_onnx(graph)
            change(light)
            graph = self._saved(light)
        for fault in faults:
            left = FAULTY_GRAPHS[fault.name].find(light) if fault.name in found else []
            if left and fault.action != "warn":
                way = fault.hint or "write it with other operators in the model"
                reader = self.capabilities.reader
                problem = f"{self.model}: {reader} computes {', '.join(left)} wrongly: {fault}"
                hint = f"{way}; `ignore_faults` {fault.name} builds it as it is"
                raise UnsupportedOperator(problem, hint=hint, operator=fault.operator, node=left[0])
            if left:
                self.warnings.append(f"known fault {fault}: {', '.join(left)}")
            elif fault.name in found:
                self.worked_around[fault.name] = found[fault.name]
        self.warnings = list(dict.fromkeys(self.warnings))
        return graph

    def constrained(self, graph: Path) -> tuple[dict[str, str], Path]:
        """Return node of the graph to the precision it must have, and the graph.

        Where the engine chooses the types of half precision, each node of the graph gets a name, after which
        layers are named.
        """
        named = self._named()
        half = half_left_to_engine(self.spec, self.capabilities)
        if not half:
            return named, graph
        from ..compiler.quantize.half.precision import nodes_to_protect

        proto = load_onnx(graph)
        observed = self._observed() if half == "fp16" else None  # bf16 reaches as far as float32
        protected = nodes_to_protect(proto, HALVES[half], ranges=observed)
        names = [node.name for node in proto.graph.node]
        asked: dict[str, str] = {}
        for layer, kind in named.items():
            # A node of the model is in the graph itself, or those that it was written out in are.
            parts = [layer] if layer in names else [name for name in names if name.startswith(f"{layer}/")]
            asked |= dict.fromkeys(parts or [layer], kind)
        if half == "fp16" and observed is None:
            self.warnings.append(_BLIND)
        return dict.fromkeys(protected, "fp32") | asked, self._saved(proto)

    def _observed(self) -> Ranges | None:
        """The ranges that were given, or those of the first samples; None without either."""
        from ..calibration import Ranges, load_ranges, observe
        from ..calibration.tensorrt_cache import is_cache

        ranges, data = self.ranges, self.spec.data
        if isinstance(ranges, Ranges):
            return ranges
        if ranges is not None and not is_cache(ranges):
            return load_ranges(ranges)
        if data is None:
            return None
        inputs = read_weightless(self.model).io.inputs  # the graph's may be of other types
        return observe(self.model, Data(data, inputs, batch_size=1, limit=_LOOKED_AT), infinite=True)

    def _named(self) -> dict[str, str]:
        """Node of the model to precision, of what the user named."""
        from ..compiler.quantize.request import match_nodes

        spec = self.spec
        if spec.precision in _FLOATS or self.needed == spec.precision:
            return {}
        if not (spec.layers or spec.exclude or spec.only):
            return {}
        if not self.capabilities.keeps_layers:
            problem = f"{spec.precision} for {spec.target}: it chooses the types of all layers by itself"
            hint = "leave `layers` and `exclude` out, or choose another precision or target"
            raise InvalidOption(problem, hint=hint)
        graph = read_weightless(self.model).model.graph
        above = dict.fromkeys(match_nodes(graph, spec.exclude, only=spec.only), "fp32")
        layers = spec.layer_precisions.items()
        return above | {name: kind for pattern, kind in layers for name in match_nodes(graph, [pattern])}

    def _faults(self) -> list[KnownFault]:
        """Those of this version and precision that are not ignored."""
        ignored, spec = self.spec.tensorrt.ignore_faults, self.spec
        computed = {spec.precision, spec.floats if spec.precision == "int8" else spec.precision}
        return [
            fault
            for fault in self.capabilities.faults
            if not {fault.name, "all"} & {*ignored}
            and (not fault.precisions or computed & {*fault.precisions})
            and fault.profiles <= len(spec.tensorrt.profiles)
        ]

    def _compare(self, change: Cure, path: Path | None = None) -> list[str]:
        """Compare a file, by default the float model, with what a change makes; return what cannot be."""
        path = path or self.model
        model = load_onnx(path)
        change(model)
        with temporary_folder("rewrite") as folder:
            changed = folder / path.name
            save_onnx(model, changed)
            return rewritten_outputs(path, changed)

    def _saved(self, model: onnx.ModelProto) -> Path:
        save_onnx(model, self.path)
        return self.path


def cure(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Rewrite what shows these known faults, in place."""
    for name, faulty in FAULTY_GRAPHS.items():
        if name in names and faulty.cure is not None:
            faulty.cure(model)


def _operators(graph: Path) -> set[str]:
    """All operators of ONNX in a file, those inside nodes included."""
    graphs = every_graph(read_weightless(graph).model.graph)
    return {node.op_type for inner in graphs for node in inner.node if node.domain in ONNX_DOMAINS}


def half_left_to_engine(spec: ArtifactOptions, capabilities: Capabilities) -> str:
    """Return the half precision whose layers the engine chooses, "fp16" or "bf16"; empty for none."""
    half = spec.precision if spec.precision in HALVES else spec.floats
    if half not in HALVES or half not in capabilities.in_graph or not capabilities.keeps_layers:
        return ""
    weak = spec.tensorrt.typing == "weak"
    chooses = bool(spec.calibrator) or capabilities.needed(half, weak=weak) == "fp32"
    return half if chooses else ""
