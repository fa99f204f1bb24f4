"""`build`: lower the graph to what the target needs (`lower`), build it and prove it (`engines/`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.artifact import Artifact, Manifest, load_artifact, read_manifest
from ..core.files import temporary_folder
from ..core.processor import resolve_isa
from ..core.progress import Progress, silent
from ..engines.base import BuildRequest, Engine
from ..engines.build import build_engine
from ..engines.registry import engine as find_engine
from ..engines.tensorrt.adapter import MODULES, load_adapter
from ..errors import ArtifactError, IntentNotReached, InvalidOption, QCompileError
from ..model.graph.onnx_file import read_graph
from ..model.sources.archives import trust_files
from ..spec.artifacts import BuildSpec, ReproduceSpec
from ..spec.decode import parse_spec, spec_from_call
from ..spec.option import fields_of
from ..spec.tensorrt import TensorRTOptions
from .lower import lower, spread_samples
from .lowered import LoweredGraph

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engines.reproducer import Reproducer
    from ..spec.keywords import BuildKeywords, ReproduceKeywords

_MOST_WRONG = 3
_Spec = TypeVar("_Spec", bound=BuildSpec)
_ENDINGS = {".engine": (".engine", ".plan"), ".pt": (".pt", ".pth", ".ts", ".jit", ".torchscript")}


def build(
    model: str | Path,
    output: str | Path,
    spec: BuildSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[BuildKeywords],
) -> Artifact:
    """Build an artifact for a target and prove that its precision was reached.

    A layer from which on the runtime computes something else in INT8 is left in float, with a warning; after
    three such layers the build is refused.

    Args:
        model: ONNX file; a MODEL spelling for target "torchscript".
        output: File to write.
        spec: What the artifact is to be.
        progress: Told of every step.
        options: Fields of `BuildSpec` by name, in place of those of `spec`.

    Raises:
        InvalidOption: If an option is wrong, or the graph has not the precision and cannot be given it.
        EngineUnavailable: If the runtime cannot build here, with the reason.
        BuildError: If the runtime refuses the model.
        IntentNotReached: If too many layers do not have the precision that was asked for.
        ModelError: If the graph makes a tensor that no memory holds.
    """
    checked = _for_here(spec_from_call(BuildSpec, spec, options))
    return build_with_fallback(model, output, checked, progress=progress)


def build_with_fallback(
    model: str | Path,
    output: str | Path,
    checked: BuildSpec,
    lowered: LoweredGraph | None = None,
    *,
    progress: Progress = silent,
) -> Artifact:
    """Retry up to three times, leaving the first wrong layer in float each time.

    The first attempt builds from `lowered`, where the graph was lowered before.
    """
    runtime = find_engine(checked.target)
    _check_ending(runtime, Path(output))
    refusal: IntentNotReached | None = None
    warnings: list[str] = []
    for _ in range(_MOST_WRONG + 1):
        try:
            with trust_files(checked.trust), ExitStack() as stack:
                graph = lowered or stack.enter_context(_lowered(runtime, model, checked, progress))
                lowered = None
                graph = replace(graph, warnings=[*graph.warnings, *warnings])
                request = request_for(runtime, model, checked, graph, Path(output), progress)
                return build_engine(runtime, request)
        except IntentNotReached as error:
            refusal, layer = refusal or error, error.data.get("wrong_layer")
            if not layer or checked.precision != "int8" or layer in checked.layer_precisions:
                break
            progress(f"leave {layer} in float")
            warnings.append(
                f"layer {layer!r} stays in float: in INT8 {checked.target} computes something else"
            )
            checked = replace(checked, layers=(*checked.layers, f"{layer}=fp32"))
        except QCompileError as error:
            if refusal is None:
                raise
            raise refusal from error  # the graph was quantized before, or nothing would be left to quantize
    assert refusal is not None
    raise refusal


def _for_here(spec: _Spec) -> _Spec:
    """Return a spec whose `isa` is what "auto" stands for on this processor."""
    return replace(spec, isa=resolve_isa(spec.isa, spec.target))


def _check_ending(engine: Engine, output: Path) -> None:
    """Refuse a name by which no other verb would know what is built, such as one of OpenVINO's own files."""
    endings = _ENDINGS.get(engine.suffix, (engine.suffix,))
    if output.suffix not in ("", *endings):
        problem = f"output {output}: what {engine.name} runs ends in {' or '.join(endings)}"
        raise InvalidOption(problem, hint=f"name it {output.with_suffix(endings[0]).name}", option="output")


def plan(
    model: str | Path,
    spec: BuildSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[BuildKeywords],
) -> dict[str, object]:
    """Prepare, parse and check everything that `build` would, and return what would be built."""
    checked = _for_here(spec_from_call(BuildSpec, spec, options))
    runtime = find_engine(checked.target)
    with trust_files(checked.trust), _lowered(runtime, model, checked, progress) as lowered:
        request = request_for(runtime, model, checked, lowered, Path("dry-run"), progress)
        planned = runtime.plan(request)
        passes = {"passes": dict(lowered.passes)}
        return {"target": checked.target, "precision": request.precision, **planned, **passes}


def reproduce(
    model: str | Path,
    output: str | Path,
    spec: ReproduceSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[ReproduceKeywords],
) -> Reproducer:
    """Cut a build that fails, or computes something else, down to the smallest graph that shows it.

    Args:
        model: ONNX file, as `build` was given it.
        output: Folder to write: the graph, its inputs, and a script that needs the runtime alone.
        spec: What the artifact was to be.
        progress: Told of every trial.
        options: Fields of `ReproduceSpec` by name, in place of those of `spec`.

    Raises:
        ModelError: If nothing fails.
        EngineUnavailable: If the runtime is not here, or has no script.
    """
    from ..engines.reproducer import make_reproducer

    checked = _for_here(spec_from_call(ReproduceSpec, spec, options))
    runtime = find_engine(checked.target)
    with trust_files(checked.trust), _lowered(runtime, model, checked, progress) as lowered:
        request = request_for(runtime, model, checked, lowered, Path(output), progress)
        return make_reproducer(runtime, request, Path(output), checked.max_time_s)


def request_for(
    engine: Engine,
    model: str | Path,
    spec: BuildSpec,
    lowered: LoweredGraph,
    output: Path,
    progress: Progress,
) -> BuildRequest:
    """Return what a builder is asked for: a graph that is lowered, and what the spec says beside it."""
    same_floats = spec.floats == lowered.float_precision
    lowered_spec = replace(
        spec,
        precision=lowered.precision,
        float_precision=spec.float_precision if same_floats else lowered.float_precision,
        gpus=tuple(dict.fromkeys(gpu.lower() for gpu in spec.gpus)),
    )
    spread = spread_samples(spec.data, lowered.inputs) if engine.takes == "onnx" else None
    return BuildRequest(
        lowered.path,
        output,
        lowered_spec,
        source=str(model),
        source_digest=lowered.source_digest,
        layers=lowered.layers,
        tf32=spec.precision == "best",
        planned=lowered.planned,
        left_in_float=lowered.left_in_float,
        reasons={**lowered.reasons, **lowered.left_in_float},
        worked_around=lowered.worked_around,
        samples=spread.batches if spread else (),
        spread=str(spread or ""),
        warnings=lowered.warnings,
        progress=progress,
        graph=lowered.graph,
    )


def refit(
    engine: str | Path, model: str | Path, output: str | Path, *, progress: Progress = silent
) -> Artifact:
    """Give a built TensorRT engine new weights, without building it again.

    Args:
        engine: Built with `refit` or `strip_weights`.
        model: ONNX file of the same structure: the float model where the engine was built from one (it is
            converted as the build converted it), the quantized one for INT8 and FP8.
        output: Engine to write; may be the same file.
        progress: Told of every step.

    Raises:
        InvalidOption: If it is no TensorRT engine.
        EngineUnavailable: If there is no GPU.
        ArtifactError: If the engine is of another version or GPU, or takes no new weights.
        ModelError: If the graph has other inputs and outputs.
        BuildError: If weights are missing or TensorRT refuses them, naming them.
    """
    from ..engines.tensorrt.builder.refit import refit_plan

    path = Path(engine)
    manifest = load_artifact(path).manifest
    if manifest.target not in MODULES:
        target = manifest.target or "no target"
        raise InvalidOption(f"{path}: is for {target}; an engine of TensorRT is required")
    # Where the layers' types are in the quantized graph, the model has them already.
    names = ("layers", "exclude", "only") if manifest.precision in ("fp16", "bf16") else ()
    spec = _spec_of(manifest, only=(*names, "float_precision", "io_formats", "typing", "ignore_faults"))
    with _lowered(find_engine(spec.target), model, spec, progress) as lowered:
        return refit_plan(
            load_adapter(manifest.target), path, Path(lowered.path), Path(output),
            source=str(model), progress=progress,
        )  # fmt: skip


@contextmanager
def engine_graph(
    engine: str | Path, model: str | Path, *, progress: Progress = silent
) -> Iterator[tuple[LoweredGraph, BuildSpec]]:
    """Yield the graph that TensorRT parsed for an engine, and what it was told beside it.

    The model is the ONNX file that `build` was given, or what it made of it: that is made again.
    """
    path = Path(engine)
    manifest = read_manifest(path)  # the file itself is not opened here
    if manifest is None or manifest.target not in MODULES:
        state = f"is for {manifest.target or 'no target'}" if manifest else "has no manifest"
        hint = "give what `qcompile build` made, with its .json beside it"
        problem = f"{path}: {state}; an engine of TensorRT with its manifest is required"
        raise ArtifactError(problem, hint=hint, file=path)
    if manifest.options.get("calibrator"):
        problem = f"{path}: TensorRT was given scales or calibrated, which a manifest does not keep"
        hint = "build it from a file with Q/DQ, which `qcompile quantize` writes"
        raise InvalidOption(problem, hint=hint)
    hint = "give the ONNX file that TensorRT parsed: for INT8 and FP8 the quantized one"
    parsed, digest = manifest.sources.get("graph"), read_graph(Path(model)).digest()
    if digest not in (parsed, manifest.sources.get("model")):
        raise InvalidOption(f"{path}: was not built from {model}", hint=hint, option="graph")
    with ExitStack() as stack:
        try:
            spec = _spec_of(manifest)
            lowered = stack.enter_context(_lowered(find_engine(spec.target), model, spec, progress))
            if read_graph(Path(lowered.path)).digest() != parsed:
                raise InvalidOption("another graph comes out than the engine was built from")
        except InvalidOption as error:
            problem = f"{path}: its graph cannot be made again from {model}: {error.message}"
            raise InvalidOption(problem, hint=hint, option="graph") from error
        yield lowered, spec


def _spec_of(manifest: Manifest, *, only: Collection[str] = ()) -> BuildSpec:
    """What an engine was asked for, or some of it; the places of files are not in a manifest."""

    def options(kind: type) -> dict[str, object]:
        names = {option.name for option in fields_of(kind)}
        names &= set(only) or names
        return {name: value for name, value in manifest.options.items() if name in names}

    # A manifest leaves `float_precision` out where it is fp32.
    recorded = {"target": manifest.target, "precision": manifest.precision, "float_precision": "fp32"}
    return parse_spec(BuildSpec, {**recorded, **options(BuildSpec), "tensorrt": options(TensorRTOptions)})


@contextmanager
def _lowered(
    engine: Engine, model: str | Path, spec: BuildSpec, progress: Progress
) -> Iterator[LoweredGraph]:
    """A graph that the engine can build from, which lives as long as this."""
    engine.require_builder()
    with temporary_folder("build", model) as folder:
        graph = folder / Path(model).name
        yield lower(model, spec, engine, graph, progress=progress)
