"""OpenVINO on the CPU: it reads the ONNX file itself, Q/DQ included, and compiles it when it is loaded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..artifact import Check, read_manifest
from ..errors import BuildError, EngineUnavailable, ModelError, first_line
from ..model.graph import WEIGHTED, consumers, weighted_nodes
from ..model.made_input import made_feeds
from ..model.onnx_file import load_onnx, model_io, save_onnx
from ..model.session import usable_cores
from ..shapes import Feeds, ModelIO, check_feeds
from .base import BuildOutcome, BuildRequest, Engine, Precision, Runner
from .processor import processor

if TYPE_CHECKING:
    import onnx

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
"""What OpenVINO computes float parts in. Its own choice is bfloat16 where the processor has it."""

_WARMUP, _PROFILED = 2, 10
_FUSED_BEHIND = 2  # nodes that go into the kernel in front of them: a bias, an activation
_REACHED = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}


class OpenVino(Engine):
    """OpenVINO's CPU plugin."""

    name = "openvino"
    suffix = ".onnx"

    def why_not_build(self) -> str:
        try:
            import openvino  # noqa: F401
        except ImportError as error:
            return f"openvino cannot be imported ({error})"
        return ""

    def fix(self) -> str:
        return "pip install 'qcompile[openvino]'" if self.why_not_build() else ""

    def graph_precision(self, precision: Precision) -> Precision:
        # fp16 and bf16 are a hint to the runtime, which then converts the float graph by itself.
        return precision if precision in ("int8", "int4") else "fp32"

    def build(self, request: BuildRequest) -> BuildOutcome:
        if request.precision == "int4":
            raise BuildError(
                "OpenVINO does not tell which weights it keeps in 4 bits, so that cannot be proven",
                hint="choose --target onnxruntime or tensorrt-rtx",
            )
        before = load_onnx(Path(request.model))
        save_onnx(before, request.output)
        request.progress("compile for this processor")
        weighted = weighted_nodes(before)
        shown = request.source or request.model
        precision = _computed_in(request.precision, request.rest)
        runner = self._open(request.output, precision, request.threads, shown)
        with runner:
            runner.infer(made_feeds(runner.io.inputs))
            nodes = [node for kind in weighted.values() for node in kind]
            counts = runner.layers_by_precision(before.graph, nodes)
        return BuildOutcome(
            kind="onnx",
            io=model_io(before),
            planned=len(weighted["int8" if request.precision == "int8" else "fp32"]),
            reached=sum(counts[request.precision].values()),
            proof={"layers_by_precision": counts},
            device=processor(),
            packages=("openvino", "onnx"),
            checks=[Check("runs after loading again", True, "one made input")],
        )

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        reason = self.why_not_run()
        if reason:
            raise EngineUnavailable(reason, hint=self.fix(), engine=self.name, reason=reason)
        path = Path(artifact)
        return self._open(path, _as_built(path), threads)

    def kernel_times(self, artifact: str, feeds: Feeds, *, threads: int = 0) -> dict[str, float]:
        path = Path(artifact)
        runner = self._open(path, _as_built(path), threads, profile=True)
        with runner:
            return runner.kernel_times(feeds)

    def _open(
        self, path: Path, precision: str, threads: int, shown: str = "", *, profile: bool = False
    ) -> OpenVinoRunner:
        import openvino

        core = openvino.Core()
        try:
            model = core.read_model(path)
        except RuntimeError as error:
            raise BuildError(
                f"{shown or path}: OpenVINO refuses it: {_reason(error)}",
                hint="qcompile inspect shows its operators and opset",
                file=path,
            ) from error
        hint = _HINTS.get(precision, "f32")
        settings = {
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": threads or usable_cores(),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "PERF_COUNT": profile,
        }
        return OpenVinoRunner(core, model, settings, model_io(load_onnx(path, external_data=False)), path)


class OpenVinoRunner(Runner):
    """A model that is compiled for the shapes of the first feeds; other shapes share a second, dynamic one.

    With fixed shapes OpenVINO plans memory and layouts ahead: MobileNetV2 is 7% faster.
    """

    contains = "host to host: one infer()"

    def __init__(self, core: Any, model: Any, settings: Mapping[str, Any], io: ModelIO, path: Path) -> None:
        self._core, self._model, self._settings, self._path = core, model, dict(settings), path
        self.io = io
        self._fixed: tuple[dict[str, list[int]], Any] | None = None
        self._any: Any = None

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        run = self.prepare(feeds)
        try:
            found = run()
        except RuntimeError as error:
            raise ModelError(f"{self._path}: OpenVINO fails on the feeds: {_reason(error)}") from error
        return {tensor.name: found[tensor.name].copy() for tensor in self.io.outputs}

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        import numpy as np
        import openvino

        check_feeds(self.io.inputs, feeds, "feeds")
        request = self._compiled(feeds).create_infer_request()
        for name, array in feeds.items():
            # The tensor shares the array's memory, as ONNX Runtime's session does.
            request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(array), shared_memory=True))
        return lambda: request.infer(share_outputs=True)

    def layers_by_precision(
        self, graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]
    ) -> dict[str, dict[str, int]]:
        """Return precision to operator to number of the model's nodes that OpenVINO computes in it.

        OpenVINO tells for each kernel which of the file's nodes it made it of. A product whose bias or
        activation went into the same kernel may go by the name of that one alone; what is not named at all
        is "unknown".

        Args:
            graph: The file's.
            nodes: Those that do the arithmetic.
        """
        readers = consumers(graph)
        computed: dict[str, str] = {}
        compiled = self._fixed[1] if self._fixed else self._any
        for kernel in compiled.get_runtime_model().get_ops():
            about = kernel.get_rt_info()
            precision = _REACHED.get(str(about["runtimePrecision"].value).lower(), "unknown")
            if str(about["layerType"].value) != "Const":
                for name in str(about["originalLayersNames"].value).split(","):
                    computed[name.split("/WithoutBiases")[0].split("/DequantizationMultiply")[0]] = precision
        counts: dict[str, dict[str, int]] = {name: {} for name in ("fp32", "fp16", "bf16", "int8")}
        for node in nodes:
            precision = next(
                (computed[name] for name in _names(node, readers) if name in computed), "unknown"
            )
            layers = counts.setdefault(precision, {})
            layers[node.op_type] = layers.get(node.op_type, 0) + 1
        return counts

    def kernel_times(self, feeds: Feeds) -> dict[str, float]:
        """Return kernel to its median time in milliseconds, of a model that was opened with counters."""
        request = self._compiled(feeds).create_infer_request()
        times: dict[str, list[float]] = {}
        for run in range(_WARMUP + _PROFILED):
            request.infer(dict(feeds))
            for kernel in request.profiling_info if run >= _WARMUP else ():
                times.setdefault(kernel.node_name, []).append(kernel.real_time.total_seconds() * 1e3)
        return {name: statistics.median(found) for name, found in times.items()}

    def close(self) -> None:
        self._fixed = self._any = self._model = None

    def _compiled(self, feeds: Feeds) -> Any:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        if self._fixed is None:
            model = self._model.clone()
            try:
                model.reshape(shapes)
            except RuntimeError as error:
                raise ModelError(f"{self._path}: does not take these shapes: {_reason(error)}") from error
            self._fixed = shapes, self._compile(model)
        if self._fixed[0] == shapes:
            return self._fixed[1]
        if self._any is None:
            self._any = self._compile(self._model)
        return self._any

    def _compile(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._settings)
        except RuntimeError as error:
            raise BuildError(
                f"{self._path}: OpenVINO cannot compile it: {_reason(error)}", file=self._path
            ) from error


def _names(node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]]) -> Iterator[str]:
    """Names that the kernel of a node may go by: its own, and those of what follows it alone."""
    for _ in range(_FUSED_BEHIND + 1):
        yield from (node.name, node.output[0])
        behind = readers.get(node.output[0], [])
        if len(behind) != 1 or behind[0].op_type in WEIGHTED:
            return
        node = behind[0]


def _as_built(path: Path) -> str:
    """The precision of the float parts of an artifact; of a foreign file, float32."""
    manifest = read_manifest(path)
    if manifest is None:
        return "fp32"
    return _computed_in(manifest.precision, str(manifest.options.get("rest") or "fp32"))


def _computed_in(precision: str, rest: str) -> str:
    return rest if precision == "int8" else precision


def _reason(error: Exception) -> str:
    """What OpenVINO says is wrong, on one line: without the places in its source and the headings."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_NOISE) and not line.endswith(("Failure:", ":"))]
    return "; ".join(told[:2]) if told else first_line(error)


_NOISE = ("Exception from", "Check '", "src/", "Summary", "While validating", "Shape inference")
