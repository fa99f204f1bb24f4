"""Run an ONNX model with ONNX Runtime, on the processor or with the CUDA provider."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...core.artifact import read_manifest
from ...errors import ArtifactError, BuildError, EngineUnavailable
from ...model import onnx
from ...model.graph.graph import captured_names
from ...model.graph.onnx_file import read_weightless
from ...model.sessions.session import (
    WEIGHT_BIAS_QUANTIZATION,
    failed_on,
    find_requantized_layers,
    make_session,
    session_options,
)
from ...spec.tensors import Dim, Feeds, ModelIO, TensorInfo, check_feeds
from ..base import Runner
from ..words import KnownFault

_DTYPES = {"float": "float32", "double": "float64"}


class OnnxRuntimeRunner(Runner):
    """An ONNX Runtime session. Latencies are host to host: inputs and outputs are arrays in host memory."""

    contains = "host to host: one session.run()"

    def __init__(self, session: Any, shown: str | Path) -> None:
        self._session, self._shown = session, str(shown)
        self.io = ModelIO(
            tuple(_tensor(value) for value in session.get_inputs()),
            tuple(_tensor(value) for value in session.get_outputs()),
        )
        self._names = [tensor.name for tensor in self.io.outputs]

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        run = self.prepare(feeds)
        try:
            return dict(zip(self._names, run(), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions have no narrower common base
            raise failed_on(feeds, error, self._shown) from error

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        check_feeds(self.io.inputs, feeds, "feeds")
        session, names = self._session, self._names
        return lambda: session.run(names, feeds)

    def close(self) -> None:
        self._session = None


def _tensor(value: Any) -> TensorInfo:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    shape: tuple[Dim, ...] = tuple(dim if isinstance(dim, int) else dim or "?" for dim in value.shape)
    return TensorInfo(value.name, _DTYPES.get(kind, kind), shape)


# Seen with ONNX Runtime 1.21.1, 1.23.2 and 1.31.1; model/sessions/session.py describes the three cases.
KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault("requantized-layer", "Conv, ConvTranspose or Gemm",
               ("microsoft/onnxruntime 22889", "microsoft/onnxruntime 22969"),
               "between Q/DQ gets weights of int8 where the graph has floats, or a bias of int32 that "
               "overflows",
               "rewrite", versions={"onnxruntime": ("1.21", "")}),
)  # fmt: skip


def optimizers_to_leave_out(path: Path) -> tuple[str, ...]:
    """Return the names of the optimizers that would change the results of the model in a file."""
    return (WEIGHT_BIAS_QUANTIZATION,) if any(find_requantized_layers(read_weightless(path).model)) else ()


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_MAX_OPERATORS = 4


def why_no_cuda_provider() -> str:
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        return ""
    return f"this ONNX Runtime ({onnxruntime.__version__}) was built without CUDA"


def open_with_cuda(path: Path, device: int, threads: int) -> OnnxRuntimeRunner:
    """Load an ONNX file on a GPU, with TF32 off; by default ONNX Runtime computes FP32 products in TF32."""
    import onnxruntime

    manifest = read_manifest(path)
    if manifest and manifest.stage == "build":
        hint = "on a GPU give the file that it was built from"
        raise ArtifactError(f"{path}: was optimized for a processor", hint=hint, file=path)
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN of the nvidia-* packages are outside the loader's path
    options = session_options(threads)
    options.add_session_config_entry(_ASSIGNMENT, "1")
    providers = [(CUDA, {"device_id": str(device), "use_tf32": "0"}), CPU]
    session = make_session(
        path, options, without=optimizers_to_leave_out(path), providers=providers, error=BuildError
    )
    if CUDA not in session.get_providers():
        reason, libraries = "the CUDA provider does not start", "its CUDA or cuDNN libraries are missing"
        problem = f"{path}: ONNX Runtime's CUDA provider does not start, so the processor would compute all"
        hint = f"{libraries} or of another version: pip install 'onnxruntime-gpu[cuda,cudnn]'"
        raise EngineUnavailable(problem, hint=hint, engine="onnxruntime", reason=reason)
    session.disable_fallback()  # an error on the GPU must not lead to a silent run on the processor
    runner = OnnxRuntimeRunner(session, path)
    runner.contains = "host to host: session.run(), which copies from pageable memory to the GPU, and back"
    runner.notes = placement_notes(_operators_by_provider(session))
    return runner


def placement_notes(operators: Mapping[str, Counter[str]]) -> tuple[str, ...]:
    """Return notes on nodes that run on the CPU or in float, given the operators of each provider."""
    if not operators:
        return ("this ONNX Runtime does not report which nodes run on the processor; 1.24 and newer do",)
    notes = []
    on_cpu, on_gpu = operators.get(CPU, Counter()), operators.get(CUDA, Counter())
    if on_cpu:
        count = on_cpu.total() + on_gpu.total()
        notes.append(f"{on_cpu.total()} of {count} nodes run on the processor: {_format_counts(on_cpu)}")
    pairs = on_gpu["DequantizeLinear"]
    if pairs:
        notes.append(
            f"ONNX Runtime's CUDA provider runs {pairs} DequantizeLinear nodes unfused: "
            "the layers behind them run in float; for INT8 on a GPU build for tensorrt"
        )
    return tuple(notes)


def _operators_by_provider(session: Any) -> dict[str, Counter[str]]:
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    by_provider: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        by_provider.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return by_provider


def _format_counts(operators: Counter[str]) -> str:
    counted = operators.most_common()
    text = ", ".join(f"{name} ({count})" for name, count in counted[:_MAX_OPERATORS])
    return f"{text}, ..." if len(counted) > _MAX_OPERATORS else text


_NUMBERED_NAME = re.compile(r"(.*)_token_\d+", re.S)
"""Names from `Graph::GenerateNodeName` or `GenerateNodeArgName`; the first name of a kind has no number."""


def put_in_order(optimized: onnx.ModelProto, model: onnx.ModelProto) -> bool:
    """Sort the nodes topologically, and renumber the names that the optimizer added, in place.

    ONNX Runtime 1.31.1 orders and numbers the nodes that change layouts (`GenerateNodeName("ReorderOutput")`,
    onnxruntime/core/optimizer/nchwc_transformer.cc) differently in each process: four builds of ShuffleNet
    had four digests. Names of the source `model` do not change. If the optimizer added no numbered name,
    return False and change nothing.
    """
    graph = optimized.graph
    names_of_model = {name for node in model.graph.node for name in (node.name, *node.output)}
    names_of_model |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    new_names = {name for node in graph.node for name in (node.name, *node.output)} - names_of_model - {""}
    kinds = {match[1] for name in new_names if (match := _NUMBERED_NAME.fullmatch(name))}
    if not kinds:
        return False
    sorted_nodes = _sort_nodes(graph)
    names = (name for node in sorted_nodes for name in (node.name, *node.output) if name in new_names)
    renamed: dict[str, str] = {}
    numbers = itertools.count()
    for name in dict.fromkeys(names):
        match = _NUMBERED_NAME.fullmatch(name)
        kind = match[1] if match else name
        if kind in kinds:  # the next number that is free; weights use some numbers, too
            spelled = (f"{kind}_token_{number}" for number in numbers)
            renamed[name] = next(new for new in spelled if new not in names_of_model)
    for node in sorted_nodes:
        node.name = renamed.get(node.name, node.name)
        for tensors in (node.input, node.output):
            tensors[:] = [renamed.get(name, name) for name in tensors]
    for value in graph.value_info:
        value.name = renamed.get(value.name, value.name)
    values = sorted(graph.value_info, key=lambda value: value.name)
    for field, items in ((graph.node, sorted_nodes), (graph.value_info, values)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(copies)
    return True


def _sort_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes that the outputs need, in topological order, those for the first output first."""
    producer_of = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    dependencies = [
        [producer_of[name] for name in (*node.input, *captured_names(node)) if name in producer_of]
        for node in graph.node
    ]
    ordered: dict[int, onnx.NodeProto] = {}
    stack = [producer_of[value.name] for value in reversed(graph.output) if value.name in producer_of]
    while stack:
        index = stack[-1]
        missing = [dependency for dependency in dependencies[index] if dependency not in ordered]
        if missing and index not in ordered:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        ordered.setdefault(index, graph.node[index])
    return list(ordered.values())
