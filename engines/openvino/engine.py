"""OpenVINO: keep the ONNX file unchanged, compile it, read the precision of its layers, and run it."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...core.artifact import Check, read_manifest
from ...core.processor import device_for, foreign_isa_warnings, why_emulated
from ...errors import ArtifactError, BuildError, IntentNotReached, ModelError, first_line
from ...model import onnx
from ...model.graph.graph import every_graph, model_io, weighted_nodes
from ...model.graph.onnx_file import Graph, read_graph, save_onnx
from ...model.sessions.random_input import run_on
from ...model.sessions.refusals import failure_hint, first_node_of, refusal_hint
from ...model.sessions.session import usable_cores
from ...spec.artifacts import BuildSpec
from ...spec.tensors import Feeds, ModelIO, check_feeds, format_shape
from ...spec.words import Precision
from ..base import BuildOutcome, BuildRequest, Engine, PlannedLayers, Runner
from ..values import Execution, ValueCheck, check_values
from ..words import Verdict
from .kernels import UNREPORTED, Computed, Kernel, computed_by, read_kernels
from .words import FOUR_BITS, KNOWN_FAULTS, PACKAGES, PROPOSALS, RESHAPE, RULES, SCRIPT, TRITON, shared_core

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
"""Maps a precision to OpenVINO's hint. Without a hint, float layers use bfloat16 if the processor can."""
_FIXED, _DYNAMIC = "at their extents", "with dynamic shapes"
_NO_ARRAYS = ("bfloat", "float8", "float4", "int4", "uint4", "int2", "uint2")
"""Prefixes of types of which `openvino.Tensor` takes no array (OpenVINO 2026.4, `Unsupported data type`)."""


class OpenVino(Engine):
    name = "openvino"
    suffix = ".onnx"
    packages = PACKAGES
    extra = "openvino"
    rules = RULES
    faults = KNOWN_FAULTS
    tuned_floats = ("fp32", "bf16")
    triton = TRITON
    custom_proposals = PROPOSALS
    # OpenVINO 2026.4 lacks some forms of them, such as DFT of a real signal and STFT of dynamic length.
    lacks = frozenset(["DFT", "Dropout", "STFT"])

    def verdict(self, precision: Precision) -> Verdict | None:
        return ("no", FOUR_BITS, "choose `target` onnxruntime") if precision == "int4" else None

    def graph_precision(self, precision: Precision) -> Precision:
        # fp16 and bf16 are hints to OpenVINO, which then converts the float graph itself.
        return precision if precision in ("int8", "int4") else "fp32"

    def check(self, spec: BuildSpec) -> None:
        computed_in = _computed_in(spec.precision, spec.floats)
        emulated = why_emulated(computed_in)
        if emulated:
            option = "precision" if computed_in == spec.precision else "float_precision"
            problem = f"{computed_in} for openvino: {emulated}; OpenVINO would emulate it, slower than fp32"
            hint = f"choose `{option}` fp32, or build on a processor that has it"
            raise IntentNotReached(problem, hint=hint, proof={})

    def build(self, request: BuildRequest) -> BuildOutcome:
        if request.precision == "int4":
            problem = "OpenVINO does not report which weights have 4 bits, so INT4 cannot be proven"
            raise BuildError(problem, hint="choose `target` onnxruntime or tensorrt-rtx")
        self.check(request.spec)
        before = request.onnx.load()
        save_onnx(before, request.output)
        request.progress("compile for this processor")
        feeds, computed = self._compile_and_run(before, request.output, request)
        values, nodes = self._values(before, request, feeds), weighted_nodes(before)
        requested = nodes["int8" if request.precision == "int8" else "fp32"]
        other_layers = {
            node.name: computed[node.name]
            for node in requested
            if computed[node.name].precision != request.precision
        }
        isa, is_float = request.spec.isa, request.precision == "fp32"
        return BuildOutcome(
            kind="onnx",
            io=model_io(before),
            planned=len(requested),
            reached=len(requested) - len(other_layers),
            proof={"layers_by_precision": _count_layers(nodes, computed)},
            device=device_for(isa),
            failure=values.failure,
            wrong_layer=values.wrong_layer,
            hint=values.hint,
            checks=[Check("runs after loading again", True, request.input_name), *values.checks],
            warnings=[*foreign_isa_warnings(isa), *values.warnings],
            layers=PlannedLayers(
                [node.name for node in requested],
                {name: layer.detail for name, layer in other_layers.items() if layer.precision != UNREPORTED},
                {name: layer.detail for name, layer in other_layers.items() if layer.precision == UNREPORTED},
                unproven=not is_float,
                evidence=_IN_FLOAT32 if is_float else "",
            ),
        )

    def missed_layers(self, request: BuildRequest) -> Mapping[str, str]:
        graph = request.onnx
        with graph.file() as path:
            feeds, computed = self._compile_and_run(graph.model, path, request)
            if any(tensor.dynamic_axes for tensor in graph.io.inputs):
                # With dynamic shapes OpenVINO may refuse a model that it takes at fixed extents.
                precision, shown = request.spec.floats, request.source or request.model
                with self._compiled(path, precision, request.spec.threads, shown, dynamic=True) as runner:
                    runner.prepare({tensor.name: feeds[tensor.name] for tensor in runner.io.inputs})
        return {
            node.name: computed[node.name].detail
            for node in weighted_nodes(graph.model)[request.precision]
            if computed[node.name].precision not in (request.precision, UNREPORTED)
        }

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        threads, precision = spec.threads or usable_cores(), _computed_in(spec.precision, spec.floats)
        settings = _settings(precision, threads)
        return {
            _FIXED: SCRIPT.format(reshape=RESHAPE, settings=settings),
            _DYNAMIC: SCRIPT.format(reshape="", settings=settings),
        }

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return self._open_runner(Path(artifact), threads)

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        runner = self._open_runner(Path(artifact), threads, profile=True)
        with runner:
            return runner.kernel_times(feeds)

    def _open_runner(self, path: Path, threads: int, *, profile: bool = False) -> OpenVinoRunner:
        self.require_here()
        precision, manifest = "fp32", read_manifest(path)  # a file without a manifest runs in float32
        if manifest is not None:
            floats = str(manifest.options.get("float_precision") or "fp32")
            precision = _computed_in(manifest.precision, floats)
        if emulated := why_emulated(precision):
            hint = "build it for this machine in another precision"
            raise ArtifactError(f"{path}: computes in {precision}: {emulated}", hint=hint, file=path)
        return self._compiled(path, precision, threads, profile=profile)

    def _values(self, graph: onnx.ModelProto, request: BuildRequest, feeds: Feeds) -> ValueCheck:
        """Compare the compiled model with its graph, at fixed shapes and, if axes are dynamic, at others."""
        precision = _computed_in(request.precision, request.spec.floats)

        def open_copy(path: Path, *, dynamic: bool = False) -> Runner:
            shown = request.source or request.model
            return self._compiled(path, precision, request.spec.threads, shown, dynamic=dynamic)

        def copy(path: Path, output: Path) -> None:
            read_graph(path).save(output)

        ways: dict[str, Callable[[Path], Runner]] = {_FIXED: open_copy}
        if any(tensor.dynamic_axes for tensor in model_io(graph).inputs):
            ways[_DYNAMIC] = functools.partial(open_copy, dynamic=True)
        halves = precision if precision in ("fp16", "bf16") else ""
        execution = Execution("OpenVINO", copy, ways, halves, _FIXED)
        return check_values(request, graph, request.output, execution, feeds)

    def _compile_and_run(
        self, model: onnx.ModelProto, path: Path, request: BuildRequest
    ) -> tuple[Feeds, dict[str, Computed]]:
        """Compile a file and run it once; return the feeds, and the precision of each layer by its name."""
        nodes = [node for kind in weighted_nodes(model).values() for node in kind]
        precision = _computed_in(request.precision, request.spec.floats)
        runner = self._compiled(path, precision, request.spec.threads, request.source or request.model)
        with runner:
            feeds, _ = run_on(model, request.sample, runner.infer, inputs=runner.io.inputs)
            return feeds, computed_by(model.graph, nodes, runner.kernels())

    def _compiled(
        self, path: Path, precision: str, threads: int, shown: str = "", *, profile: bool = False,
        dynamic: bool = False,
    ) -> OpenVinoRunner:  # fmt: skip
        graph = read_graph(path)  # raises for a damaged file, before OpenVINO reads it
        for tensor in graph.io.inputs:
            if tensor.dtype.startswith(_NO_ARRAYS):
                problem = f"input {tensor.name!r} is {tensor.dtype}, for which OpenVINO takes no array"
                hint = "give the model a float32 or int8 input, and cast it inside"
                raise BuildError(f"{shown or path}: {problem}", hint=hint, tensor=tensor.name)
        core = shared_core()
        try:
            with graph.file() as file:
                model = core.read_model(file)
        except RuntimeError as error:
            problem = f"{shown or path}: OpenVINO refuses it: {_reason(error, graph.model)}"
            raise BuildError(problem, hint=refusal_hint(str(error)), file=shown or path) from error
        settings = _settings(precision, threads or usable_cores()) | {"PERF_COUNT": profile}
        return OpenVinoRunner(core, model, settings, graph, shown or str(path), dynamic=dynamic)


_IN_FLOAT32 = "it computes floats in float32: INFERENCE_PRECISION_HINT is f32"
"""Evidence for layers without a reported precision: OpenVINO 2026.4.1 turns a recurrent layer with sequence
lengths into a loop, and reports no layers of the loop's body."""


def _count_layers(
    nodes: Mapping[str, Sequence[onnx.NodeProto]], computed: Mapping[str, Computed]
) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {name: {} for name in ("fp32", "fp16", "bf16", "int8")}
    for node in (node for kind in nodes.values() for node in kind):
        layers = counts.setdefault(computed[node.name].precision, {})
        layers[node.op_type] = layers.get(node.op_type, 0) + 1
    return counts


def _settings(precision: str, threads: int) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": _HINTS.get(precision, "f32"),
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }


def _computed_in(precision: str, float_precision: str) -> str:
    return float_precision if precision == "int8" else precision


_WARMUP_RUNS, _PROFILED_RUNS = 2, 10


class OpenVinoRunner(Runner):
    """A model compiled for the shapes of the first feeds; other shapes share a second, dynamic compilation.

    With fixed shapes OpenVINO plans memory and layouts ahead, which makes MobileNetV2 7% faster. With
    `dynamic`, all feeds use the dynamic compilation.
    """

    contains = "host to host: one infer()"

    def __init__(
        self, core: Any, model: Any, settings: Mapping[str, Any], graph: Graph, shown: str,
        *, dynamic: bool = False,
    ) -> None:  # fmt: skip
        self._core, self._model, self._settings = core, model, dict(settings)
        self._graph, self._shown, self._dynamic = graph.model, shown, dynamic
        self.io = graph.io
        self._fixed: tuple[dict[str, list[int]], Any] | None = None
        self._any: Any = None

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        run = self.prepare(feeds)
        try:
            results = run()
        except RuntimeError as error:
            raise self._failure("OpenVINO fails on", feeds, error) from error
        return {tensor.name: results[tensor.name].copy() for tensor in self.io.outputs}

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        import numpy as np
        import openvino

        check_feeds(self.io.inputs, feeds, "feeds")
        request = self._compiled(feeds).create_infer_request()
        # A tensor shares the memory of its array, but holds no reference to the array. `asarray` copies an
        # array that is not in C order, so `run` must hold references to `arrays`.
        arrays = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        for name, array in arrays.items():
            tensor = openvino.Tensor(array, shared_memory=True)
            try:
                request.set_tensor(name, tensor)
            except RuntimeError as error:  # OpenVINO's conversion may drop an input, or change its type
                problem = f"{self._shown}: OpenVINO does not take input {name!r}: {first_line(error)}"
                raise ModelError(problem, hint=failure_hint(str(error)), tensor=name) from error

        def run(_arrays: Any = arrays) -> Any:
            return request.infer(share_outputs=True)

        return run

    def kernels(self) -> list[Kernel]:
        return read_kernels(self._fixed[1] if self._fixed else self._any)

    def kernel_times(self, feeds: Feeds) -> dict[str, float]:
        """Return each kernel's median milliseconds; the model must have been opened with `profile`."""
        request = self._compiled(feeds).create_infer_request()
        times: dict[str, list[float]] = {}
        for run in range(_WARMUP_RUNS + _PROFILED_RUNS):
            request.infer(dict(feeds))
            for kernel in request.profiling_info if run >= _WARMUP_RUNS else ():
                times.setdefault(kernel.node_name, []).append(kernel.real_time.total_seconds() * 1e3)
        return {name: statistics.median(runs_ms) for name, runs_ms in times.items()}

    def close(self) -> None:
        self._fixed = self._any = self._model = None

    def _compiled(self, feeds: Feeds) -> Any:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        if self._fixed is None and not self._dynamic:
            model = self._model.clone()
            try:
                model.reshape(shapes)
            except RuntimeError as error:
                raise self._failure("OpenVINO does not take", feeds, error) from error
            self._fixed = shapes, self._compile(model)
        if self._fixed is not None and self._fixed[0] == shapes:
            return self._fixed[1]
        if self._any is None:
            self._any = self._compile(self._model)
        return self._any

    def _compile(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._settings)
        except RuntimeError as error:
            problem = f"OpenVINO cannot compile it: {_reason(error, self._graph)}"
            raise BuildError(
                f"{self._shown}: {problem}", hint=refusal_hint(problem), file=self._shown
            ) from error

    def _failure(self, problem: str, feeds: Feeds, error: Exception) -> ModelError:
        shapes = ", ".join(f"{name}:{format_shape(array.shape)}" for name, array in feeds.items())
        reason = _reason(error, self._graph)
        return ModelError(f"{self._shown}: {problem} {shapes}: {reason}", hint=failure_hint(reason))


_NODE_NAMES = re.compile(
    r"<Node\(\w+\): (.*?)>'|with friendly_name '(.*?)':|node with name '(.*?)' |^Node (\S+) of type",
    re.MULTILINE,
)
_MISSING_OPERATOR = re.compile(r"No conversion rule found for operations: (?:([\w.]+)\.)?(\w+)")
_NOISE = (
    "Exception from", "Check '", "src/", "Summary", "While validating", "Shape inference", "Model wasn't",
    "To facilitate", "Encountered unconverted",
)  # fmt: skip
_CONTEXT = re.compile(
    r"^-- |^\[cpu\]\w+: |^(?:\[CPU\] )?\w+ node with name '.*?' | Run workload with environment variable.*"
)


def _reason(error: Exception, model: onnx.ModelProto) -> str:
    """Return the model's node and the reason from an error of OpenVINO.

    The lines of a message are source positions, headings, failed conditions and the reason (OpenVINO 2026.4):

        Exception from src/inference/src/cpp/core.cpp:105:
        -- Add-17 with a message:
        While validating ONNX node '<Node(Add): n>': Check 'TRShape::broadcast_merge_into(...)' failed at ...:
        While validating node 'opset1::Add Add_83 (...) -> (dynamic[...])' with friendly_name 'Add_83':
        Argument shapes are inconsistent.

    This returns "Add 'n': Argument shapes are inconsistent." Errors of OpenVINO's CPU plugin name the ONNX
    node, its output, or a node that a pass created.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_NOISE) and not line.endswith(("Failure:", ":"))]
    reasons = [line for line in reasons if not re.match(r"Node \S+ of type", line)]
    precise_reasons = [line for line in reasons if not line.startswith("-- Conversion is failed")]
    checks = [line.partition(" failed at ")[0] + " failed" for line in lines if line.startswith("Check '")]
    node_text = _find_node(str(error), model)
    sentences = (precise_reasons or reasons)[:2] or checks[-1:] or [first_line(error)]
    if not node_text:
        return "; ".join(sentence.removeprefix("-- ") for sentence in sentences)
    return f"{node_text}: {'; '.join(_CONTEXT.sub('', sentence) for sentence in sentences)}"


def _find_node(words: str, model: onnx.ModelProto) -> str:
    """Return operator and name of the model's node in an error message; empty if the message has no node."""
    node_names = [name for names in _NODE_NAMES.findall(words) for name in names if name]
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    for name in node_names:
        for node in nodes:
            if name == node.name or name in node.output:
                return f"{node.op_type} {node.name or node.output[0]!r}"
    missing = _MISSING_OPERATOR.search(words)
    return first_node_of(missing[2], missing[1] or "", model) if missing else ""
