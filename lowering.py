"""Which graph an engine needs for an intent: decided here, and made from the float model.

    model.onnx ─ quantize, or cast ─ types of inputs and outputs ─ operators it lacks ─ opset ─▶ graph.onnx

1. Where the graph has the types, they are written into it. An engine that tells which quantized layers it
   would compute in float is asked; the graph is quantized again without those, and without data until then.
2. Where the engine chooses the types (TensorRT 8, OpenVINO's FP16, TensorRT's calibrators), the graph stays
   in float, and what the intent says of single layers is left over as constraints for the builder.

`build`, `run`, `tune`, `refit` and a dry run lower by this function alone. The user's file is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from .artifact import Manifest, commit, read_manifest, writing
from .errors import ArtifactError, InvalidOption
from .progress import Progress, silent

if TYPE_CHECKING:
    from .engines.base import Precision
    from .engines.capabilities import Capabilities
    from .preparation import Intent
    from .tensors import Feeds

_FLOATS = ("fp32", "tf32")
_ROUNDS = 2
_RECORD = "lowered"


@dataclass(frozen=True)
class LoweredGraph:
    """A graph that an engine can build from, and what the graph does not say.

    Attributes:
        path: The ONNX file, the model itself where nothing had to change; or a MODEL spelling.
        precision: What is built: never "best".
        rest: What INT8 and FP8 leave in float is computed in.
        layers: Name of a node to the precision it must have: constraints for an engine that chooses types.
        planned: Names of the layers that were to be quantized before the engine was asked.
        left_in_float: Those of them that it computes in float, with what it said; they are not quantized.
        warnings: What the user should know.
    """

    path: str
    precision: Precision
    rest: str = "fp32"
    layers: Mapping[str, str] = field(default_factory=dict)
    planned: Sequence[str] = ()
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def as_json(self) -> dict[str, object]:
        """Return what the graph does not say, for its manifest."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


def load_lowered(path: Path) -> LoweredGraph:
    """Return a graph that `lower` wrote.

    Raises:
        ArtifactError: If it has no manifest that says so.
    """
    manifest = read_manifest(path)
    record = manifest.options.get(_RECORD) if manifest else None
    if not isinstance(record, dict):
        raise ArtifactError(f"{path}: its manifest does not say how it was lowered", file=path)
    return LoweredGraph(str(path), **record)


def writes_types(intent: Intent, capabilities: Capabilities) -> bool:
    """Whether the graph must have another precision than float32, so that it is made, and not the model."""
    if capabilities.takes != "onnx" or intent.calibrator:
        return False
    return intent.precision == "best" or capabilities.in_graph.get(intent.precision, "fp32") != "fp32"


def lower(
    intent: Intent,
    capabilities: Capabilities,
    output: Path,
    *,
    keep: bool = False,
    progress: Progress = silent,
) -> LoweredGraph:
    """Make the graph that an engine needs for an intent.

    Args:
        intent: What the artifact is to be.
        capabilities: Of the engine of the intent's target.
        output: ONNX file to write, with a manifest from which `load_lowered` reads the result.
        keep: Write it even where the model itself is what the engine needs.
        progress: Told of every step.

    Returns:
        The graph; its path is the intent's model where that is what the engine needs, and `keep` is not set.

    Raises:
        InvalidOption: If the graph has not the precision and cannot be given it, or options contradict.
        IntentNotReached: If the processor here would emulate the precision.
        CalibrationError, QuantizationError, ModelError: As `compiler.quantize.quantize`.
    """
    from .engines.registry import engine

    precision, rest = _decided(intent, capabilities)
    engine(intent.target).check_precision(precision, rest)
    if capabilities.takes != "onnx":
        return LoweredGraph(str(intent.model), precision, rest)
    with writing(output) as path:
        return _Lowering(intent, capabilities, precision, rest, path, progress).run(output, keep=keep)


def first_sample(intent: Intent) -> Feeds | None:
    """Return the first batch of the intent's data, to run a graph on; None for random input."""
    from .data.batches import Data
    from .model.weightless import read_weightless

    if intent.data is None or intent.calibrator:
        return None
    return next(iter(Data(intent.data, read_weightless(Path(intent.model)).io.inputs))).feeds


def _decided(intent: Intent, capabilities: Capabilities) -> tuple[Precision, str]:
    """The precision to build, and that of the rest; "best" is decided by what there is to build from."""
    from .engines.base import PRECISIONS

    if intent.precision == "best":
        if not capabilities.has_best:
            raise InvalidOption(
                f"`precision` best: is for tensorrt and tensorrt-rtx; target {intent.target} was asked for",
                hint="`qcompile tune` measures which precision is fastest within an accuracy",
                option="precision",
            )
        quantized = (
            intent.ranges is not None or bool(intent.calibrator) or _precision_of(intent.model) == "int8"
        )
        return ("int8", "fp16") if quantized else ("fp16", "fp32")
    if intent.precision not in PRECISIONS:
        raise InvalidOption(
            f"precision {intent.precision!r}: one of {', '.join((*PRECISIONS, 'best'))} is required"
        )
    precision = PRECISIONS[PRECISIONS.index(intent.precision)]
    if intent.layers and precision in _FLOATS:
        raise InvalidOption(
            f"`layers`: no precision is higher than {precision}",
            hint="ask for the lower precision, and name the layers that stay above it",
            option="layers",
        )
    if precision not in capabilities.in_graph:
        raise InvalidOption(
            f"`precision` {precision}: target {intent.target} has {', '.join(capabilities.in_graph)}",
            option="precision",
        )
    return precision, intent.rest


def _precision_of(model: str | Path) -> str:
    from .model.graph import graph_precision
    from .model.weightless import read_weightless

    return graph_precision(read_weightless(Path(model)).model)


class _Lowering:
    """One model on its way to a graph at `path`, which every step reads and writes again."""

    def __init__(
        self,
        intent: Intent,
        capabilities: Capabilities,
        precision: Precision,
        rest: str,
        path: Path,
        progress: Progress,
    ) -> None:
        self.intent, self.capabilities, self.precision, self.rest = intent, capabilities, precision, rest
        self.path, self.progress = path, progress
        self.needed = "fp32" if intent.calibrator else capabilities.in_graph[precision]
        self.static = self.needed in ("int8", "fp8") and intent.mode == "static"
        self.manifest: Manifest | None = None

    def run(self, output: Path, *, keep: bool) -> LoweredGraph:
        planned: Sequence[str] = ()
        left: Mapping[str, str] = {}
        if not self._must_be_typed():
            graph = self._fitted(Path(self.intent.model))
        elif self.needed == "int8" and self._is_asked():
            graph, planned, left = self._quantized_as_told()
        else:
            graph = self._typed(data=self.intent.data)
        if keep and graph != self.path:
            from .model.onnx_file import load_onnx, save_onnx

            save_onnx(load_onnx(graph), self.path)
            graph = self.path
        warnings = [*self.manifest.warnings, *self._unlearnt()] if self.manifest else []
        lowered = LoweredGraph(
            str(output if graph == self.path else graph),
            self.precision, self.rest, self._constraints(), planned, left, warnings,
        )  # fmt: skip
        if graph == self.path:
            self._record(lowered)
        return lowered

    def _must_be_typed(self) -> bool:
        """Whether the model is not of the needed precision yet.

        Raises:
            InvalidOption: If it cannot become so.
        """
        intent, needed, model = self.intent, self.needed, self.intent.model
        if intent.calibrator:
            return False
        named = [*intent.layers, *intent.exclude, *intent.only] if needed != "fp32" else []
        found = _precision_of(model)
        if found == needed and not named:
            return False
        if found != "fp32":
            asked = f"{needed} with {', '.join(named)} in another" if named else needed
            raise InvalidOption(
                f"{model}: its graph is {found} already; {asked} was asked for",
                hint=f"give `precision` {found}, or build from the float model",
            )
        if needed == "int4" and intent.mode != "weights":
            raise InvalidOption(
                f"{model}: holds no weights of 4 bits, and int4 was asked for",
                hint="quantize it first, with `mode` weights and `precision` int4",
            )
        if self.static and intent.ranges is None:
            raise InvalidOption(
                f"{model}: holds no quantized layer, and {needed} was asked for",
                hint="quantize it first, or give `ranges` (`qcompile calibrate` writes them)",
                option="ranges",
            )
        return True

    def _is_asked(self) -> bool:
        return self.static and self.capabilities.tells_missed and not self.intent.strict

    def _typed(self, left: Mapping[str, str] = MappingProxyType({}), *, data: str | None = None) -> Path:
        """Quantize or cast the model, and fit the graph to the engine."""
        from .compiler.quantize.int8.placement import graph_target
        from .compiler.quantize.quantize import quantize
        from .compiler.quantize.request import WeightOptions

        intent = self.intent
        weights = intent.weights or WeightOptions()
        if self.static and data is None and intent.data is not None:
            weights = replace(weights, rounding="rtn")  # GPTQ learns from the data, which comes last
        self.manifest = quantize(
            intent.model,
            self.path,
            ranges=intent.ranges if self.static else None,
            target=graph_target(intent.target),
            precision=self.needed,  # type: ignore[arg-type]  # no graph is made in float32
            mode=intent.mode,  # type: ignore[arg-type]  # checked there
            processor=intent.processor,  # type: ignore[arg-type]  # checked there
            method=intent.method if self.static else None,
            exclude=intent.exclude,
            only=intent.only,
            layers=intent.layers,
            in_float=left,
            rest=self.capabilities.in_graph.get(self.rest, self.rest),
            correct_bias=intent.correct_bias,
            search=intent.search,
            weights=weights,
            data=data,
            allow_loss=intent.allow_loss,
            progress=self.progress,
        ).manifest
        return self._fitted(self.path)

    def _quantized_as_told(self) -> tuple[Path, Sequence[str], Mapping[str, str]]:
        """Ask the engine which quantized layers it computes in float, and quantize again without them.

        Their Q/DQ would only cost conversions. Without them others may miss, so it is asked again, at most
        `_ROUNDS` times; what misses then is weighed by the proof. Where all would be left out there is
        nothing to build: the graph stays, and the proof says so. The data waits for the last plan.
        """
        from .engines.base import BuildRequest
        from .engines.refused import missed_or_refused
        from .engines.registry import engine
        from .model.graph import weighted_nodes
        from .model.weightless import read_weightless

        intent, sample = self.intent, first_sample(self.intent)
        graph = self._typed()
        planned = [node.name for node in weighted_nodes(read_weightless(graph).model)["int8"]]
        left: dict[str, str] = {}
        for _ in range(_ROUNDS):
            self.progress("ask which layers run in float")
            request = BuildRequest(
                str(graph), self.path, self.precision, str(intent.model), threads=intent.threads,
                rest=self.rest, sample=sample, progress=self.progress,
            )  # fmt: skip
            missed = missed_or_refused(engine(intent.target), request, planned, left, self._typed)
            if not missed or len(left) + len(missed) >= len(planned):
                break
            left |= missed
            graph = self._typed(left)
        if intent.data is not None:
            graph = self._typed(left, data=intent.data)
        return graph, planned, left

    def _fitted(self, graph: Path) -> Path:
        """Give inputs and outputs their types, and the file operators and an opset that the engine reads."""
        from .model.onnx_file import load_onnx, opset, save_onnx

        options, highest = self.intent.options, self.capabilities.highest_opset
        formats = options.tensor_formats if options else {}
        types = {name: dtype for name, (dtype, _) in formats.items() if dtype}
        if types:
            from .compiler.io_types import set_io_types

            save_onnx(set_io_types(load_onnx(graph), types), self.path)
            graph = self.path
        graph = self._without_lacking(graph)
        if highest is not None and opset(load_onnx(graph, external_data=False)) > highest:
            from .compiler.opset.fit import fit_opset

            fit_opset(graph, self.path, highest, progress=self.progress)
            graph = self.path
        return graph

    def _without_lacking(self, graph: Path) -> Path:
        """Write operators that the engine lacks in others, where they can be."""
        from .compiler.opset.dft import dft_to_products
        from .compiler.opset.folds import folds_to_transposes
        from .compiler.opset.plain_forms import einsums_in_lower_case, eyes_to_ranges
        from .compiler.opset.scatter_adds import scatter_adds_to_products
        from .model.onnx_file import load_onnx, save_onnx
        from .model.weightless import read_weightless

        rewrites = {
            "Col2Im": folds_to_transposes, "DFT": dft_to_products, "Einsum": einsums_in_lower_case,
            "EyeLike": eyes_to_ranges, "ScatterND": scatter_adds_to_products,
        }  # fmt: skip
        held = {node.op_type for node in read_weightless(graph).model.graph.node} & {*self.capabilities.lacks}
        if not held:
            return graph
        model = load_onnx(graph)
        if not [name for operator in sorted(held) for name in rewrites[operator](model)]:
            return graph
        save_onnx(model, self.path)
        return self.path

    def _constraints(self) -> dict[str, str]:
        """Node to precision, where the engine chooses types; where the graph has them, it has these too."""
        from .compiler.quantize.match_nodes import match_nodes
        from .model.weightless import read_weightless

        intent = self.intent
        if self.precision in _FLOATS or self.needed == self.precision:
            return {}
        if not (intent.layers or intent.exclude or intent.only):
            return {}
        if not self.capabilities.keeps_layers:
            raise InvalidOption(
                f"{self.precision} for {intent.target}: it chooses the types of all layers by itself",
                hint="leave `layers` and `exclude` out, or choose another precision or target",
            )
        graph = read_weightless(Path(intent.model)).model.graph
        above = dict.fromkeys(match_nodes(graph, intent.exclude, only=intent.only), "fp32")
        return above | {
            name: kind for pattern, kind in intent.layers.items() for name in match_nodes(graph, [pattern])
        }

    def _unlearnt(self) -> list[str]:
        """What static INT8 lacks without data."""
        if not (self.static and self.needed == "int8" and self.intent.data is None):
            return []
        lost = "biases were not corrected, and " if self.intent.correct_bias else ""
        return [f"no data was given: {lost}what INT8 loses was judged on random input"]

    def _record(self, lowered: LoweredGraph) -> None:
        """Write the manifest of the graph: that of its quantization, and what the graph does not say."""
        from .model.onnx_file import load_onnx, model_io
        from .model.weightless import fingerprint

        manifest = self.manifest or Manifest(
            kind="onnx",
            stage="lower",
            target=self.intent.target,
            precision=self.needed,
            sources={"model": fingerprint(Path(self.intent.model))},
        )
        io = model_io(load_onnx(self.path, external_data=False))
        options = {**manifest.options, _RECORD: lowered.as_json()}
        commit(self.path, replace(manifest, io=io, options=options))
