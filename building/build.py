"""`build`: lower the graph for its target (`lower`), build the artifact and verify it (`engines/`)."""

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

_MAX_RETRIES = 3
_Spec = TypeVar("_Spec", bound=BuildSpec)
_SUFFIXES = {".engine": (".engine", ".plan"), ".pt": (".pt", ".pth", ".ts", ".jit", ".torchscript")}


def build(
    model: str | Path,
    output: str | Path,
    spec: BuildSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[BuildKeywords],
) -> Artifact:
    """Build an artifact for a target and verify the precision of its layers.

    If INT8 outputs are wrong from one layer on, the build is repeated with that layer in floating point and a
    warning; it fails after three repetitions.

    Args:
        model: ONNX file; a MODEL spelling for target "torchscript".
        output: File to write.
        spec: All options as one object.
        progress: Called at every step.
        options: Fields of `BuildSpec` by name; they override those of `spec`.

    Raises:
        InvalidOption: If an option is wrong, or the graph cannot be converted to the precision.
        EngineUnavailable: If the runtime cannot build here, with the reason.
        BuildError: If the runtime refuses the model.
        IntentNotReached: If too many layers do not have the requested precision, or outputs are wrong.
        ModelError: If a tensor of the graph is larger than any memory.
    """
    checked = _resolve_isa(spec_from_call(BuildSpec, spec, options))
    return build_with_fallback(model, output, checked, progress=progress)


def build_with_fallback(
    model: str | Path,
    output: str | Path,
    checked: BuildSpec,
    lowered: LoweredGraph | None = None,
    *,
    progress: Progress = silent,
) -> Artifact:
    """Build; after an INT8 layer with wrong values build again with it in floating point, up to three times.

    If the caller has lowered the graph already, the first attempt builds from `lowered`.
    """
    runtime = find_engine(checked.target)
    _check_suffix(runtime, Path(output))
    refusal: IntentNotReached | None = None
    warnings: list[str] = []
    for _ in range(_MAX_RETRIES + 1):
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
            warnings.append(f"layer {layer!r} stays in float: {checked.target} computes it wrongly in INT8")
            checked = replace(checked, layers=(*checked.layers, f"{layer}=fp32"))
        except QCompileError as error:
            if refusal is None:
                raise
            raise refusal from error  # the source is quantized already, or no INT8 layer would remain
    assert refusal is not None
    raise refusal


def _resolve_isa(spec: _Spec) -> _Spec:
    """Return the spec with `isa` "auto" resolved for this processor."""
    return replace(spec, isa=resolve_isa(spec.isa, spec.target))


def _check_suffix(engine: Engine, output: Path) -> None:
    """Refuse a file suffix that other verbs would not recognize, such as that of OpenVINO's files."""
    suffixes = _SUFFIXES.get(engine.suffix, (engine.suffix,))
    if output.suffix not in ("", *suffixes):
        problem = f"output {output}: {engine.name} requires a name ending in {' or '.join(suffixes)}"
        raise InvalidOption(problem, hint=f"name it {output.with_suffix(suffixes[0]).name}", option="output")


def plan(
    model: str | Path,
    spec: BuildSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[BuildKeywords],
) -> dict[str, object]:
    """Dry run: lower the graph, run the runtime's checks, and return a description of the build."""
    checked = _resolve_isa(spec_from_call(BuildSpec, spec, options))
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
    """Reduce a build that fails, or computes wrong values, to the smallest graph with the same failure.

    Args:
        model: ONNX file, the same as for `build`.
        output: Folder to write: the graph, its inputs, and a script that needs only the runtime.
        spec: All options as one object.
        progress: Called at every trial.
        options: Fields of `ReproduceSpec` by name; they override those of `spec`.

    Raises:
        ModelError: If nothing fails.
        EngineUnavailable: If the runtime is not installed, or has no script.
    """
    from ..engines.reproducer import make_reproducer

    checked = _resolve_isa(spec_from_call(ReproduceSpec, spec, options))
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
    """Return the build request for a lowered graph, with the samples for the artifact's verification."""
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
    """Replace the weights of a built TensorRT engine without building it again.

    Args:
        engine: Engine built with `refit` or `strip_weights`.
        model: ONNX file of the same structure: the float model if the engine was built from one (it is
            lowered as in the build), the quantized model for INT8 and FP8.
        output: Engine to write; may be the same file.
        progress: Called at every step.

    Raises:
        InvalidOption: If it is not a TensorRT engine.
        EngineUnavailable: If no GPU is available.
        ArtifactError: If the engine is for another version or GPU, or cannot be refitted.
        ModelError: If the graph has other inputs and outputs.
        BuildError: If weights are missing or TensorRT refuses them; the message names them.
    """
    from ..engines.tensorrt.builder.refit import refit_plan

    path = Path(engine)
    manifest = load_artifact(path).manifest
    if manifest.target not in MODULES:
        target = manifest.target or "no target"
        raise InvalidOption(f"{path}: is for {target}; an engine of TensorRT is required")
    # For INT8 and FP8 the quantized model already has the types of its layers.
    fields = ("layers", "exclude", "only") if manifest.precision in ("fp16", "bf16") else ()
    spec = _spec_of(manifest, only=(*fields, "float_precision", "io_formats", "typing", "ignore_faults"))
    with _lowered(find_engine(spec.target), model, spec, progress) as lowered:
        return refit_plan(
            load_adapter(manifest.target), path, Path(lowered.path), Path(output),
            source=str(model), progress=progress,
        )  # fmt: skip


@contextmanager
def engine_graph(
    engine: str | Path, model: str | Path, *, progress: Progress = silent
) -> Iterator[tuple[LoweredGraph, BuildSpec]]:
    """Yield the graph from which TensorRT built an engine, and the spec of that build.

    `model` is the source of the build, which is lowered again, or its quantized graph.
    """
    path = Path(engine)
    manifest = read_manifest(path)  # the engine itself is not opened
    if manifest is None or manifest.target not in MODULES:
        state = f"is for {manifest.target or 'no target'}" if manifest else "has no manifest"
        hint = "give an engine of `qcompile build` with its .json file"
        problem = f"{path}: {state}; an engine of TensorRT with its manifest is required"
        raise ArtifactError(problem, hint=hint, file=path)
    if manifest.options.get("calibrator"):
        problem = f"{path}: was built with `calibrator`, whose scales are not in its manifest"
        hint = "build it from a file with Q/DQ, which `qcompile quantize` writes"
        raise InvalidOption(problem, hint=hint)
    hint = "give the ONNX file that TensorRT parsed: for INT8 and FP8 the quantized one"
    parsed_digest, digest = manifest.sources.get("graph"), read_graph(Path(model)).digest()
    if digest not in (parsed_digest, manifest.sources.get("model")):
        raise InvalidOption(f"{path}: was not built from {model}", hint=hint, option="graph")
    with ExitStack() as stack:
        try:
            spec = _spec_of(manifest)
            lowered = stack.enter_context(_lowered(find_engine(spec.target), model, spec, progress))
            if read_graph(Path(lowered.path)).digest() != parsed_digest:
                raise InvalidOption("the result differs from the engine's graph")
        except InvalidOption as error:
            problem = f"{path}: its graph cannot be made again from {model}: {error.message}"
            raise InvalidOption(problem, hint=hint, option="graph") from error
        yield lowered, spec


def _spec_of(manifest: Manifest, *, only: Collection[str] = ()) -> BuildSpec:
    """Return the spec in a manifest, or the fields `only` of it; a manifest holds no paths of files."""

    def options(kind: type) -> dict[str, object]:
        names = {option.name for option in fields_of(kind)}
        names &= set(only) or names
        return {name: value for name, value in manifest.options.items() if name in names}

    # A manifest omits `float_precision` fp32.
    recorded = {"target": manifest.target, "precision": manifest.precision, "float_precision": "fp32"}
    return parse_spec(BuildSpec, {**recorded, **options(BuildSpec), "tensorrt": options(TensorRTOptions)})


@contextmanager
def _lowered(
    engine: Engine, model: str | Path, spec: BuildSpec, progress: Progress
) -> Iterator[LoweredGraph]:
    """Yield the graph lowered for an engine; its temporary folder is removed at the end of the block."""
    engine.require_builder()
    with temporary_folder("build", model) as folder:
        graph = folder / Path(model).name
        yield lower(model, spec, engine, graph, progress=progress)
