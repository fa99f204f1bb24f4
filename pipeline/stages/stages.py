"""The stages that make artifacts: inputs, key and work of each.

A key consists of digests, options and versions. Computing it runs nothing and imports nothing heavy, so a run
without changes ends at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.artifact import cached_digest, checked_input, tool_versions, trusting_content
from ...core.processor import isa_here, processor
from ...data.batches import Data
from ...data.kinds import ARRAYS
from ...data.spelling import FUNCTION, parse_spelling
from ...engines.gpu import find_gpu
from ...engines.registry import capabilities_of, engine, packages_of
from ...errors import QCompileError
from ...model.sources.load import digest_preprocessing
from ...model.sources.source import TENSORFLOW_KINDS
from ...spec.artifacts import ArtifactSection, BuildSpec, with_floats
from ...spec.decode import key as options_key
from ...spec.decode import shared
from ...spec.engines import BUILT_IN
from ...spec.models import CalibrateSpec
from ...spec.tensorrt import AUTO, OFF
from ...spec.tensors import TensorInfo
from ...spec.words import CPU_TARGETS, TENSORRT_TARGETS, GraphTarget, Isa
from ..recipe.batches import default_shapes, has_shapes, measured_batches
from ..recipe.recipe import Recipe, recipe_source
from ..recipe.trust import interpreters
from .stage import ANY, SOURCE, Executor, Key, Needs, Stage, StageFile, StageJob, built_on, find_artifact
from .store import FOLDER

ONNX_TOOLS = ("onnx", "onnxruntime", "numpy")
_ASSUMED_SAMPLES = 256
_SOURCE_OPTIONS = ("source", "depends", "trust", "weights", "download", "preprocessing", "simplify")
"""Options of `[model]` that the source's digest, another entry of the key or another stage covers."""
_UNDECLARED_INPUTS = ("file", "module", "pt2", "torchscript")
"""Kinds of sources that do not declare their inputs."""
_BUILD_OPTIONS = (
    "name", "fallback", "gpus", "min_shapes", "opt_shapes", "max_shapes", "allow_fallback", "strict",
    "tensorrt",
)  # fmt: skip
"""Options of an artifact without effect on its graph, except those that `quantize_key` adds."""


def takes_pytorch(artifact: ArtifactSection) -> bool:
    """Whether an artifact is built from the source itself, not from ONNX."""
    return engine(artifact.target).takes == "pytorch"


def model_of(recipe: Recipe) -> dict[str, str]:
    """Return role "model" to the kind of the stage that writes the ONNX file for later stages."""
    return {"model": "simplify" if recipe.model.simplify else "export"}


def export_work(recipe: Recipe, _: Stage, job: StageJob) -> object:
    from ...compiler.export import export
    from ...model.sources.load import find_preprocessing

    section, preprocessing = recipe.model, recipe.model.preprocessing
    return export(
        recipe_source(recipe),
        job.path,
        section,
        data=located(recipe, _shape_data(recipe)),
        preprocessing=find_preprocessing(preprocessing, base=recipe.folder) if preprocessing else "",
        python=interpreters(section.python, recipe.folder),
        progress=job.progress,
    )


def export_key(recipe: Recipe, stage: Stage) -> Key:
    section = recipe.model
    return {
        "source": stage.source_digest,
        "options": options_key(section, without=_SOURCE_OPTIONS),
        "preprocessing": digest_preprocessing(section.preprocessing, base=recipe.folder),
        "tools": tool_versions("torch", "onnxscript", *ONNX_TOOLS),
        **({"data": data_of(recipe, data).digest()} if (data := _shape_data(recipe)) else {}),
    }


def _shape_data(recipe: Recipe) -> str:
    """Return the calibration data if it defines the shapes of undeclared inputs, else an empty text."""
    spec, source = recipe.data.calibration, recipe_source(recipe)
    if not spec or recipe.model.inputs or recipe.model.dynamic or source.kind not in _UNDECLARED_INPUTS:
        return ""
    return spec if data_of(recipe, spec).spelling.kind in (FUNCTION, *ARRAYS) else ""


def export_needs(recipe: Recipe, _: Stage) -> Needs:
    """Require torch only for a model that PyTorch exports."""
    is_pytorch = recipe_source(recipe).kind not in ("onnx", *TENSORFLOW_KINDS)
    return Needs(("export",) if is_pytorch else (), ("onnxruntime",))


def simplify_work(_: Recipe, stage: Stage, job: StageJob) -> object:
    from ...compiler.simplify.simplify import simplify

    return simplify(stage.files["model"].path, job.path, progress=job.progress)


def simplify_key(_: Recipe, stage: Stage) -> Key:
    return {"model": stage.files["model"].digest, "tools": tool_versions("onnxsim", *ONNX_TOOLS)}


def calibrate_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Observe the samples or one shard; with `parts`, merge the shards, bit-identical to one calibration."""
    from ...calibration.ranges_file import merge_files
    from ...compiler.quantize.calibrate import calibrate
    from ...model.graph.onnx_file import read_weightless

    path, section = stage.files["model"].path, recipe.calibrate
    with trusting_content(path):  # only its inputs are read here; `calibrate` checks the manifest
        inputs = read_weightless(path).io.inputs
    data = data_of(recipe, recipe.data.calibration, inputs, limit=section.samples, batch_size=1)
    if stage.parts:
        parts = [part.path for part in stage.parts.values()]
        return merge_files(parts, job.path, all_of=data.notes(), progress=job.progress)
    targets = tuple(_placements(recipe))
    spec = CalibrateSpec(method=section.method, shard=stage.shard or "1/1", targets=targets)
    checkpoint = job.output / FOLDER / f"{stage.name}.checkpoint"
    return calibrate(path, data, job.path, spec, checkpoint=checkpoint, progress=job.progress)


def calibrate_key(recipe: Recipe, stage: Stage) -> Key:
    return {
        "model": stage.files["model"].digest,
        "data": data_of(recipe, recipe.data.calibration, limit=recipe.calibrate.samples).digest(),
        "options": options_key(recipe.calibrate, without=("ranges",)),  # `ranges` replaces the stage
        "targets": _placements(recipe),
        "tools": tool_versions(*ONNX_TOOLS),
        **({"shard": stage.shard} if stage.shard else {}),
    }


def count_samples(recipe: Recipe, spec: str) -> int:
    """Return the number of samples; 256 if only reading all of them would show it."""
    total = None
    with contextlib.suppress(QCompileError):
        total = data_of(recipe, spec).total if spec else 0
    return _ASSUMED_SAMPLES if total is None else total


def calibration_samples(recipe: Recipe) -> int:
    """Return the number of samples to calibrate on, at most `calibrate.samples`."""
    total = count_samples(recipe, recipe.data.calibration)
    return min(total, recipe.calibrate.samples or total)


def calibrate_parts(
    recipe: Recipe, stage: Stage, executor: Executor, is_done: Callable[[], bool]
) -> list[Stage]:
    """Split a calibration into a part of the samples per worker, unless the whole is done."""
    number = min(executor.shards, calibration_samples(recipe)) if executor.shards > 1 else 1
    if number < 2 or is_done():
        return [stage]
    return [replace(stage, shard=f"{part}/{number}") for part in range(1, number + 1)]


def ranges_file(recipe: Recipe, stage: Stage) -> str:
    """Return the name of the ranges file of all samples, or of a shard."""
    return ".".join(filter(None, [recipe.name, stage.shard.replace("/", "-of-"), "ranges"]))


def _placements(recipe: Recipe) -> list[GraphTarget]:
    from ...model.graph.graph_rules import graph_target

    return sorted({graph_target(artifact.target) for artifact in recipe.artifact if artifact.needs_ranges})


def data_of(
    recipe: Recipe, spec: str, inputs: Sequence[TensorInfo] = (), *, limit: int = 0, batch_size: int = 0
) -> Data:
    """Return the samples of a recipe's data spelling; only reading batches needs `inputs`."""
    return Data(
        spec, inputs, batch_size=batch_size or None, limit=limit or None,
        base=recipe.folder, depends=recipe.data_depends,
    )  # fmt: skip


def recipe_ranges(recipe: Recipe) -> StageFile | None:
    """Return the ranges file that the recipe names in place of a calibration, or None."""
    if not recipe.calibrate.ranges:
        return None
    path = checked_input(recipe.folder / recipe.calibrate.ranges, what="ranges file")
    return StageFile(path, cached_digest([path]))


def quantize_inputs(recipe: Recipe, artifact: str) -> dict[str, str]:
    """Return the role of the model, and of the ranges if the artifact needs them."""
    needs_ranges = find_artifact(recipe, artifact).needs_ranges
    return model_of(recipe) | ({"ranges": "calibrate"} if needs_ranges else {})


def quantize_applies(recipe: Recipe, stage: Stage) -> bool:
    """Return whether the graph is quantized or cast; a float graph or PyTorch model is not changed."""
    from ...building.lowered import must_lower

    artifact = find_artifact(recipe, stage.artifact)
    return must_lower(artifact, capabilities_of(engine(artifact.target)))


def quantize_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    from ...building.lower import lower

    artifact = _resolve_artifact(recipe, stage)
    runtime, spec = engine(artifact.target), _build_spec(recipe, artifact, stage.files.get("ranges"))
    runtime.require_builder()
    return lower(stage.files["model"].path, spec, runtime, job.path, keep=True, progress=job.progress)


def quantize_key(recipe: Recipe, stage: Stage) -> Key:
    artifact, ranges = _resolve_artifact(recipe, stage), stage.files.get("ranges")
    capabilities = capabilities_of(engine(artifact.target))
    return {
        "model": stage.files["model"].digest,
        "ranges": ranges.digest if ranges else "",
        "data": data_of(recipe, recipe.data.calibration).digest() if recipe.data.calibration else "",
        "engine": capabilities.as_json(),
        "options": options_key(artifact, without=_BUILD_OPTIONS),
        "io_formats": artifact.tensorrt.io_formats,
        "asked": {"strict": artifact.strict, **processor(), **tool_versions(artifact.target)}
        if capabilities.tells_missed
        else {},
        "tools": tool_versions(*ONNX_TOOLS),
    }


def build_inputs(recipe: Recipe, artifact: str) -> dict[str, str]:
    """Return the source for a runtime that takes PyTorch, else the model, its ranges and lowered graph."""
    if takes_pytorch(find_artifact(recipe, artifact)):
        return {SOURCE: ""}
    return {**quantize_inputs(recipe, artifact), "graph": "quantize"}


def build_applies(recipe: Recipe, stage: Stage) -> bool:
    """Return True for every artifact; raise EngineUnavailable if its runtime is missing here."""
    artifact = find_artifact(recipe, stage.artifact)
    return takes_pytorch(artifact) or bool(capabilities_of(engine(artifact.target)))


def build_work(recipe: Recipe, stage: Stage, job: StageJob) -> object:
    """Build from the lowered graph; without one, from the model, with ranges for TensorRT's calibrator."""
    from ...building.build import build_with_fallback
    from ...building.lowered import load_lowered
    from ...model.graph.onnx_file import read_weightless

    artifact, graph = _resolve_artifact(recipe, stage), stage.files.get("graph")
    spec = _build_spec(recipe, artifact, stage.files.get("ranges"))
    spec = spec if _reads_data(artifact) else replace(spec, data=None)
    model = recipe_source(recipe).absolute if takes_pytorch(artifact) else str(stage.files["model"].path)
    lowered = load_lowered(graph.path) if graph else None
    if _needs_default_shapes(artifact) or (lowered and spec.data is not None):
        inputs = read_weightless(Path(model)).io.inputs
        lowered = replace(lowered, inputs=inputs) if lowered else None
        if _needs_default_shapes(artifact):
            spec = replace(spec, **default_shapes(inputs, recipe.bench))  # type: ignore[arg-type]
    return build_with_fallback(model, job.path, spec, lowered, progress=job.progress)


def build_key(recipe: Recipe, stage: Stage) -> Key:
    from ...building.lowered import load_lowered

    artifact, files = _resolve_artifact(recipe, stage), stage.files
    ranges, graph = files.get("ranges"), files.get("graph")
    target, gpus = artifact.target, artifact.gpus
    # TensorRT-RTX can build for GPUs that this machine lacks
    on_this_gpu = target == "tensorrt" or (target in TENSORRT_TARGETS and not gpus)
    gpu = find_gpu(artifact.tensorrt.device) if on_this_gpu else None
    data = recipe.data.calibration if _reads_data(artifact) else ""
    return {
        "model": stage.source_digest if takes_pytorch(artifact) else files["model"].digest,
        "graph": (graph.digest, load_lowered(graph.path).as_json()) if graph else (),
        "options": _build_options(recipe, artifact),
        "ranges": ranges.digest if ranges else "",
        "data": data_of(recipe, data).digest() if data else "",
        "batches": measured_batches(recipe.bench) if _needs_default_shapes(artifact) else {},
        "inputs": recipe.model.inputs if takes_pytorch(artifact) else (),
        "processor": {} if gpus else processor(),
        "gpu": gpu.as_json() if gpu else {},
        "tools": tool_versions(*packages_of([*(row.name for row in BUILT_IN), target]), *ONNX_TOOLS),
    }


def build_needs(recipe: Recipe, stage: Stage) -> Needs:
    """Require the GPU that runs the engine, unless TensorRT-RTX builds ahead of time for other GPUs."""
    artifact = find_artifact(recipe, stage.artifact)
    kind = built_on(artifact)
    gpu = artifact.target.startswith("tensorrt") and not artifact.gpus
    return Needs((artifact.target, *((f"gpu-{kind}",) if kind != ANY else ())), gpu=gpu, as_measured=True)


def _resolve_artifact(recipe: Recipe, stage: Stage) -> ArtifactSection:
    """Return the artifact of a stage with `isa` and `float_precision` resolved on this machine."""
    return with_floats(with_isa(find_artifact(recipe, stage.artifact)))


def _needs_default_shapes(artifact: ArtifactSection) -> bool:
    """Return whether an engine without shapes is built for the measured batch sizes."""
    return artifact.target.startswith("tensorrt") and not has_shapes(artifact)


def _reads_data(artifact: ArtifactSection) -> bool:
    """Return whether a build reads the samples; other builds are checked on random input."""
    return artifact.calibrates_itself or (artifact.needs_ranges and artifact.target in CPU_TARGETS)


def with_isa(artifact: ArtifactSection, isa: Isa | None = None) -> ArtifactSection:
    """Return the artifact with `isa` "auto" replaced, by default by this processor's instruction set.

    The key then depends on it, and a worker quantizes for it instead of its local instruction set.
    """
    if artifact.isa != "auto" or artifact.target not in CPU_TARGETS:
        return artifact
    return replace(artifact, isa=isa or isa_here())


def _build_options(recipe: Recipe, artifact: ArtifactSection) -> dict[str, object]:
    """Return the build options for the key: plugins by digest; of the timing cache, whether it is used."""
    tensorrt = artifact.tensorrt
    options = options_key(replace(artifact, tensorrt=replace(tensorrt, plugins=(), timing_cache=AUTO)))
    del options["name"]
    plugins = [recipe.folder / name for name in tensorrt.plugins]
    digests = [cached_digest([path]) if path.is_file() else str(path) for path in plugins]
    return {**options, "plugins": digests, "timing_cache": tensorrt.timing_cache != OFF}


def _build_spec(recipe: Recipe, artifact: ArtifactSection, ranges: StageFile | None) -> BuildSpec:
    """Return the build spec of an artifact; file names are resolved in the recipe's folder."""
    options = artifact.tensorrt
    plugins = tuple(str(recipe.folder / name) for name in options.plugins)
    cache = options.timing_cache
    if cache not in (AUTO, OFF):
        cache = str(recipe.folder / cache)
    return shared(
        BuildSpec,
        artifact,
        tensorrt=replace(options, plugins=plugins, timing_cache=cache),
        ranges=ranges.path if ranges else None,
        data=located(recipe, recipe.data.calibration) if artifact.calibrator != "ranges" else None,
        inputs=recipe.model.inputs if takes_pytorch(artifact) else (),
    )


def located(recipe: Recipe, spec: str) -> str | None:
    """Return a data spelling that is independent of the working folder; None for no data."""
    if not spec:
        return None
    return str(parse_spelling(spec).located(recipe.folder.resolve()))
