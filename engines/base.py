"""Interface of a runtime adapter: a builder (model to artifact) and a `Runner` (feeds to outputs)."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.artifact import Check, tool_versions
from ..core.installation import install_hint
from ..core.progress import Progress, silent
from ..errors import EngineUnavailable, InvalidOption
from ..model import onnx
from ..model.graph.graph import WeightStats, weighted_nodes
from ..model.graph.graph_rules import GraphRules
from ..model.graph.onnx_file import Graph, read_graph
from ..spec.artifacts import BuildSpec
from ..spec.engines import rows
from ..spec.tensors import Feeds, ModelIO
from ..spec.words import FloatPrecision, Precision
from .taps import run_from_file
from .words import KnownFault, Proposal, TritonBackend, Verdict

if TYPE_CHECKING:
    from onnx import NodeProto
    from typing_extensions import Self

Place = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class BuildRequest:
    """Input of `Engine.build`.

    `layers`, `planned`, `left_in_float` and `worked_around` are as in `building.lowered.LoweredGraph`.

    Attributes:
        model: The ONNX file to build from; for PyTorch engines a MODEL, the command line's name of a model.
        spec: Requested options. Its precision is never "best"; its `isa` is never "auto" for a processor.
        source: The user's model, for messages and the manifest; empty if `model` is the user's model.
        source_digest: Digest of `source`; if empty, the manifest has the digest of `model`.
        tf32: Whether float32 products may round operands to 10 bits of mantissa, whatever the precision.
        samples: Batches of real input for checking the artifact; if empty, the input is random.
        spread: Number of `samples` and of all samples in the data, as text.
        reasons: Maps the name of each layer that is not quantized to the reason.
        graph: The ONNX graph in memory; if None, `onnx` reads `model`.
        debug_tensors: Tensors that a TensorRT engine can output as debug tensors; None: all unfused tensors.
        is_trial: Whether the caller measures the speed; the build then does not warn of slow INT8.
    """

    model: str
    output: Path
    spec: BuildSpec
    source: str = ""
    source_digest: str = ""
    layers: Mapping[str, str] = field(default_factory=dict)
    tf32: bool = False
    planned: Sequence[str] = ()
    left_in_float: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    worked_around: Mapping[str, Sequence[str]] = field(default_factory=dict)
    samples: Sequence[Feeds] = ()
    spread: str = ""
    warnings: Sequence[str] = ()
    debug_tensors: Sequence[str] | None = ()
    is_trial: bool = False
    progress: Progress = silent
    graph: Graph | None = field(default=None, repr=False)

    @cached_property
    def onnx(self) -> Graph:
        return self.graph or read_graph(Path(self.model))

    @cached_property
    def nodes(self) -> Mapping[str, Sequence[NodeProto]]:
        """Maps each precision to the graph's nodes (Conv, MatMul, ...) that compute in it."""
        return weighted_nodes(self.onnx.model)

    @property
    def precision(self) -> Precision:
        return self.spec.one_precision

    @property
    def input_name(self) -> str:
        return "the data" if self.samples else "one random input"

    @property
    def sample(self) -> Feeds | None:
        return self.samples[0] if self.samples else None


@dataclass(frozen=True)
class PlannedLayers:
    """The layers that an artifact should compute in its precision.

    `missed` maps layers in another precision to a text with that precision; `unreported` maps layers of
    unknown precision to the reason. Unreported layers are `unproven`, unless the runtime must use the graph's
    types; `evidence` is a text on their precision.
    """

    names: Sequence[str]
    missed: Mapping[str, str] = field(default_factory=dict)
    unreported: Mapping[str, str] = field(default_factory=dict)
    unproven: bool = True
    evidence: str = ""


@dataclass(frozen=True)
class BuildOutcome:
    """Result of `Engine.build`, for the manifest.

    Attributes:
        kind: "onnx", "engine" or "torchscript".
        planned: Number of the model's nodes (Conv, MatMul, ...) in the requested precision.
        reached: Number of the built artifact's layers in that precision.
        versions: Maps packages to versions, for the manifest in place of the distributions' versions.
        layers: The planned layers by name; None if the runtime reports no names.
        failure: Why the outputs are wrong; empty if they are right, or the artifact was not run.
        wrong_layer: Name of the first layer with wrong results; empty if it was not located.
        calibration_cache: Content of the cache file that the runtime's calibrator wrote.
    """

    kind: str
    io: ModelIO
    planned: int
    reached: int
    proof: Mapping[str, object]
    device: Mapping[str, object]
    checks: Sequence[Check] = ()
    warnings: Sequence[str] = ()
    calibration_cache: bytes = b""
    versions: Mapping[str, str] = field(default_factory=dict)
    layers: PlannedLayers | None = None
    failure: str = ""
    wrong_layer: str = ""
    hint: str = ""


@dataclass(frozen=True)
class DeviceRun:
    """How an artifact runs on a GPU: `streams` contexts run concurrently, each on a CUDA stream. `cuda_graph`
    captures an inference once and replays it. `runtime_cache` saves kernels that TensorRT-RTX compiles."""

    device: int = 0
    streams: int = 1
    cuda_graph: bool = False
    runtime_cache: bool = True

    def refuse_streams_and_graphs(self, engine_name: str) -> None:
        """Raise InvalidOption for several streams or a CUDA graph, which the engine does not support."""
        if self.streams != 1 or self.cuda_graph:
            raise InvalidOption(f"streams and cuda_graph: engine {engine_name} supports neither")


class InFlight(NamedTuple):
    """One of several concurrent inferences: `start` enqueues the copies and the run, and returns at once;
    `wait` blocks until the outputs are available."""

    start: Callable[[], None]
    wait: Callable[[], None]


class Runner(ABC):
    """A loaded artifact. A context manager that frees everything on exit."""

    io: ModelIO
    contains: str
    """Scope of a latency measured by `time`: "host to host", for example."""
    notes: Sequence[str] = ()
    """Notes for the user on how the artifact runs on this machine."""
    weights: WeightStats | None = None
    """Size and precision of the artifact's weights; None if they are to be counted from the file."""

    @abstractmethod
    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run once on a mapping of input names to arrays; return a mapping of output names to arrays.

        Dynamic axes accept any extent. Dtypes must equal those in `io`, because nothing is converted.

        Raises:
            DataError: If a name, a shape or a dtype of the feeds does not match.
            ModelError: If the runtime fails on valid feeds.
        """

    def time(
        self, feeds: Feeds, iterations: int, *, limit_s: float = math.inf, fewest: int = 1
    ) -> NDArray[np.int64]:
        """Run at most `iterations` times; return the durations in nanoseconds, int64, shape [runs].

        No run starts after `limit_s` seconds, except the first `fewest` runs.
        """
        run = self.prepare(feeds)
        clock = time.perf_counter_ns
        durations = np.empty(iterations, np.int64)
        deadline = math.inf
        for index in range(iterations):
            start = clock()
            if index == 0:
                deadline = start + limit_s * 1e9
            elif start > deadline and index >= fewest:
                return durations[:index]
            run()
            durations[index] = clock() - start
        return durations

    @abstractmethod
    def prepare(self, feeds: Feeds) -> Any:
        """Check the feeds and return a function without arguments that runs the artifact once on them."""

    def in_flight(self, feeds: Feeds, count: int) -> AbstractContextManager[Sequence[InFlight]]:
        """Return a context manager that yields `count` concurrent inferences, driven from one thread; raise
        InvalidOption if this runtime runs only one inference at a time."""
        raise InvalidOption("`streams`: this runtime runs one inference at a time", option="streams")

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(ABC):
    """A runtime adapter: builds artifacts for one runtime, and loads them.

    All code for the runtime is in the adapter's folder; `spec.engines` registers the adapter. A subclass must
    define `name`, `suffix`, `packages` and, if it takes ONNX files, `rules`.
    """

    name: str
    """Spelling as a target: "onnxruntime", "tensorrt-rtx", ..."""
    suffix: str
    """File extension of the artifacts, for example ".engine"."""
    packages: Mapping[str, str]
    """Maps each distribution that affects a build or a run to its module. The versions are part of the cache
    key of a build, and of the environment of a measurement."""
    rules: GraphRules
    """Rules by which a graph is quantized for the runtime; for engines that take ONNX files."""
    extra: str = ""
    """pip extra of qcompile that installs the runtime; empty if no extra does."""
    takes: Literal["onnx", "pytorch"] = "onnx"
    places: tuple[Place, ...] = ("cpu",)
    """Devices on which artifacts can run; the first is the default."""
    keeps_layers: bool = False
    """Whether a build can fix the precision of single layers while the runtime chooses the other types."""
    has_best: bool = False
    """Whether precision "best" is supported."""
    keeps_rejected: bool = False
    """Whether artifacts that fail verification are saved, too, because a build can take an hour."""
    lacks: frozenset[str] = frozenset()
    """ONNX operators that the runtime refuses; passes rewrite them if possible."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
    faults: tuple[KnownFault, ...] = ()
    """Operators that versions of the runtime are known to compute wrongly."""
    tuned_floats: tuple[FloatPrecision, ...] = ("fp32",)
    """Precisions of float layers that `tune` tries, float32 first."""
    triton: TritonBackend | None = None
    """Backend of the Triton inference server for the artifacts; None if Triton has no backend for them."""
    custom_proposals: tuple[Proposal, ...] = ()
    """Artifacts that `init` may propose for a recipe; if empty, one in fp32 and one in int8."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        required = ("name", "suffix", "packages", *(("rules",) if cls.takes == "onnx" else ()))
        for attribute in required:
            if not hasattr(cls, attribute):
                raise TypeError(f"engine {cls.__module__}.{cls.__qualname__}: lacks {attribute!r}")

    def verdict(self, precision: Precision) -> Verdict | None:
        """Return how a precision runs on this processor; None if only the instruction set decides."""
        return None

    def proposals(self) -> tuple[Proposal, ...]:
        title = rows()[self.name].title
        return self.custom_proposals or (
            Proposal(f"{self.name}-fp32", "fp32", f"the float model in {title}", "float alone"),
            Proposal(f"{self.name}-int8", "int8", f"8-bit weights and activations on {title}", "static"),
        )

    def why_not_build(self) -> str:
        """Return why the engine cannot build here (for example, a missing module); empty if it can."""
        for module in dict.fromkeys(self.packages.values()):
            try:
                import_module(module)
            except Exception as error:  # besides ImportError: missing libraries raise RuntimeError or OSError
                return f"{module} cannot be imported ({error})"
        return ""

    def require_builder(self) -> None:
        if reason := self.why_not_build():
            problem = f"target {self.name} cannot build here: {reason}"
            raise EngineUnavailable(problem, hint=self.fix(), engine=self.name, reason=reason)

    def why_not_run(self) -> str:
        """Return why the engine cannot run here; empty if it can."""
        return self.why_not_build()

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        """Return why the engine cannot run on GPU `device` of this machine; empty if it can."""
        return f"{self.name} runs on no GPU"

    def require_here(self) -> None:
        if reason := self.why_not_run():
            raise EngineUnavailable(reason, hint=self.fix(), engine=self.name, reason=reason)

    def require_gpu_here(self, artifact: str, device: int, install: str) -> None:
        """Raise EngineUnavailable if the engine cannot run on a GPU; `install` is a hint for CUDA support."""
        if reason := self.why_not_run_on_gpu(device):
            text = f"{artifact}: cannot run on GPU {device} here: {reason}"
            hint = f"{install or 'run it on a machine with an NVIDIA GPU'}, or give `devices` cpu"
            raise EngineUnavailable(text, hint=self.fix() or hint, engine=self.name, reason=reason)

    def fix(self) -> str:
        """Return a hint on how to make the engine run here; empty if it runs already."""
        if not self.why_not_run():
            return ""
        return install_hint(self.extra) if self.extra else f"pip install {next(iter(self.packages))}"

    def graph_precision(self, precision: Precision) -> Precision:
        """Return the precision that the ONNX graph must have for a requested `precision`."""
        return precision

    def check(self, spec: BuildSpec) -> None:  # noqa: B027 (most accept every valid spec)
        """Check, before any work, that the installed version and this processor support the options.

        Raises:
            InvalidOption: If the version lacks support.
            IntentNotReached: If this processor would emulate the precision.
        """

    def reader(self) -> str:
        """Return the name of the ONNX parser for messages, with the version if that affects the operators."""
        return self.name

    def operators(self) -> Collection[str] | None:
        """Return the ONNX operators that the runtime supports; None for all, or if the list is unknown."""
        return None

    def versions_that_read(self, operator: str) -> str:
        """Return, as text, which versions support an operator missing in `operators`; empty if none does."""
        return ""

    def known_faults(self) -> Sequence[KnownFault]:
        """Return the known faults of the installed version; all of `faults` if no version is installed."""
        _, *versions = tool_versions(*self.packages).values()  # the first is qcompile's
        return [fault for fault in self.faults if not versions or fault.affects(self.name, versions[0])]

    def graph_precision_if_weak(self, precision: Precision) -> Precision | None:
        """Return `graph_precision` for a weakly typed network; None if the runtime has no weak types."""
        return None

    def highest_opset(self) -> int | None:
        """Return the newest opset that the runtime supports; None for all opsets that qcompile writes."""
        return None

    @abstractmethod
    def build(self, request: BuildRequest) -> BuildOutcome:
        """Build the artifact and write it to `request.output`.

        Raises:
            EngineUnavailable: If the engine cannot build here.
            BuildError: If the runtime refuses the model.
        """

    def missed_layers(self, request: BuildRequest) -> Mapping[str, str]:
        """Map each quantized layer that this runtime would compute in float here to the reason.

        Lowering calls this method before the build, and quantizes the graph again without these layers. The
        method writes no artifact, and refuses the same models as `build`. By default it returns no layers,
        for runtimes that report precisions only after a build.
        """
        return {}

    def plan(self, request: BuildRequest) -> dict[str, object]:
        """Check a request as `build` does, and describe the build; raise InvalidOption if unsupported."""
        raise InvalidOption(f"`dry_run`: target {self.name} has no dry run", option="dry_run")

    def open_tapped(
        self,
        weightless: Graph,
        model: onnx.ModelProto,
        outputs: Mapping[str, str],
        *,
        threads: int,
        folder: Path,
    ) -> AbstractContextManager[Callable[[Feeds], dict[str, Any]]]:
        """Return a context manager that yields a function from feeds to taps (observed tensors) and outputs.

        `weightless` is the artifact's graph without loaded weights; `model` is this graph with the taps as
        outputs. `outputs` maps each tap to its output in `model`. `folder` is for temporary files.
        """
        return run_from_file(partial(self.open, threads=threads), weightless, model, outputs, folder)

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        """Return the median time of each kernel in milliseconds; a kernel's name begins with its node's name.

        `device` is a GPU's number, or None for the default. Raise EngineUnavailable if times are unavailable.
        """
        raise EngineUnavailable(f"{self.name} reports no time per layer", engine=self.name)

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        """Return Python scripts that run a model with only the runtime; a key names the way of loading it.

        A script reads `model.onnx` and `inputs.npz`, and sets `outputs` to a dict from name to array, which
        is empty if the script only builds. By default, return no scripts.
        """
        return {}

    @abstractmethod
    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        """Load an artifact.

        Raises:
            EngineUnavailable: If the engine cannot run here.
            ArtifactError: If the artifact is damaged, or was built for another device or version.
        """

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        """Load an artifact on one GPU, like `open`; raise InvalidOption if the engine runs on no GPU."""
        raise InvalidOption(f"device, streams and cuda_graph: engine {self.name} supports none of them")
