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
    """Input of `Engine.build`. Fields without a description are as in `building.lowered.LoweredGraph`.

    Attributes:
        model: The ONNX file to build from, or a MODEL spelling if the engine takes PyTorch.
        spec: Requested options. Its precision is never "best", its `isa` never "auto" for a processor.
        source: The user's model if `model` was made from it; for messages and the manifest.
        source_digest: Digest of `source`; empty if `model` is the user's model.
        tf32: Whether products of float32 may round to 10 bits of mantissa, whatever the precision.
        samples: Real input to check the artifact on, batch by batch; if empty, the input is random.
        spread: Number of samples, and of all samples in the data, as text.
        reasons: Name of each layer that is not quantized to the reason.
        graph: The ONNX graph in memory.
        debug_tensors: Tensors that a TensorRT engine can output while it runs; None for all unfused tensors.
        is_trial: Whether the caller measures the speed, so that the build omits its speed warning.
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
        """The graph of an engine that takes ONNX files; read from `model` if `graph` is None."""
        return self.graph or read_graph(Path(self.model))

    @cached_property
    def nodes(self) -> Mapping[str, Sequence[NodeProto]]:
        """Precision to the nodes of the graph that compute in it."""
        return weighted_nodes(self.onnx.model)

    @property
    def precision(self) -> Precision:
        return self.spec.one_precision

    @property
    def input_name(self) -> str:
        """Name of the input that the artifact is checked on, for messages."""
        return "the data" if self.samples else "one random input"

    @property
    def sample(self) -> Feeds | None:
        """The first batch of the samples; None for random input."""
        return self.samples[0] if self.samples else None


@dataclass(frozen=True)
class PlannedLayers:
    """The layers that an artifact should compute in its precision.

    `missed` maps layers in another precision to a text that names it; `unreported` maps layers of unknown
    precision to the reason. They are `unproven` unless types bind the runtime; `evidence` is a text on them.
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
        planned: Number of weighted nodes of the model file in the requested precision.
        reached: Number of weighted layers of the built artifact in that precision.
        versions: Package to version, if the runtime reports a better version than its package.
        layers: The planned layers by name; None if the runtime reports no names.
        failure: Why the outputs are wrong; empty if they are right, or the artifact was not run.
        wrong_layer: The first layer of the graph with wrong results, if it was located.
        calibration_cache: Cache file that the runtime's calibrator wrote.
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
    """How an artifact runs on a GPU: number of concurrent contexts, each on a stream; whether an inference is
    captured once and replayed; whether kernels that TensorRT-RTX compiles are cached beside the engine."""

    device: int = 0
    streams: int = 1
    cuda_graph: bool = False
    runtime_cache: bool = True

    def refuse_streams_and_graphs(self, engine_name: str) -> None:
        """Raise InvalidOption for streams or a CUDA graph: engine `engine_name` supports neither."""
        if self.streams != 1 or self.cuda_graph:
            raise InvalidOption(f"streams and cuda_graph: engine {engine_name} supports neither")


class InFlight(NamedTuple):
    """One of several concurrent inferences: `start` enqueues copies and run without waiting; `wait` blocks
    until the outputs are available."""

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
    """Size and precision of its weights, if the runner reports them better than the file."""

    @abstractmethod
    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run once: input name to array in, output name to array out, as `io` declares them.

        Dynamic axes take any extent. Dtypes must be exactly those declared: nothing is converted.

        Raises:
            DataError: If a name, a shape or a dtype of the feeds does not match.
            ModelError: If the runtime fails on valid feeds.
        """

    def time(
        self, feeds: Feeds, iterations: int, *, limit_s: float = math.inf, fewest: int = 1
    ) -> NDArray[np.int64]:
        """Run `iterations` times and return the duration of each in nanoseconds, int64 [at most iterations].

        After `limit_s` no further run starts, but at least `fewest` are made.
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
        """Check the feeds and return a callable without arguments that runs once on them."""

    def in_flight(self, feeds: Feeds, count: int) -> AbstractContextManager[Sequence[InFlight]]:
        """Return a context manager of `count` concurrent inferences for one thread; raise InvalidOption if
        this runtime runs one at a time."""
        raise InvalidOption("`streams`: this runtime runs one inference at a time", option="streams")

    @abstractmethod
    def close(self) -> None:
        """Free everything; the runner cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(ABC):
    """A runtime adapter: builds artifacts for one runtime, and loads them.

    All code for the runtime is in the adapter's folder; its row is in `spec.engines`. A class without one of
    the first four attributes cannot be defined.
    """

    name: str
    """Spelling as a target: "onnxruntime", "tensorrt-rtx", ..."""
    suffix: str
    """Ending of the files it builds, such as ".engine"."""
    packages: Mapping[str, str]
    """Distribution to its module, for all distributions that decide the build or the run. Their versions are
    part of the key of a build, and of the environment of a measurement."""
    rules: GraphRules
    """Form of the graph quantized for the runtime; required of an engine that builds from ONNX."""
    extra: str = ""
    """Extra of qcompile that installs the runtime; empty without an extra."""
    takes: Literal["onnx", "pytorch"] = "onnx"
    """Format that it builds from."""
    places: tuple[Place, ...] = ("cpu",)
    """Devices that it runs on; the first is the default."""
    keeps_layers: bool = False
    """Whether single layers can be fixed to a precision while the runtime chooses the other types."""
    has_best: bool = False
    """Whether precision "best" is supported."""
    keeps_rejected: bool = False
    """Whether a rejected artifact is saved under another name, as a build can take an hour."""
    lacks: frozenset[str] = frozenset()
    """ONNX operators that the runtime refuses; where possible, passes rewrite them."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
    """Supported precisions."""
    faults: tuple[KnownFault, ...] = ()
    """Operators that versions of the runtime are known to compute wrongly."""
    tuned_floats: tuple[FloatPrecision, ...] = ("fp32",)
    """Precisions of float layers that `tune` tries, float32 first."""
    triton: TritonBackend | None = None
    """Triton's backend for the artifacts; None without one."""
    custom_proposals: tuple[Proposal, ...] = ()
    """Artifacts that a recipe may have, if not one in fp32 and one in int8."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        required = ("name", "suffix", "packages", *(("rules",) if cls.takes == "onnx" else ()))
        for attribute in required:
            if not hasattr(cls, attribute):
                raise TypeError(f"engine {cls.__module__}.{cls.__qualname__}: lacks {attribute!r}")

    def verdict(self, precision: Precision) -> Verdict | None:
        """Return how a precision runs on this processor; None if the instruction set decides."""
        return None

    def proposals(self) -> tuple[Proposal, ...]:
        """Return the artifacts that a recipe may have for this target."""
        title = rows()[self.name].title
        return self.custom_proposals or (
            Proposal(f"{self.name}-fp32", "fp32", f"what {title} gains in float", "float alone"),
            Proposal(f"{self.name}-int8", "int8", f"8-bit weights and activations on {title}", "static"),
        )

    def why_not_build(self) -> str:
        """Return why it cannot build here (a missing module, for example); empty if it can."""
        for module in dict.fromkeys(self.packages.values()):
            try:
                import_module(module)
            except Exception as error:  # besides ImportError: missing libraries raise RuntimeError or OSError
                return f"{module} cannot be imported ({error})"
        return ""

    def require_builder(self) -> None:
        """Raise EngineUnavailable if it cannot build here."""
        if reason := self.why_not_build():
            problem = f"target {self.name} cannot build here: {reason}"
            raise EngineUnavailable(problem, hint=self.fix(), engine=self.name, reason=reason)

    def why_not_run(self) -> str:
        """Return why it cannot run here; empty if it can."""
        return self.why_not_build()

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        """Return why it cannot run on that GPU of this machine; empty if it can."""
        return f"{self.name} runs on no GPU"

    def require_here(self) -> None:
        """Raise EngineUnavailable if it cannot run here."""
        if reason := self.why_not_run():
            raise EngineUnavailable(reason, hint=self.fix(), engine=self.name, reason=reason)

    def require_gpu_here(self, artifact: str, device: int, install: str) -> None:
        """Raise EngineUnavailable if it cannot run on a GPU; `install` is a hint to install CUDA support."""
        if reason := self.why_not_run_on_gpu(device):
            text = f"{artifact}: cannot run on GPU {device} here: {reason}"
            hint = f"{install or 'run it on a machine with an NVIDIA GPU'}, or give `devices` cpu"
            raise EngineUnavailable(text, hint=self.fix() or hint, engine=self.name, reason=reason)

    def fix(self) -> str:
        """Return the fix if it cannot build or run here; empty if nothing is needed."""
        if not self.why_not_run():
            return ""
        return install_hint(self.extra) if self.extra else f"pip install {next(iter(self.packages))}"

    def graph_precision(self, precision: Precision) -> Precision:
        """Return the precision that the ONNX graph must have for the requested one; by default the same."""
        return precision

    def check(self, spec: BuildSpec) -> None:  # noqa: B027 (most accept every valid spec)
        """Check, before any work, that the installed version and this processor support the options.

        Raises:
            InvalidOption: If the version lacks support; names the version.
            IntentNotReached: If this processor would emulate the precision; names the processor.
        """

    def reader(self) -> str:
        """Return the name of the ONNX reader for messages, with its version where the version decides."""
        return self.name

    def operators(self) -> Collection[str] | None:
        """Return the ONNX operators that the runtime reads; None if it reads all, or the list is unknown."""
        return None

    def versions_that_read(self, operator: str) -> str:
        """Return, as text, the versions that read an operator missing in `operators`; empty if none does."""
        return ""

    def known_faults(self) -> Sequence[KnownFault]:
        """Return the known faults of the installed version; all of `faults` if none is installed."""
        _, *versions = tool_versions(*self.packages).values()  # the first is qcompile's
        return [fault for fault in self.faults if not versions or fault.affects(self.name, versions[0])]

    def graph_precision_if_weak(self, precision: Precision) -> Precision | None:
        """Return `graph_precision` for weak types; None if the runtime does not support them."""
        return None

    def highest_opset(self) -> int | None:
        """Return the newest opset that the runtime reads; None if it reads all that qcompile writes."""
        return None

    @abstractmethod
    def build(self, request: BuildRequest) -> BuildOutcome:
        """Build to `request.output`.

        Raises:
            EngineUnavailable: If the engine cannot build here.
            BuildError: If the runtime refuses the model; names node and operator.
        """

    def missed_layers(self, request: BuildRequest) -> Mapping[str, str]:
        """Return the quantized layers that this runtime would compute in float here, each with the reason.

        Lowering calls it before the build, to quantize the graph again without these layers. It writes no
        files, and refuses a model as `build` does. The default is empty: a report exists only after a build.
        """
        return {}

    def plan(self, request: BuildRequest) -> dict[str, object]:
        """Check a request as `build` does and describe the build; raise InvalidOption without a dry run."""
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
        """Return a context manager of a function from feeds to tapped tensors and outputs.

        `weightless` is the artifact, `model` its graph with more outputs; `outputs` maps tapped tensors to
        outputs. `folder` is for files of this run.
        """
        return run_from_file(partial(self.open, threads=threads), weightless, model, outputs, folder)

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        """Return the median time of each kernel in milliseconds; a kernel's name begins with its node's.

        `device` is a GPU, or None for the engine's default. Raise EngineUnavailable without times per layer.
        """
        raise EngineUnavailable(f"{self.name} reports no time per layer", engine=self.name)

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        """Return scripts that load a model with nothing but the runtime, by a text on the way of loading.

        A script reads `model.onnx` and `inputs.npz`, and leaves name to array in `outputs`: an empty dict if
        it only builds. By default, return no scripts.
        """
        return {}

    @abstractmethod
    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        """Load an artifact.

        Raises:
            EngineUnavailable: If it cannot run here.
            ArtifactError: If the artifact is damaged or was built for something else.
        """

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        """Load an artifact, as `open` does, on one GPU; raise InvalidOption if the engine runs on none."""
        raise InvalidOption(f"device, streams and cuda_graph: engine {self.name} supports none of them")
