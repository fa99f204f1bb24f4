"""Find engines by name, report their capabilities, and load any artifact with its engine.

`spec.engines` registers the engines. Capabilities are data that, with the options, decide the graph to build.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.artifact import checked_input, read_manifest, require_exact, trust_content
from ..core.files import manifest_path, require_file
from ..errors import ArtifactError, EngineUnavailable, InvalidOption
from ..model.sources.archives import trust_files
from ..model.sources.source import did_you_mean, parse_source
from ..spec.decode import spec_from_call
from ..spec.engines import rows
from ..spec.looking import LoadSpec
from ..spec.tensors import ModelIO
from ..spec.words import CPU_TARGETS
from .base import DeviceRun, Engine, Runner
from .gpu import parse_device
from .words import KnownFault

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import LoadKeywords


def names() -> tuple[str, ...]:
    return tuple(rows())


def packages_of(engine_names: Iterable[str]) -> dict[str, str]:
    """Map each distribution that affects builds or runs of these engines to its module."""
    return {package: module for name in engine_names for package, module in engine(name).packages.items()}


def engine(name: str) -> Engine:
    """Return an engine by name.

    Raises:
        InvalidOption: If no engine has the name.
        EngineUnavailable: If the engine's class cannot be imported, or does not match its entry.
    """
    if name not in rows():
        problem = f"target {name!r} is unknown; known are {', '.join(names())}"
        raise InvalidOption(problem, hint=did_you_mean(name, names()), option="target")
    home = rows()[name].load()
    problem = ""
    if not (isinstance(home, type) and issubclass(home, Engine)):
        problem = "is no subclass of qcompile.engines.base.Engine"
    elif home.name != name:
        problem = f"has name {home.name!r}"
    elif home.__abstractmethods__:
        problem = f"lacks {', '.join(sorted(home.__abstractmethods__))}"
    if problem:
        raise EngineUnavailable(f"engine {name}: {rows()[name].home} {problem}", engine=name)
    runtime: Engine = home()
    return runtime


@dataclass(frozen=True)
class Capabilities:
    """The properties of an engine that decide its graph. Names shared with `Engine` have the same meaning.

    Attributes:
        in_graph: Maps each supported precision to the precision that the graph must have for the build.
        in_graph_if_weak: `in_graph` for weakly typed networks; empty if the engine supports none.
        tells_missed: Whether the engine reports, before a build, the quantized layers that run in float.
    """

    target: str
    takes: str
    in_graph: Mapping[str, str]
    lacks: tuple[str, ...]
    highest_opset: int | None
    keeps_layers: bool
    has_best: bool
    tells_missed: bool
    reader: str = ""
    operators: tuple[str, ...] | None = None
    faults: tuple[KnownFault, ...] = ()
    in_graph_if_weak: Mapping[str, str] = field(default_factory=dict)

    def needed(self, precision: str, *, weak: bool = False) -> str:
        """Return the precision that the graph must have for a requested precision."""
        return (self.in_graph_if_weak if weak and self.in_graph_if_weak else self.in_graph)[precision]

    def as_json(self) -> dict[str, object]:
        """Return the capabilities as a part of a stage's key."""
        return asdict(self)


def capabilities_of(engine: Engine) -> Capabilities:
    """Return the capabilities of an engine, for its installed version and the GPU of this machine."""
    operators = engine.operators()
    weak = {precision: engine.graph_precision_if_weak(precision) for precision in engine.precisions}
    return Capabilities(
        engine.name,
        engine.takes,
        {precision: engine.graph_precision(precision) for precision in engine.precisions},
        tuple(sorted(engine.lacks)),
        engine.highest_opset(),
        keeps_layers=engine.keeps_layers,
        has_best=engine.has_best,
        tells_missed=type(engine).missed_layers is not Engine.missed_layers,
        reader=engine.reader(),
        operators=None if operators is None else tuple(sorted(operators)),
        faults=tuple(engine.known_faults()),
        in_graph_if_weak={precision: kind for precision, kind in weak.items() if kind is not None},
    )


def load(
    artifact: str | Path,
    spec: LoadSpec | None = None,
    /,
    *,
    io: ModelIO | None = None,
    device: int | str | None = None,
    **options: Unpack[LoadKeywords],
) -> Runner:
    """Return a runner for an artifact or a MODEL (a PyTorch model by its name on the command line).

    An engine file is executable code. Without `trust`, it is loaded only if it matches its manifest's digest
    and was built for the device; both are checked before TensorRT reads it.

    Args:
        artifact: A file with a manifest, an ONNX file, or a MODEL.
        spec: Options.
        io: Inputs and outputs of a MODEL that does not declare them.
        device: "cpu", "cuda:1", or the number of a GPU; None for the engine's default, which is the processor
            except for TensorRT and TensorRT-RTX.
        options: Fields of `LoadSpec` by name, in place of those of `spec`.

    Raises:
        MissingFile: If the file does not exist.
        InvalidOption: If the engine does not run on the device, or `streams` or `cuda_graph` is unsupported.
        ArtifactError: If the file does not match its manifest, was built for another device or version, or
            has INT8 layers that overflow on this processor.
        EngineUnavailable: If the engine's runtime cannot run here.
    """
    spec, text = spec_from_call(LoadSpec, spec, options), str(artifact)
    name = engine_of(text, trust=spec.trust)
    path = Path(text)
    if spec.trust:
        trust_content(path)
    elif path.is_file():
        checked_input(path)
    runtime, number = engine(name), parse_device(device) if isinstance(device, str) else device
    if device == "cpu" and "cpu" not in runtime.places:
        raise InvalidOption(f"{text}: engine {name} runs on a GPU, not on the processor", option="devices")
    with trust_files(spec.trust):
        if number is None and spec.streams == 1 and not spec.cuda_graph and "cpu" in runtime.places:
            require_exact(path, read_manifest(path))
            return runtime.open(text, threads=spec.threads, io=io)
        run = DeviceRun(number or 0, spec.streams, spec.cuda_graph, spec.runtime_cache)
        return runtime.open_on_gpu(text, run, threads=spec.threads, io=io)


def engine_of(artifact: str, *, trust: bool = False) -> str:
    """Return the name of the engine that runs an artifact: from its manifest, else from its file name.

    A TensorRT engine without a manifest requires `trust`; its first bytes then distinguish the targets.
    """
    path = Path(artifact)
    if path.suffix in (".engine", ".plan"):
        require_file(path, what="engine")
        manifest = read_manifest(path)
        if manifest is not None:
            return manifest.target
        if not trust:
            problem = f"has no manifest ({manifest_path(path).name})"
            hint = "build it with `qcompile build`, or give `trust` if you know where it comes from"
            raise ArtifactError(f"{path}: {problem}; an engine is executable code", hint=hint, file=path)
        from .tensorrt.plan import target_of

        with path.open("rb") as file:
            return target_of(file.read(8))
    source = parse_source(artifact)
    if source.kind == "onnx":
        manifest = read_manifest(path)
        return manifest.target if manifest and manifest.target in CPU_TARGETS else "onnxruntime"
    return "torchscript" if source.kind == "torchscript" else "pytorch"
