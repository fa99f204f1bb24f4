"""Which graph an engine needs for what was asked: decided here, and made from the float model.

    model.onnx ─ quantize, or cast ─ types of inputs and outputs ─ operators it lacks ─ opset ─▶ graph.onnx

1. Where the graph has the types, they are written into it. An engine that tells which quantized layers it
   would compute in float is asked; the graph is quantized again without those, and without data until then.
2. Where the engine chooses the types (TensorRT 8 and calibrators, or by a hint), the graph stays in float,
   and what the spec says of single layers is left over as constraints for the builder.

`build`, `run`, `tune`, `refit` and a dry run lower by this function alone. The user's file is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ..artifact import QUANTIZE_AGAIN, Manifest, carried_isa, commit, read_manifest, require_exact
from ..compiler.opset.tensorrt_forms import find_trt_operators, in_standard_forms
from ..data.batches import Data
from ..errors import ArtifactError, InvalidOption
from ..files import manifest_path, temporary_folder, writing
from ..model.graph import graph_precision, weighted_nodes
from ..model.onnx_file import load_onnx, model_io, save_onnx
from ..model.weightless import fingerprint, read_weightless
from ..processor import resolve_isa
from ..progress import Progress, silent
from ..spec.artifacts import with_floats
from ..spec.words import CALIBRATED, WAY_OUT, FloatPrecision, Precision
from .fitting import Fitting, half_left_to_engine

if TYPE_CHECKING:
    from ..calibration import Ranges
    from ..engines.registry import Capabilities
    from ..spec.artifacts import ArtifactOptions, BuildSpec
    from ..tensors import Feeds

_FLOATS = ("fp32", "tf32")
_ROUNDS = 2
_RECORD = "lowered"


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
    """

    path: str
    precision: Precision
    float_precision: FloatPrecision = "fp32"
    layers: Mapping[str, str] = field(default_factory=dict)
    planned: Sequence[str] = ()
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    worked_around: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return what the graph does not say, for its manifest."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


def load_lowered(path: Path) -> LoweredGraph:
    """Return a graph that `lower` wrote."""
    manifest = read_manifest(path)
    record = manifest.options.get(_RECORD) if manifest else None
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


def lower(
    model: str | Path,
    spec: BuildSpec,
    capabilities: Capabilities,
    output: Path,
    *,
    ranges: Ranges | None = None,
    keep: bool = False,
    progress: Progress = silent,
) -> LoweredGraph:
    """Make the graph that an engine needs of an ONNX file, or of a MODEL where the engine takes PyTorch.

    It is written to `output`, with a manifest from which `load_lowered` reads the result; where the model
    itself is what the engine needs, only with `keep`. `ranges` are in place of the file that the spec names.
    """
    from ..engines.registry import engine

    chosen = spec.ranges if ranges is None else ranges
    spec = replace(spec, isa=resolve_isa(spec.isa, spec.target))
    spec = _decided(model, spec, capabilities, has_ranges=chosen is not None)
    spec = with_floats(spec)
    engine(spec.target).check(spec)
    if capabilities.takes != "onnx":
        return LoweredGraph(str(model), spec.one_precision, spec.floats)
    with writing(output) as path, _in_standard_forms(Path(model)) as standard:
        lowering = _Lowering(standard, spec, chosen, capabilities, path, progress)
        return lowering.run(output, Path(model), keep=keep)


def first_samples(model: str | Path, spec: BuildSpec, count: int = 16) -> list[Feeds]:
    """Return the first batches of the spec's data, one at least, up to so many samples; none without data."""
    data = spec.data
    return [] if data is None else Data(data, read_weightless(Path(model)).io.inputs).first_batches(count)


@contextmanager
def _in_standard_forms(model: Path) -> Iterator[Path]:
    """A model with Q/DQ of ONNX in place of those of TensorRT, which ModelOpt writes; itself without them."""
    if not find_trt_operators(read_weightless(model).model):
        yield model
        return
    loaded = load_onnx(model)
    standard = in_standard_forms(loaded)
    if standard is loaded:
        yield model
        return
    with temporary_folder("standard") as folder:
        path = folder / model.name
        save_onnx(standard, path)
        yield path


def _decided(
    model: str | Path, spec: BuildSpec, capabilities: Capabilities, *, has_ranges: bool
) -> BuildSpec:
    """The spec with one precision: "best" is decided by what there is to build from."""
    if spec.precision == "best":
        if not capabilities.has_best:
            problem = f"is for tensorrt and tensorrt-rtx; target {spec.target} was asked for"
            hint = "`qcompile tune` measures which precision is fastest within an accuracy"
            raise InvalidOption(f"`precision` best: {problem}", hint=hint, option="precision")
        present = graph_precision(read_weightless(Path(model)).model)
        quantized = has_ranges or bool(spec.calibrator) or present == "int8"
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


class _Lowering(Fitting):
    """One model on its way to a graph at `path`, which every step reads and writes again."""

    manifest: Manifest | None = None
    """Of the quantization, where there was one."""

    @property
    def static(self) -> bool:
        return self.needed in CALIBRATED and self.spec.mode == "static"

    def run(self, output: Path, source: Path, *, keep: bool) -> LoweredGraph:
        """Make the graph; `source` is the user's file, from which the model may have been rewritten."""
        planned: Sequence[str] = ()
        left: Mapping[str, str] = {}
        if not self._must_be_typed():
            if self.needed == "int8":
                require_exact(source, read_manifest(source), on=self.spec.isa, hint=QUANTIZE_AGAIN)
            from ..compiler.quantize.half.precision import with_half_rest

            half = self.capabilities.in_graph.get(self.spec.floats, "fp32")
            given = with_half_rest(self.model, self.path, half) if self.static else self.model
            graph = self.fit(given)
        elif (
            self.needed == "int8" and self.static and self.capabilities.tells_missed and not self.spec.strict
        ):
            graph, planned, left = self._quantized_as_told()
        else:
            graph = self._typed(data=self.spec.data)
        layers, graph = self.constrained(graph)
        if (keep or graph != source) and graph != self.path:
            save_onnx(load_onnx(graph), self.path)
            graph = self.path
        warnings = list(self.manifest.warnings) if self.manifest else []
        if self.manifest and self.static and self.needed == "int8" and self.spec.data is None:
            lost = "biases were not corrected, and " if self.spec.correct_bias else ""
            warnings.append(f"no data was given: {lost}what INT8 loses was judged on random input")
        lowered = LoweredGraph(
            str(output if graph == self.path else graph), self.spec.one_precision, self.spec.floats, layers,
            planned, left, [*warnings, *self.warnings], self.worked_around,
        )  # fmt: skip
        if graph == self.path:
            self._record(lowered, source)
        return lowered

    def _must_be_typed(self) -> bool:
        """Whether the model is not of the needed precision yet."""
        spec, needed, model = self.spec, self.needed, self.model
        if spec.calibrator:
            return False
        named = [*spec.layer_precisions, *spec.exclude, *spec.only] if needed != "fp32" else []
        present = graph_precision(read_weightless(model).model)
        if present == needed and not named:
            return False
        if present != "fp32":
            asked = f"{needed} with {', '.join(named)} in another" if named else needed
            hint = f"give `precision` {present}, or build from the float model"
            raise InvalidOption(f"{model}: its graph is {present} already; {asked} was asked for", hint=hint)
        if needed == "int4" and spec.mode != "weights":
            hint = "quantize it first, with `mode` weights and `precision` int4"
            raise InvalidOption(f"{model}: holds no weights of 4 bits, and int4 was asked for", hint=hint)
        if self.static and self.ranges is None:
            problem = f"{model}: holds no quantized layer, and {needed} was asked for"
            hint = "quantize it first, or give `ranges` (`qcompile calibrate` writes them)"
            raise InvalidOption(problem, hint=hint, option="ranges")
        return True

    def _typed(self, left: Mapping[str, str] = MappingProxyType({}), *, data: str | None = None) -> Path:
        """Quantize or cast the model, and fit the graph to the engine."""
        from ..compiler.quantize.quantize import quantize
        from ..model.graph_rules import graph_target
        from ..spec.artifacts import QuantizeSpec
        from ..spec.decode import shared

        spec = self.spec
        waits = self.static and data is None and spec.data is not None  # for the data, which comes last
        floats = self.capabilities.in_graph.get(spec.floats, spec.floats)
        asked = shared(
            QuantizeSpec,
            spec,
            target=graph_target(spec.target),
            precision=self.needed,
            float_precision="auto" if spec.float_precision == "auto" else floats,
            method=spec.method if self.static else "",
            rounding="rtn" if waits else spec.rounding,
            ranges=None,
            data=data,
        )
        self.manifest = quantize(
            self.model,
            self.path,
            asked,
            ranges=self.ranges if self.static else None,
            in_float=left,
            progress=self.progress,
        ).manifest
        # The file is changed from here on; `_record` writes the manifest of what it becomes.
        manifest_path(self.path).unlink(missing_ok=True)
        return self.fit(self.path)

    def _quantized_as_told(self) -> tuple[Path, Sequence[str], Mapping[str, str]]:
        """Ask the engine which quantized layers it computes in float, and quantize again without them.

        Their Q/DQ would only cost conversions. Without them others may miss, so it is asked again, at most
        `_ROUNDS` times; what misses then is weighed by the proof. Where all would be left out there is
        nothing to build: the graph stays, and the proof says so. The data waits for the last plan.
        """
        from ..engines.base import BuildRequest
        from ..engines.build import missed_or_refused
        from ..engines.registry import engine

        spec, samples = self.spec, first_samples(self.model, self.spec, 1)
        graph = self._typed()
        planned = [node.name for node in weighted_nodes(read_weightless(graph).model)["int8"]]
        left: dict[str, str] = {}
        for _ in range(_ROUNDS):
            self.progress("ask which layers run in float")
            request = BuildRequest(
                str(graph), self.path, spec, str(self.model), samples=samples, progress=self.progress,
            )  # fmt: skip
            missed = missed_or_refused(engine(spec.target), request, planned, left, self._typed)
            if not missed or len(left) + len(missed) >= len(planned):
                break
            left |= missed
            graph = self._typed(left)
        if spec.data is not None:
            graph = self._typed(left, data=spec.data)
        return graph, planned, left

    def _record(self, lowered: LoweredGraph, source: Path) -> None:
        """Write the manifest of the graph: that of its quantization, and what the graph does not say."""
        manifest = self.manifest or Manifest(
            kind="onnx",
            stage="lower",
            target=self.spec.target,
            precision=self.needed,
            sources={"model": fingerprint(source)},
            options=carried_isa(source),
        )
        io = model_io(load_onnx(self.path, external_data=False))
        options = {**manifest.options, _RECORD: lowered.as_json()}
        commit(self.path, replace(manifest, io=io, options=options))
