"""Run an ONNX model with ONNX Runtime: on the processor, or with its CUDA provider."""

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
    """A session; every latency is host to host: arrays in memory go in, and come out."""

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
        except Exception as error:  # its exceptions share no narrower base
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


# Seen with 1.21.1, 1.23.2 and 1.31.1; model/sessions/session.py has the three cases.
KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault("requantized-layer", "Conv, ConvTranspose or Gemm",
               ("microsoft/onnxruntime 22889", "microsoft/onnxruntime 22969"),
               "between Q/DQ gets weights of int8 where the graph has floats, or a bias of int32 that "
               "overflows",
               "rewrite", versions={"onnxruntime": ("1.21", "")}),
)  # fmt: skip


def optimizers_to_leave_out(path: Path) -> tuple[str, ...]:
    """Return the names of the optimizers that would change what a file computes."""
    return (WEIGHT_BIAS_QUANTIZATION,) if any(find_requantized_layers(read_weightless(path).model)) else ()


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_SHOWN = 4


def why_no_cuda_provider() -> str:
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        return ""
    return f"this ONNX Runtime ({onnxruntime.__version__}) was built without CUDA"


def open_with_cuda(path: Path, device: int, threads: int) -> OnnxRuntimeRunner:
    """Load an ONNX file on a GPU. FP32 stays FP32: ONNX Runtime would round products to TF32 by itself."""
    import onnxruntime

    manifest = read_manifest(path)
    if manifest and manifest.stage == "build":
        hint = "on a GPU give the file that it was built from"
        raise ArtifactError(f"{path}: was optimized for a processor", hint=hint, file=path)
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN of the nvidia-* packages, where the loader does not look
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
    session.disable_fallback()  # an error on the GPU must not turn it into a run on the processor
    runner = OnnxRuntimeRunner(session, path)
    runner.contains = "host to host: session.run(), which copies from pageable memory to the GPU, and back"
    runner.notes = placement_notes(_operators_by_provider(session))
    return runner


def placement_notes(operators: Mapping[str, Counter[str]]) -> tuple[str, ...]:
    """Return what a user must know of where nodes run: provider to operators, empty where none is told."""
    if not operators:
        return ("this ONNX Runtime does not tell which nodes it left to the processor; 1.24 and newer do",)
    notes = []
    on_cpu, on_gpu = operators.get(CPU, Counter()), operators.get(CUDA, Counter())
    if on_cpu:
        count = on_cpu.total() + on_gpu.total()
        notes.append(f"{on_cpu.total()} of {count} nodes run on the processor: {_listed(on_cpu)}")
    pairs = on_gpu["DequantizeLinear"]
    if pairs:
        notes.append(
            f"ONNX Runtime's CUDA provider computes {pairs} DequantizeLinear as they stand: "
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


def _listed(operators: Counter[str]) -> str:
    counted = operators.most_common()
    text = ", ".join(f"{name} ({count})" for name, count in counted[:_SHOWN])
    return f"{text}, ..." if len(counted) > _SHOWN else text


_NUMBERED = re.compile(r"(.*)_token_\d+", re.S)
"""A name that `Graph::GenerateNodeName` or `GenerateNodeArgName` made; the first of a kind has no number."""


def put_in_order(optimized: onnx.ModelProto, model: onnx.ModelProto) -> bool:
    """Sort the nodes, each behind what it reads, and number those of the optimizer in that order, in place.

    ONNX Runtime orders and numbers the nodes that change the layout (`GenerateNodeName("ReorderOutput")`,
    onnxruntime/core/optimizer/nchwc_transformer.cc) differently in each process: four builds of ShuffleNet
    had four digests (seen with 1.31.1). The names of `model`, which was optimized, stay. Returned is whether
    the optimizer has numbered anything; else nothing is changed.
    """
    graph = optimized.graph
    names_of_model = {name for node in model.graph.node for name in (node.name, *node.output)}
    names_of_model |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    new_names = {name for node in graph.node for name in (node.name, *node.output)} - names_of_model - {""}
    kinds = {match[1] for name in new_names if (match := _NUMBERED.fullmatch(name))}
    if not kinds:
        return False
    ordered = _ordered(graph)
    names = (name for node in ordered for name in (node.name, *node.output) if name in new_names)
    renamed: dict[str, str] = {}
    numbers = itertools.count()
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        kind = match[1] if match else name
        if kind in kinds:
            spelled = (f"{kind}_token_{number}" for number in numbers)
            renamed[name] = next(
                new for new in spelled if new not in names_of_model
            )  # weights are numbered, too
    for node in ordered:
        node.name = renamed.get(node.name, node.name)
        for tensors in (node.input, node.output):
            tensors[:] = [renamed.get(name, name) for name in tensors]
    for value in graph.value_info:
        value.name = renamed.get(value.name, value.name)
    values = sorted(graph.value_info, key=lambda value: value.name)
    for field, items in ((graph.node, ordered), (graph.value_info, values)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(copies)
    return True


def _ordered(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes, each behind those whose outputs it reads, beginning with what the first output needs."""
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    read = [
        [made_by[name] for name in (*node.input, *captured_names(node)) if name in made_by]
        for node in graph.node
    ]
    ordered: dict[int, onnx.NodeProto] = {}
    waiting = [made_by[value.name] for value in reversed(graph.output) if value.name in made_by]
    while waiting:
        index = waiting[-1]
        missing = [other for other in read[index] if other not in ordered]
        if missing and index not in ordered:
            waiting.extend(reversed(missing))
            continue
        waiting.pop()
        ordered.setdefault(index, graph.node[index])
    return list(ordered.values())
