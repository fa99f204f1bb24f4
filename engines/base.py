"""The interface of an engine: a builder (model in, artifact out) and a `Runner` (feeds in, outputs out)."""

from __future__ import annotations

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
from ..model.graph.graph import WeightsHeld, weighted_nodes
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
    """What a builder is asked for; the graph's own facts are as in `building.lowered.LoweredGraph`.

    Attributes:
        model: The file to build from (ONNX), or a MODEL spelling where the engine takes PyTorch.
        spec: What was asked for; its precision is never "best", its `isa` never "auto" for a processor.
        source: What the user gave, where `model` was made from it; for messages and the manifest.
        source_digest: Digest of it; empty where `model` is what the user gave.
        tf32: Whether products of float32 may round to 10 bits of mantissa, whatever the precision.
        samples: Real input to check the artifact on, batch by batch; without any it is random.
        spread: How many samples of how many these are, in words.
        reasons: Name of each layer that is not quantized to the reason.
        graph: The file in memory, where it is ONNX.
        debug_tensors: What an engine of TensorRT can show while it runs; None for all that is not fused.
        is_trial: Whether its speed is measured by who asks, and not said here.
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
        """The graph, of an engine that takes ONNX files: read here where it was made earlier."""
        return self.graph or read_graph(Path(self.model))

    @cached_property
    def nodes(self) -> Mapping[str, Sequence[NodeProto]]:
        """Precision to the nodes of the graph that compute in it."""
        return weighted_nodes(self.onnx.model)

    @property
    def precision(self) -> Precision:
        return self.spec.one_precision

    @property
    def sampled(self) -> str:
        """What the artifact is checked on, in words."""
        return "the data" if self.samples else "one random input"

    @property
    def sample(self) -> Feeds | None:
        """The first batch of the samples; None for random input."""
        return self.samples[0] if self.samples else None


@dataclass(frozen=True)
class Planned:
    """The layers that an artifact should compute in its precision.

    Those that `missed` it, to what computes them instead; those `unreported`, to why that is not known. They
    are `unproven` unless their types are binding, which `evidence` says in words.
    """

    names: Sequence[str]
    missed: Mapping[str, str] = field(default_factory=dict)
    unreported: Mapping[str, str] = field(default_factory=dict)
    unproven: bool = True
    evidence: str = ""


@dataclass(frozen=True)
class BuildOutcome:
    """What a builder made, and what its manifest says of it.

    Attributes:
        kind: "onnx", "engine" or "torchscript".
        planned: Weighted nodes that the model file holds in the asked precision.
        reached: Weighted layers of the built artifact in that precision.
        versions: Package to version, where the runtime tells its own better than its package does.
        layers: The planned layers by name; None where the runtime names none.
        failure: Why its outputs are not what they should be; empty where they are, or it was not run.
        wrong_layer: The first layer of the graph that the runtime computes so, where one is known.
        calibration_cache: What the runtime's own calibrator wrote.
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
    layers: Planned | None = None
    failure: str = ""
    wrong_layer: str = ""
    hint: str = ""


@dataclass(frozen=True)
class DeviceRun:
    """How an artifact runs on a GPU: in so many contexts at once, each on its stream; with an inference that
    is captured once and replayed; with the kernels that TensorRT-RTX compiles kept beside the engine."""

    device: int = 0
    streams: int = 1
    cuda_graph: bool = False
    runtime_cache: bool = True

    def require_plain(self, engine_name: str) -> None:
        """Refuse what an engine that runs one inference at a time has no use for."""
        if self.streams != 1 or self.cuda_graph:
            raise InvalidOption(f"streams and cuda_graph: engine {engine_name} has no use for them")


class InFlight(NamedTuple):
    """One of several inferences that are under way at once: `start` enqueues copies and run, and returns at
    once; `wait` waits until its outputs are there."""

    start: Callable[[], None]
    wait: Callable[[], None]


class Runner(ABC):
    """A loaded artifact. A context manager; leaving it frees everything."""

    io: ModelIO
    contains: str
    """What a latency measured by `time` contains, such as "host to host"."""
    notes: Sequence[str] = ()
    """What the user should know about how it runs here."""
    weights: WeightsHeld | None = None
    """What it holds as weights, where it can tell better than its file."""

    @abstractmethod
    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run once: input name to array in, output name to array out, as `io` declares them.

        Any extent is taken on dynamic axes; dtypes must be exactly those declared: nothing is converted.

        Raises:
            DataError: If a name, a shape or a dtype of the feeds does not fit.
            ModelError: If the runtime fails on feeds that fit.
        """

    def time(self, feeds: Feeds, iterations: int) -> NDArray[np.int64]:
        """Run `iterations` times and return the duration of each in nanoseconds, int64 [iterations]."""
        run = self.prepare(feeds)
        clock = time.perf_counter_ns
        durations = np.empty(iterations, np.int64)
        for index in range(iterations):
            start = clock()
            run()
            durations[index] = clock() - start
        return durations

    @abstractmethod
    def prepare(self, feeds: Feeds) -> Any:
        """Return a callable without arguments that runs once on these feeds; checks happen here."""

    def in_flight(self, feeds: Feeds, count: int) -> AbstractContextManager[Sequence[InFlight]]:
        """Return a context manager of `count` inferences that can be under way at once, used by one thread;
        refused where this runtime runs one after the other."""
        raise InvalidOption("`streams`: this runtime has one inference under way at a time", option="streams")

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
    """A runtime.

    Its folder holds all that the package knows of it; its row is in `spec.engines`. A class that lacks one of
    the first four attributes cannot be defined.
    """

    name: str
    """How it is spelled: "onnxruntime", "tensorrt-rtx", ..."""
    suffix: str
    """Ending of the files it builds, such as ".engine"."""
    packages: Mapping[str, str]
    """Distribution to the module that it owns, for all whose versions decide what is built and how it runs:
    they stand in the key of a build, and in the environment of a measurement."""
    rules: GraphRules
    """What the graph quantized for it looks like; of one that builds from ONNX."""
    extra: str = ""
    """Extra of this package that installs it; empty where none does."""
    takes: Literal["onnx", "pytorch"] = "onnx"
    """What it builds from."""
    places: tuple[Place, ...] = ("cpu",)
    """Where it runs: the first unless it is told otherwise."""
    keeps_layers: bool = False
    """Whether single layers can be kept in a precision where it chooses the types."""
    has_best: bool = False
    """Whether it can be asked for precision "best"."""
    keeps_rejected: bool = False
    """Whether what was built and rejected is kept under another name, as a build can take an hour."""
    lacks: frozenset[str] = frozenset()
    """Operators of ONNX that it refuses, and that the graph is rewritten without where that is possible."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
    """What it can be asked for."""
    faults: tuple[KnownFault, ...] = ()
    """What its versions are known to compute wrongly."""
    tuned_floats: tuple[FloatPrecision, ...] = ("fp32",)
    """What `tune` computes float parts in, float32 first."""
    triton: TritonBackend | None = None
    """What serves its artifacts; None where Triton has no backend for it."""
    offered: tuple[Proposal, ...] = ()
    """What a recipe may have of it, where that is not one artifact in fp32 and one in int8."""

    def __init_subclass__(cls) -> None:
        """Refuse an engine that lacks what others read of it."""
        super().__init_subclass__()
        required = ("name", "suffix", "packages", *(("rules",) if cls.takes == "onnx" else ()))
        for attribute in required:
            if not hasattr(cls, attribute):
                raise TypeError(f"engine {cls.__module__}.{cls.__qualname__}: lacks {attribute!r}")

    def verdict(self, precision: Precision) -> Verdict | None:
        """Return how a precision runs on this processor; None where instruction sets decide."""
        return None

    def proposals(self) -> tuple[Proposal, ...]:
        """Return the artifacts that a recipe may have of it."""
        title = rows()[self.name].title
        return self.offered or (
            Proposal(f"{self.name}-fp32", "fp32", f"what {title} gains in float", "float alone"),
            Proposal(f"{self.name}-int8", "int8", f"8-bit weights and activations on {title}", "static"),
        )

    def why_not_build(self) -> str:
        """Return why it cannot build here, such as a missing module; empty when it can."""
        for module in dict.fromkeys(self.packages.values()):
            try:
                import_module(module)
            except Exception as error:  # besides ImportError: missing libraries raise RuntimeError or OSError
                return f"{module} cannot be imported ({error})"
        return ""

    def require_builder(self) -> None:
        """Refuse where it cannot build here."""
        if reason := self.why_not_build():
            problem = f"target {self.name} cannot build here: {reason}"
            raise EngineUnavailable(problem, hint=self.fix(), engine=self.name, reason=reason)

    def why_not_run(self) -> str:
        """Return why it cannot run here; empty when it can."""
        return self.why_not_build()

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        """Return why it cannot run on that GPU here; empty when it can."""
        return f"{self.name} runs on no GPU"

    def require_here(self) -> None:
        """Refuse where it cannot run here."""
        if reason := self.why_not_run():
            raise EngineUnavailable(reason, hint=self.fix(), engine=self.name, reason=reason)

    def require_gpu_here(self, artifact: str, device: int, install: str) -> None:
        """Refuse where it cannot run on a GPU; `install` is the way out where its package has no CUDA."""
        if reason := self.why_not_run_on_gpu(device):
            text = f"{artifact}: cannot run on GPU {device} here: {reason}"
            hint = f"{install or 'run it on a machine with an NVIDIA GPU'}, or give `devices` cpu"
            raise EngineUnavailable(text, hint=self.fix() or hint, engine=self.name, reason=reason)

    def fix(self) -> str:
        """Return what the user can do about either; empty when nothing is needed."""
        if not self.why_not_run():
            return ""
        return install_hint(self.extra) if self.extra else f"pip install {next(iter(self.packages))}"

    def graph_precision(self, precision: Precision) -> Precision:
        """Return the precision that the ONNX graph must have for the intent; by default the graph decides."""
        return precision

    def check(self, spec: BuildSpec) -> None:  # noqa: B027 (most take all that the spec lets pass)
        """Refuse what the version or the processor here does not have, before any work.

        Raises:
            InvalidOption: Naming the version.
            IntentNotReached: Naming the processor, where the precision would be emulated.
        """

    def reader(self) -> str:
        """Return what reads ONNX files, for messages: the runtime, with its version where that decides."""
        return self.name

    def operators(self) -> Collection[str] | None:
        """Return the operators that it reads; None where it reads all of ONNX, or that is not known."""
        return None

    def read_by(self, operator: str) -> str:
        """Return the versions that read an operator which `operators` lacks, in words; empty for none."""
        return ""

    def known_faults(self) -> Sequence[KnownFault]:
        """Return what it is known to compute wrongly here: all of `faults` where no version is installed."""
        _, *versions = tool_versions(*self.packages).values()  # the first is qcompile's
        return [fault for fault in self.faults if not versions or fault.affects(self.name, versions[0])]

    def graph_precision_if_weak(self, precision: Precision) -> Precision | None:
        """Return `graph_precision` for weak types; None where it does not have them beside strong ones."""
        return None

    def highest_opset(self) -> int | None:
        """Return the newest opset of ONNX files that it reads; None where it takes any we write."""
        return None

    @abstractmethod
    def build(self, request: BuildRequest) -> BuildOutcome:
        """Build to `request.output`.

        Raises:
            EngineUnavailable: If it cannot build here.
            BuildError: If the runtime refuses the model, naming node and operator.
        """

    def missed_layers(self, request: BuildRequest) -> Mapping[str, str]:
        """Return the quantized layers of a graph that this runtime would compute in float here, to what does.

        It is asked before the build, so that the graph is quantized again without them, and writes nothing.
        An engine that tells only what it has built returns nothing. Refuses a model as `build` does.
        """
        return {}

    def plan(self, request: BuildRequest) -> dict[str, object]:
        """Check a request as `build` does, and say what it would build; refused where only a build tells."""
        raise InvalidOption(f"`dry_run`: target {self.name} cannot tell before it builds", option="dry_run")

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

        `weightless` is the artifact, `model` its graph with more outputs, `outputs` tapped tensor to output;
        files of this run may lie in `folder`.
        """
        return run_from_file(partial(self.open, threads=threads), weightless, model, outputs, folder)

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        """Return name of each kernel, which begins with its node's, to its median time in milliseconds.

        It runs on that GPU, or with None where the engine runs by itself. Refused where no times are told.
        """
        raise EngineUnavailable(f"{self.name} tells no time of single layers", engine=self.name)

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        """Return how it loads a model, in words, to a script that does so with nothing but the runtime.

        It reads `model.onnx` and `inputs.npz`, and leaves name to array in `outputs`; none where it only
        builds. Empty where there is no such script.
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
        """Load an artifact, as `open` does, on a certain GPU; refused where the engine runs on none."""
        raise InvalidOption(f"device, streams and cuda_graph: engine {self.name} has no use for them")
