"""Which graph an engine needs for what was asked: decided here, and made from the float model.

    model.onnx ─ quantize, or cast ─ passes that fit it to the reader ─ constraints ─▶ graph.onnx

The graph stays in memory on this road: it is read once, and written once.

1. Where the graph has the types, they are written into it. An engine that tells which quantized layers it
   would compute in float is asked; the graph is quantized again without those, and without data until then.
2. Where the engine chooses the types (TensorRT 8 and calibrators, or by a hint), the graph stays in float,
   and what the spec says of single layers is left over as constraints for the builder.

`build`, `run`, `tune`, `refit` and a dry run lower by this function alone. The user's file is left alone.
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
from .lowered import RECORD, LoweredGraph, half_left_to_engine, reasons_in
from .passes import fitting_passes, run_passes, without_faults

if TYPE_CHECKING:
    from ..calibration import Ranges
    from ..engines.base import Engine
    from ..engines.registry import Capabilities
    from ..spec.artifacts import BuildSpec
    from ..spec.tensors import TensorInfo

_FLOATS = ("fp32", "tf32")
_ROUNDS = 2
_LOOKED_AT = 16  # samples in which FP16 looks for activations that overflow
_BLIND = "no data was given: values beyond float16's 65504 were not looked for"


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
    """Make the graph that an engine needs of an ONNX file, or of a MODEL where the engine takes PyTorch.

    It is written to `output`, with a manifest from which `load_lowered` reads the result; where the model
    itself is what the engine needs, only with `keep`. `ranges` are in place of the file that the spec names,
    whose `isa` is not "auto" for a processor.
    """
    from ..engines.registry import capabilities_of

    chosen = spec.ranges if ranges is None else ranges
    capabilities = capabilities_of(engine)
    source = read_graph(Path(model)) if engine.takes == "onnx" else None
    spec = _decided(source, spec, capabilities, has_ranges=chosen is not None)
    spec = with_floats(spec)
    engine.check(spec)
    if source is None:
        return LoweredGraph(str(model), spec.one_precision, spec.floats)
    with writing(output) as path:
        lowering = _Lowering(source, spec, chosen, engine, capabilities, progress)
        counts, _ = run_passes([STANDARD_FORMS], source, source, progress)
        lowering.counts |= {name: count for name, count in counts.items() if count}
        return lowering.run(path, output, keep=keep)


def spread_samples(data: str | None, inputs: Sequence[TensorInfo], count: int = 16) -> Spread | None:
    """Return so many samples of data, one batch at least, spread over it; None without data."""
    return None if data is None else Data(data, inputs).spread(count)


def _decided(
    source: Graph | None, spec: BuildSpec, capabilities: Capabilities, *, has_ranges: bool
) -> BuildSpec:
    """The spec with one precision: "best" is decided by what there is to build from."""
    if spec.precision == "best":
        if not capabilities.has_best:
            problem = f"is for tensorrt and tensorrt-rtx; target {spec.target} was asked for"
            hint = "`qcompile tune` measures which precision is fastest within an accuracy"
            raise InvalidOption(f"`precision` best: {problem}", hint=hint, option="precision")
        assert source is not None, "these engines take ONNX files"
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
    """One model, in memory, on its way to the graph that an engine can build from.

    After each `fit` its `warnings` say what the user should know, `worked_around` which nodes were rewritten
    because of a known fault, and `counts` what the passes changed.
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
        self.manifest: Manifest | None = None  # of the quantization, where there was one

    def run(self, path: Path, output: Path, *, keep: bool) -> LoweredGraph:
        """Make the graph, at `path` if it is not the user's file; `output` is where that goes in the end."""
        spec = self.spec
        planned: Sequence[str] = ()
        left: Mapping[str, str] = {}
        if not self._must_be_typed():
            graph = self._as_typed()
        elif self.needed == "int8" and self.static and self.capabilities.tells_missed and not spec.strict:
            graph, planned, left = self._quantized_as_told()
        else:
            graph = self._typed(data=spec.data)
        layers = self._constrained(graph)
        if keep or not graph.is_file:
            self.progress("write the graph")
            graph.save(path)
            graph = Graph(graph.model, path, is_file=True)
            if self.manifest is not None:
                check_written(path, self.source.path)
        warnings = list(self.manifest.warnings) if self.manifest else []
        if self.manifest and self.static and self.needed == "int8" and spec.data is None:
            lost = "biases were not corrected, and " if spec.correct_bias else ""
            warnings.append(f"no data was given: {lost}what INT8 loses was judged on random input")
        written = graph.path == path
        if written:
            beside = [output.with_name(file.name) for file in side_files(path)]
            graph = Graph(graph.model, output, is_file=True, beside=beside)
        reasons = reasons_in(self.manifest if written else self.source_manifest)
        lowered = LoweredGraph(
            str(graph.path), spec.one_precision, spec.floats, layers, planned, left,
            [*warnings, *self.warnings], self.worked_around, self.counts, self.digest, reasons,
            self.source.io.inputs, graph,
        )  # fmt: skip
        if written:
            self._record(lowered, path)
        return lowered

    def _must_be_typed(self) -> bool:
        """Whether the model is not of the needed precision yet."""
        spec, needed, path = self.spec, self.needed, self.source.path
        if spec.calibrator:
            return False
        named = [*spec.layer_precisions, *spec.exclude, *spec.only] if needed != "fp32" else []
        present = graph_precision(self.source.model)
        if present == needed and not named:
            return False
        if present != "fp32":
            asked = f"{needed} with {', '.join(named)} in another" if named else needed
            hint = f"give `precision` {present}, or build from the float model"
            raise InvalidOption(f"{path}: its graph is {present} already; {asked} was asked for", hint=hint)
        if needed in BLOCK_FORMATS:
            problem = f"{path}: holds no {needed.upper()}, and {needed} was asked for"
            hint = "NVIDIA's Model-Optimizer writes such graphs (modelopt); or choose `precision` fp8 or int8"
            raise InvalidOption(problem, hint=hint, option="precision")
        if needed == "int4" and spec.mode != "weights":
            hint = "quantize it first, with `mode` weights and `precision` int4"
            raise InvalidOption(f"{path}: holds no weights of 4 bits, and int4 was asked for", hint=hint)
        if self.static and self.ranges is None:
            problem = f"{path}: holds no quantized layer, and {needed} was asked for"
            hint = "quantize it first, or give `ranges` (`qcompile calibrate` writes them)"
            raise InvalidOption(problem, hint=hint, option="ranges")
        return True

    def _as_typed(self) -> Graph:
        """Fit the model as it is; the float parts of a quantized one get the precision that is asked for."""
        path = self.source.path
        if self.needed == "int8":
            require_exact(path, self.source_manifest, on=self.spec.isa, hint=QUANTIZE_AGAIN)
        from ..compiler.quantize.half.precision import convert_float_layers

        half = self.capabilities.in_graph.get(self.spec.floats, "fp32") if self.static else "fp32"
        passes = [Pass(f"float parts in {half}", lambda graph: convert_float_layers(graph, half))]
        source = self.source  # its file stays what it is until an edit
        copy = Graph(copy_model(source.model), path, is_file=source.is_file, beside=source.beside)
        return self.fit(copy, passes if half in HALVES else [])

    def _typed(self, left: Mapping[str, str] = MappingProxyType({}), *, data: str | None = None) -> Graph:
        """Quantize or cast the model, and fit the graph to the engine."""
        from ..calibration import load_ranges
        from ..calibration.tensorrt_cache import is_cache, read_cache
        from ..compiler.quantize.quantize import quantize_in_memory
        from ..compiler.quantize.request import check_options
        from ..model.graph.graph_rules import graph_target
        from ..spec.artifacts import QuantizeSpec
        from ..spec.decode import shared

        spec = self.spec
        waits = self.static and data is None and spec.data is not None  # for the data, which comes last
        floats = self.capabilities.in_graph.get(spec.floats, spec.floats)
        target = graph_target(spec.target)
        options = shared(
            QuantizeSpec,
            spec,
            target=target,
            precision=self.needed,
            float_precision="auto" if spec.float_precision == "auto" else floats,
            method=spec.method if self.static else "",
            rounding="rtn" if waits else spec.rounding,
            ranges=None,
            data=data,
            isa=resolve_isa(spec.isa, target),  # "auto" for an engine of another package
        )
        check_options(options)
        ranges = self.ranges if self.static else None
        if isinstance(ranges, str | Path):
            ranges = read_cache(ranges, self.source.path) if is_cache(ranges) else load_ranges(ranges)
        graph, self.manifest = quantize_in_memory(
            self.source, self.digest, options, ranges=ranges, in_float=left, is_plan=waits,
            progress=self.progress,
        )  # fmt: skip
        self.counts[f"{self.needed} for {options.target}"] = len(graph.model.graph.node)
        return self.fit(graph)

    def fit(self, graph: Graph, passes: Sequence[Pass] = ()) -> Graph:
        """Run passes on a graph, and those that fit it to the reader."""
        spec, capabilities = self.spec, self.capabilities
        self.warnings = []
        fitting = fitting_passes(spec, self.engine, capabilities, self.needed, self.source, self.warnings)
        every = [*passes, *fitting]
        counts, warnings = run_passes(every, graph, self.source, self.progress)
        self.counts |= counts
        self.warnings += warnings
        if names := find_trt_operators(graph.model):
            text = (
                f"ONNX Runtime has no {', '.join(names)}: what the engine computes cannot be compared with it"
            )
            self.warnings.append(text)
        counts, warnings, self.worked_around = without_faults(
            graph, self.source, spec, capabilities, self.progress
        )
        self.counts |= counts
        self.warnings = list(dict.fromkeys([*self.warnings, *warnings]))
        return graph

    def _quantized_as_told(self) -> tuple[Graph, Sequence[str], Mapping[str, str]]:
        """Ask the engine which quantized layers it computes in float, and quantize again without them.

        Their Q/DQ would only cost conversions. Without them others may miss, so it is asked again, at most
        `_ROUNDS` times; what misses then is weighed by the proof. Where all would be left out there is
        nothing to build: the graph stays, and the proof says so. The data waits for the last plan.
        """
        from ..engines.base import BuildRequest
        from ..engines.build import layers_to_leave_in_float

        spec, source = self.spec, str(self.source.path)
        spread = spread_samples(spec.data, self.source.io.inputs, 1)
        graph = self._typed()
        planned = [node.name for node in weighted_nodes(graph.model)["int8"]]
        left: dict[str, str] = {}
        for _ in range(_ROUNDS):
            self.progress("ask which layers run in float")
            request = BuildRequest(
                source, graph.path, spec, source, samples=spread.batches if spread else (),
                progress=self.progress, graph=graph,
            )  # fmt: skip
            missed = layers_to_leave_in_float(self.engine, request, self.source, planned, left, self._typed)
            if not missed or len(left) + len(missed) >= len(planned):
                break
            left |= missed
            graph = self._typed(left)
        if spec.data is not None:
            graph = self._typed(left, data=spec.data)
        return graph, planned, left

    def _constrained(self, graph: Graph) -> dict[str, str]:
        """Return node of the graph to the precision it must have.

        Where the engine chooses the types of half precision, each node of the graph gets a name, after which
        layers are named. Constraints are the layers that the user names (`layers`, `exclude`, `only`), and
        float32 for what half precision would break.
        """
        named = self._named()
        half = half_left_to_engine(self.spec, self.capabilities)
        if not half:
            return named
        from ..compiler.quantize.half.precision import nodes_to_protect

        observed = self._observed() if half == "fp16" else None  # bf16 reaches as far as float32
        protected = nodes_to_protect(graph.load(), HALVES[half], ranges=observed)
        graph.edited()  # nodes have names
        names = [node.name for node in graph.model.graph.node]
        layers: dict[str, str] = {}
        for layer, kind in named.items():
            # A node of the model is in the graph itself, or those that it was written out in are.
            parts = [layer] if layer in names else [name for name in names if name.startswith(f"{layer}/")]
            layers |= dict.fromkeys(parts or [layer], kind)
        if half == "fp16" and observed is None:
            self.warnings.append(_BLIND)
        self.counts["float32 for what half precision would break"] = len(protected)
        return dict.fromkeys(protected, "fp32") | layers

    def _observed(self) -> Ranges | None:
        """The ranges that were given, or those of the first samples; None without either."""
        from ..calibration import Ranges, float_activations, load_ranges, observe
        from ..calibration.tensorrt_cache import is_cache

        ranges, data = self.ranges, self.spec.data
        if isinstance(ranges, Ranges):
            return ranges
        if ranges is not None and not is_cache(ranges):
            return load_ranges(ranges)
        if data is None:
            return None
        samples = Data(data, self.source.io.inputs, batch_size=1, limit=_LOOKED_AT)
        tensors = float_activations(self.source.model)
        return observe(self.source, samples, tensors=tensors, infinite=True)  # the graph's inputs may differ

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
        graph = self.source.model.graph
        above = dict.fromkeys(match_nodes(graph, spec.exclude, only=spec.only), "fp32")
        layers = spec.layer_precisions.items()
        return above | {name: kind for pattern, kind in layers for name in match_nodes(graph, [pattern])}

    def _record(self, lowered: LoweredGraph, path: Path) -> None:
        """Write the manifest of the graph: that of its quantization, and what the graph does not say."""
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
