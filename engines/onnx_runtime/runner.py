"""Run an ONNX model with ONNX Runtime: on the processor, or with its CUDA provider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...artifact import read_manifest
from ...errors import ArtifactError, BuildError, EngineUnavailable, ModelError, first_line
from ...model.session import WEIGHT_BIAS_QUANTIZATION, make_session, requantized, session_options
from ...model.weightless import read_weightless
from ...tensors import Dim, Feeds, ModelIO, TensorInfo, check_feeds
from ..base import Runner
from ..words import KnownFault

_DTYPES = {"float": "float32", "double": "float64"}


class OnnxRuntimeRunner(Runner):
    """A session; every latency is host to host: arrays in memory go in, and come out."""

    contains = "host to host: one session.run()"

    def __init__(self, session: Any) -> None:
        self._session = session
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
            raise ModelError(f"ONNX Runtime fails on the feeds: {first_line(error)}") from error

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


# Seen with 1.21.1, 1.23.2 and 1.31.1; model/session.py has the three cases.
KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault("requantized-layer", "Conv, ConvTranspose or Gemm",
               ("microsoft/onnxruntime 22889", "microsoft/onnxruntime 22969"),
               "between Q/DQ gets weights of int8 where the graph has floats, or a bias of int32 that "
               "overflows",
               "rewrite", versions={"onnxruntime": ("1.21", "")}),
)  # fmt: skip


def optimizers_to_leave_out(path: Path) -> tuple[str, ...]:
    """Return the names of the optimizers that would change what a file computes."""
    return (WEIGHT_BIAS_QUANTIZATION,) if requantized(read_weightless(path).model) else ()


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_SHOWN = 4


def why_no_cuda_provider() -> str:
    """Return why the installed ONNX Runtime cannot use NVIDIA GPUs; empty when it can."""
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        return ""
    return f"this ONNX Runtime ({onnxruntime.__version__}) was built without CUDA"


def open_with_cuda(path: Path, device: int, threads: int) -> OnnxRuntimeRunner:
    """Load an ONNX file on a GPU. FP32 stays FP32: ONNX Runtime would round products to TF32 by itself."""
    import onnxruntime

    manifest = read_manifest(path)
    if manifest and manifest.stage == "build":
        raise ArtifactError(
            f"{path}: was optimized for a processor",
            hint="on a GPU give the file that it was built from",
            file=path,
        )
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN of the nvidia-* packages, where the loader does not look
    options = session_options(threads)
    options.add_session_config_entry(_ASSIGNMENT, "1")
    providers = [(CUDA, {"device_id": str(device), "use_tf32": "0"}), CPU]
    session = make_session(
        path, options, without=optimizers_to_leave_out(path), providers=providers, error=BuildError
    )
    if CUDA not in session.get_providers():
        raise EngineUnavailable(
            f"{path}: ONNX Runtime's CUDA provider does not start, so the processor would compute all",
            hint="its CUDA or cuDNN libraries are missing or of another version: "
            "pip install 'onnxruntime-gpu[cuda,cudnn]'",
            engine="onnxruntime",
            reason="the CUDA provider does not start",
        )
    session.disable_fallback()  # an error on the GPU must not turn it into a run on the processor
    runner = OnnxRuntimeRunner(session)
    runner.contains = "host to host: session.run(), which copies from pageable memory to the GPU, and back"
    runner.notes = placement_notes(_operators_by_provider(session))
    return runner


def placement_notes(operators: Mapping[str, Counter[str]]) -> tuple[str, ...]:
    """Return what a user must know of where nodes run: provider to operators, empty where none is told."""
    if not operators:
        return ("this ONNX Runtime does not tell which nodes it left to the processor; 1.24 and newer do",)
    notes = []
    left, there = operators.get(CPU, Counter()), operators.get(CUDA, Counter())
    if left:
        notes.append(
            f"{left.total()} of {left.total() + there.total()} nodes run on the processor: {_listed(left)}"
        )
    pairs = there["DequantizeLinear"]
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
