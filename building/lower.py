"""Lower a float model to the graph from which an engine is built.

    model.onnx ─ quantize, or cast ─ passes for the runtime's parser ─ constraints ─▶ graph.onnx

The graph is read once, edited in memory, and written once; the user's file does not change.

1. If the graph carries the types, they are written into it. If the engine can report before the build which
   quantized layers it would run in floating point, the graph is quantized again without these. Until that
   list is final, no data is read.
2. If the engine chooses the types (TensorRT 8 and calibrators, or by a hint), the graph remains in floating
   point, and the user's choices for single layers become constraints for the builder.

`build`, `run`, `tune`, `refit` and a dry run lower through this function only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..compiler.opset.passes import Pass
from ..compiler.opset.tensorrt_forms import STANDARD_FORMS, find_trt_operators
from ..core.artifact import (
    QUANTIZE_AGAIN,
    Manifest,
    commit,
    isa_option,
    read_manifest,
    require_exact,
)
from ..core.files import side_files, writing
from ..core.processor import resolve_isa
from ..core.progress import Progress, silent
from ..data.batches import Data, Spread
from ..errors import InvalidOption
from ..model.graph.graph import graph_precision, weighted_nodes
from ..model.graph.onnx_file import Graph, check_written, copy_model, read_graph
from ..spec.artifacts import with_floats
from ..spec.words import BLOCK_FORMATS, CALIBRATED, HALVES, WAY_OUT
from .lowered import RECORD, LoweredGraph, half_chosen_by_engine, reasons_in
from .passes import fitting_passes, run_passes, work_around_faults

if TYPE_CHECKING:
    from ..calibration import Ranges
    from ..engines.base import Engine
    from ..engines.registry import Capabilities
    from ..spec.artifacts import BuildSpec
    from ..spec.tensors import TensorInfo

_FLOATS = ("fp32", "tf32")
_MAX_ROUNDS = 2
_OVERFLOW_SAMPLES = 16  # samples on which FP16 activations are checked for overflow
_NOT_CHECKED = "no data was given: values beyond float16's 65504 were not looked for"


def lower(
    model: str | Path,
    spec: BuildSpec,
    engine: Engine,
    output: Path,
    *,
    ranges: Ranges | None = None,
    keep: bool = False,
    progress: Progress = silent,
) -> LoweredGraph:
    """Write the graph that an engine builds from; for a PyTorch engine pass the MODEL on unchanged.

    The result goes to `output` with a manifest for `load_lowered`. If the model needs no change, it is copied
    there only with `keep`. `ranges` replace the ranges file of `spec`; `spec.isa` must be resolved.
    """
    from ..engines.registry import capabilities_of

    ranges_source = spec.ranges if ranges is None else ranges
    capabilities = capabilities_of(engine)
    source = read_graph(Path(model)) if engine.takes == "onnx" else None
    spec = _resolve_precision(source, spec, capabilities, has_ranges=ranges_source is not None)
    spec = with_floats(spec)
    engine.check(spec)
    if source is None:
        return LoweredGraph(str(model), spec.one_precision, spec.floats)
    with writing(output) as path:
        lowering = _Lowering(source, spec, ranges_source, engine, capabilities, progress)
        counts, _ = run_passes([STANDARD_FORMS], source, source, progress)
        lowering.counts |= {name: count for name, count in counts.items() if count}
        return lowering.run(path, output, keep=keep)


def spread_samples(data: str | None, inputs: Sequence[TensorInfo], count: int = 16) -> Spread | None:
    """Return about `count` samples (at least one batch), spread over the data; None without data."""
    return None if data is None else Data(data, inputs).spread(count)


def _resolve_precision(
    source: Graph | None, spec: BuildSpec, capabilities: Capabilities, *, has_ranges: bool
) -> BuildSpec:
    """Check the precision of the spec, and resolve "best" from the model, the ranges and the calibrator."""
    if spec.precision == "best":
        if not capabilities.has_best:
            problem = f"is for tensorrt and tensorrt-rtx; target {spec.target} was requested"
            hint = "`qcompile tune` measures which precision is fastest within an accuracy"
            raise InvalidOption(f"`precision` best: {problem}", hint=hint, option="precision")
        assert source is not None, "engines with precision best take ONNX files"
        quantized = has_ranges or bool(spec.calibrator) or graph_precision(source.model) == "int8"
        if quantized:
            return replace(spec, precision="int8", float_precision="fp16")
        return replace(spec, precision="fp16", float_precision="fp32")
    if spec.layers and spec.precision in _FLOATS:
        hint = "ask for the lower precision, and name the layers that stay above it"
        problem = f"no precision is higher than {spec.precision}"
        raise InvalidOption(f"`layers`: {problem}", hint=hint, option="layers")
    if spec.precision not in capabilities.in_graph:
        problem = f"target {spec.target} has {', '.join(capabilities.in_graph)}"
        hint = WAY_OUT.get(spec.precision, "")
        raise InvalidOption(f"`precision` {spec.precision}: {problem}", hint=hint, option="precision")
    return spec


class _Lowering:
    """The lowering of one model in memory.

    Each `fit` sets `warnings` and `worked_around` (nodes rewritten because of a known fault), and adds to
    `counts` the nodes that each pass changed.
    """

    def __init__(
        self,
        source: Graph,
        spec: BuildSpec,
        ranges: Path | Ranges | None,
        engine: Engine,
        capabilities: Capabilities,
        progress: Progress,
    ) -> None:
        self.source, self.spec, self.ranges = source, spec, ranges
        self.engine, self.capabilities, self.progress = engine, capabilities, progress
        self.digest = source.digest()
        self.source_manifest = read_manifest(source.path)
        weak = spec.tensorrt.typing == "weak"
        self.needed = "fp32" if spec.calibrator else capabilities.needed(spec.precision, weak=weak)
        self.static = self.needed in CALIBRATED and spec.mode == "static"
        self.warnings: list[str] = []
        self.worked_around: dict[str, Sequence[str]] = {}
        self.counts: dict[str, int] = {}
        self.manifest: Manifest | None = None  # of the quantized graph

    def run(self, path: Path, output: Path, *, keep: bool) -> LoweredGraph:
        """Lower the model; write the graph to `path` if it changed. `output` is its final place."""
        spec = self.spec
        planned: Sequence[str] = ()
        in_float: Mapping[str, str] = {}
        if not self._must_convert():
            graph = self._fit_source()
        elif self.needed == "int8" and self.static and self.capabilities.tells_missed and not spec.strict:
            graph, planned, in_float = self._quantize_iteratively()
        else:
            graph = self._quantize(data=spec.data)
        layers = self._find_constraints(graph)
        if keep or not graph.is_file:
            self.progress("write the graph")
            graph.save(path)
            graph = Graph(graph.model, path, is_file=True)
            if self.manifest is not None:
                check_written(path, self.source.path)
        warnings = list(self.manifest.warnings) if self.manifest else []
        if self.manifest and self.static and self.needed == "int8" and spec.data is None:
            lost = "biases were not corrected, and " if spec.correct_bias else ""
            warnings.append(f"no data was given: {lost}the INT8 error was measured on random input")
        written = graph.path == path
        if written:
            beside = [output.with_name(file.name) for file in side_files(path)]
            graph = Graph(graph.model, output, is_file=True, beside=beside)
        reasons = reasons_in(self.manifest if written else self.source_manifest)
        lowered = LoweredGraph(
            str(graph.path), spec.one_precision, spec.floats, layers, planned, in_float,
            [*warnings, *self.warnings], self.worked_around, self.counts, self.digest, reasons,
            self.source.io.inputs, graph,
        )  # fmt: skip
        if written:
            self._record(lowered, path)
        return lowered

    def _must_convert(self) -> bool:
        """Return whether the model must be quantized or cast; raise if it cannot be."""
        spec, needed, path = self.spec, self.needed, self.source.path
        if spec.calibrator:
            return False
        named = [*spec.layer_precisions, *spec.exclude, *spec.only] if needed != "fp32" else []
        current = graph_precision(self.source.model)
        if current == needed and not named:
            return False
        if current != "fp32":
            request = f"{needed} with {', '.join(named)} in another" if named else needed
            hint = f"give `precision` {current}, or build from the float model"
            raise InvalidOption(f"{path}: its graph is {current} already; {request} was requested", hint=hint)
        if needed in BLOCK_FORMATS:
            problem = f"{path}: holds no {needed.upper()}, and {needed} was requested"
            hint = "NVIDIA's Model-Optimizer writes such graphs (modelopt); or choose `precision` fp8 or int8"
            raise InvalidOption(problem, hint=hint, option="precision")
        if needed == "int4" and spec.mode != "weights":
            hint = "quantize it first, with `mode` weights and `precision` int4"
            raise InvalidOption(f"{path}: holds no weights of 4 bits, and int4 was requested", hint=hint)
        if self.static and self.ranges is None:
            problem = f"{path}: holds no quantized layer, and {needed} was requested"
            hint = "quantize it first, or give `ranges` (`qcompile calibrate` writes them)"
            raise InvalidOption(problem, hint=hint, option="ranges")
        return True

    def _fit_source(self) -> Graph:
        """Fit the model without quantizing it; cast float layers of a quantized model to `spec.floats`."""
        path = self.source.path
        if self.needed == "int8":
            require_exact(path, self.source_manifest, on=self.spec.isa, hint=QUANTIZE_AGAIN)
        from ..compiler.quantize.half.precision import convert_float_layers

        half = self.capabilities.in_graph.get(self.spec.floats, "fp32") if self.static else "fp32"
        passes = [Pass(f"float parts in {half}", lambda graph: convert_float_layers(graph, half))]
        source = self.source  # the copy counts as the user's file until its first edit
        copy = Graph(copy_model(source.model), path, is_file=source.is_file, beside=source.beside)
        return self.fit(copy, passes if half in HALVES else [])

    def _quantize(self, skip: Mapping[str, str] = MappingProxyType({}), *, data: str | None = None) -> Graph:
        """Quantize or cast the model, and fit the graph to the engine."""
        from ..calibration import load_ranges
        from ..calibration.tensorrt_cache import is_cache, read_cache
        from ..compiler.quantize.quantize import quantize_in_memory
        from ..compiler.quantize.request import check_options
        from ..model.graph.graph_rules import graph_target
        from ..spec.artifacts import QuantizeSpec
        from ..spec.decode import shared

        spec = self.spec
        is_plan = self.static and data is None and spec.data is not None  # data is for the last round
        floats = self.capabilities.in_graph.get(spec.floats, spec.floats)
        target = graph_target(spec.target)
        options = shared(
            QuantizeSpec,
            spec,
            target=target,
            precision=self.needed,
            float_precision="auto" if spec.float_precision == "auto" else floats,
            method=spec.method if self.static else "",
            rounding="rtn" if is_plan else spec.rounding,
            ranges=None,
            data=data,
            isa=resolve_isa(spec.isa, target),  # still "auto" for an engine of another package
        )
        check_options(options)
        ranges = self.ranges if self.static else None
        if isinstance(ranges, str | Path):
            ranges = read_cache(ranges, self.source.path) if is_cache(ranges) else load_ranges(ranges)
        graph, self.manifest = quantize_in_memory(
            self.source, self.digest, options, ranges=ranges, in_float=skip, is_plan=is_plan,
            progress=self.progress,
        )  # fmt: skip
        self.counts[f"{self.needed} for {options.target}"] = len(graph.model.graph.node)
        return self.fit(graph)

    def fit(self, graph: Graph, passes: Sequence[Pass] = ()) -> Graph:
        """Run `passes`, the passes for the runtime's parser, and the workarounds of known faults."""
        spec, capabilities = self.spec, self.capabilities
        self.warnings = []
        fitting = fitting_passes(spec, self.engine, capabilities, self.needed, self.source, self.warnings)
        all_passes = [*passes, *fitting]
        counts, warnings = run_passes(all_passes, graph, self.source, self.progress)
        self.counts |= counts
        self.warnings += warnings
        if names := find_trt_operators(graph.model):
            text = f"ONNX Runtime has no {', '.join(names)}: the engine's outputs cannot be compared with it"
            self.warnings.append(text)
        counts, warnings, self.worked_around = work_around_faults(
            graph, self.source, spec, capabilities, self.progress
        )
        self.counts |= counts
        self.warnings = list(dict.fromkeys([*self.warnings, *warnings]))
        return graph

    def _quantize_iteratively(self) -> tuple[Graph, Sequence[str], Mapping[str, str]]:
        """Quantize without the layers that the engine reports it would run in floating point.

        A Q/DQ pair at such a layer only costs conversions. Without it the engine may report further layers;
        this is repeated at most `_MAX_ROUNDS` times, and the verification weighs layers missed after that. If
        no quantized layer would remain, the graph is returned as it is, and the verification reports the
        layers. The data is read only in the last round.
        """
        from ..engines.base import BuildRequest
        from ..engines.build import layers_to_leave_in_float

        spec, source = self.spec, str(self.source.path)
        spread = spread_samples(spec.data, self.source.io.inputs, 1)
        graph = self._quantize()
        planned = [node.name for node in weighted_nodes(graph.model)["int8"]]
        in_float: dict[str, str] = {}
        for _ in range(_MAX_ROUNDS):
            self.progress("find the layers that run in float")
            request = BuildRequest(
                source, graph.path, spec, source, samples=spread.batches if spread else (),
                progress=self.progress, graph=graph,
            )  # fmt: skip
            missed = layers_to_leave_in_float(
                self.engine, request, self.source, planned, in_float, self._quantize
            )
            if not missed or len(in_float) + len(missed) >= len(planned):
                break
            in_float |= missed
            graph = self._quantize(in_float)
        if spec.data is not None:
            graph = self._quantize(in_float, data=spec.data)
        return graph, planned, in_float

    def _find_constraints(self, graph: Graph) -> dict[str, str]:
        """Return node of the graph to its required precision.

        The user constrains layers by `layers`, `exclude` and `only`. If the engine chooses the half-precision
        types, nodes with values outside that range must be float32, and all nodes get names.
        """
        named = self._find_named()
        half = half_chosen_by_engine(self.spec, self.capabilities)
        if not half:
            return named
        from ..compiler.quantize.half.precision import nodes_to_protect

        observed = self._find_ranges() if half == "fp16" else None  # bf16 has the range of float32
        protected = nodes_to_protect(graph.load(), HALVES[half], ranges=observed)
        graph.edited()  # `nodes_to_protect` named its nodes
        names = [node.name for node in graph.model.graph.node]
        layers: dict[str, str] = {}
        for layer, kind in named.items():
            # A node of the model is in the graph, or was replaced by nodes named `layer/...`.
            parts = [layer] if layer in names else [name for name in names if name.startswith(f"{layer}/")]
            layers |= dict.fromkeys(parts or [layer], kind)
        if half == "fp16" and observed is None:
            self.warnings.append(_NOT_CHECKED)
        self.counts["float32 for what half precision would break"] = len(protected)
        return dict.fromkeys(protected, "fp32") | layers

    def _find_ranges(self) -> Ranges | None:
        """Return the given ranges, or those of the first samples; None without either."""
        from ..calibration import Ranges, float_activations, load_ranges, observe
        from ..calibration.tensorrt_cache import is_cache

        ranges, data = self.ranges, self.spec.data
        if isinstance(ranges, Ranges):
            return ranges
        if ranges is not None and not is_cache(ranges):
            return load_ranges(ranges)
        if data is None:
            return None
        samples = Data(data, self.source.io.inputs, batch_size=1, limit=_OVERFLOW_SAMPLES)
        tensors = float_activations(self.source.model)
        return observe(self.source, samples, tensors=tensors, infinite=True)  # `graph` may have other inputs

    def _find_named(self) -> dict[str, str]:
        """Return node of the model to the precision that the user set for it."""
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
        graph = self.source.model.graph
        above = dict.fromkeys(match_nodes(graph, spec.exclude, only=spec.only), "fp32")
        layers = spec.layer_precisions.items()
        return above | {name: kind for pattern, kind in layers for name in match_nodes(graph, [pattern])}

    def _record(self, lowered: LoweredGraph, path: Path) -> None:
        """Write the manifest of the graph: that of the quantization, plus the fields of `lowered`."""
        manifest = self.manifest or Manifest(
            kind="onnx",
            stage="lower",
            target=self.spec.target,
            precision=self.needed,
            sources={"model": self.digest},
            options=isa_option(self.source_manifest),
        )
        assert lowered.graph is not None, "it was written"
        options = {**manifest.options, RECORD: lowered.as_json()}
        commit(path, replace(manifest, io=lowered.graph.io, options=options))
