"""The stages of a recipe: for each, the file it writes, all that its outcome depends on, and the work.

The key is made of digests, options and versions alone, without running or importing anything heavy, so
that a run in which nothing changed ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import accepting, checked_input, known_digest, tool_versions
from ..model.load import digest_preprocessing
from ..model.source import Source, parse_source
from ..processor import isa_here, processor
from ..progress import Progress
from ..spec.artifacts import BuildSpec, with_floats
from ..spec.decode import key as options_key
from ..spec.decode import shared
from ..spec.tensorrt import AUTO, OFF, TensorRTOptions
from ..spec.words import CPU_TARGETS, Isa
from .published import GRAPH, SIMPLIFIED
from .recipe import ArtifactSection, Recipe, default_shapes, has_shapes, measured_batches
from .trust import interpreters

if TYPE_CHECKING:
    from ..engines.capabilities import Capabilities

ONNX_TOOLS = ("onnx", "onnxruntime", "numpy")
_OF_THE_SOURCE = ("source", "depends", "trust", "weights", "download", "preprocessing", "simplify")
"""Options of `[model]` whose effect is in the digest of the source, or in a stage of its own."""
_OF_THE_BUILD = (
    "name", "gpus", "min_shapes", "opt_shapes", "max_shapes", "allow_fallback", "strict", "tensorrt",
)  # fmt: skip
"""Options of an artifact that its graph does not depend on, but for what `lower_stage` adds."""


@dataclass(frozen=True)
class Made:
    """A file that a stage wrote: where it is kept, and its digest."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Stage:
    """One piece of work: its name ("quantize-NAME"), the file it writes, and all that its outcome depends on.

    The work is given the file's path and where to tell progress. Files of trials have the same names as
    others, and are not `published` in the output folder.
    """

    name: str
    file: str
    key: Mapping[str, Any]
    work: Callable[[Path, Progress], object]
    published: bool = True


def recipe_source(recipe: Recipe) -> Source:
    """Return the model of a recipe."""
    section = recipe.model
    return parse_source(
        section.source, base=recipe.folder, weights=section.weights, download=section.download
    )


def export_stage(recipe: Recipe, source_digest: str) -> Stage:
    """The model becomes ONNX."""
    section, source = recipe.model, recipe_source(recipe)

    def work(path: Path, progress: Progress) -> object:
        from ..compiler.export import export
        from ..model.load import find_preprocessing

        return export(
            source,
            path,
            inputs=section.inputs,
            outputs=section.outputs,
            dynamic=section.dynamic,
            opset_version=section.opset,
            freeze_branches=section.freeze_branches,
            trust=section.trust,
            preprocessing=find_preprocessing(section.preprocessing, base=recipe.folder)
            if section.preprocessing
            else "",
            python=interpreters(section.python, recipe.folder),
            progress=progress,
        )

    key = {
        "source": source_digest,
        "options": options_key(section, without=_OF_THE_SOURCE),
        "preprocessing": digest_preprocessing(section.preprocessing, base=recipe.folder),
        "tools": tool_versions("torch", "onnxscript", *ONNX_TOOLS),
    }
    return Stage("export", f"{recipe.name}.onnx", key, work)


def simplify_stage(recipe: Recipe, model: Made) -> Stage:
    """The ONNX file loses what it computes for nothing."""

    def work(path: Path, progress: Progress) -> object:
        from ..compiler.simplify.simplify import simplify

        return simplify(model.path, path, progress=progress)

    key = {"model": model.digest, "tools": tool_versions("onnxsim", *ONNX_TOOLS)}
    return Stage("simplify", f"{recipe.name}{SIMPLIFIED}", key, work)


def calibrate_stage(
    recipe: Recipe, model: Made, checkpoint: Path, *, shard: str = "", parts: Sequence[Made] = ()
) -> Stage:
    """Samples become ranges.

    With `shard` only that part of them is observed, as a stage of its own. With `parts`, the ranges of all
    shards, they are merged to what observing all would give, bit for bit: it is the same stage.
    """
    from ..compiler.quantize.int8.placement import graph_target
    from ..data.batches import Data
    from ..model.weightless import read_weightless

    section = recipe.calibrate
    with accepting(model.path):  # the store knows it; its work reads the file, and looks at its manifest
        inputs = read_weightless(model.path).io.inputs
    data = Data(
        recipe.data.calibration,
        inputs,
        batch_size=1,
        limit=section.samples or None,
        base=recipe.folder,
        depends=recipe.data_depends,
    )

    targets = sorted({graph_target(one.target) for one in recipe.artifact if one.needs_ranges})

    def work(path: Path, progress: Progress) -> object:
        from ..calibration.ranges_file import merge_files
        from ..compiler.quantize.calibrate import calibrate

        if parts:
            return merge_files([part.path for part in parts], path, all_of=data.notes(), progress=progress)
        return calibrate(
            model.path, data, path, method=section.method, shard=shard or "1/1", targets=targets,
            checkpoint=checkpoint, progress=progress,
        )  # fmt: skip

    key = {
        "model": model.digest,
        "data": data.digest(),
        "options": options_key(section, without=("ranges",)),  # a stage of its own
        "targets": targets,
        "tools": tool_versions(*ONNX_TOOLS),
    }
    if not shard:
        return Stage("calibrate", f"{recipe.name}.ranges", key, work)
    part = shard.replace("/", "-of-")
    return Stage(f"calibrate-{part}", f"{recipe.name}.{part}.ranges", {**key, "shard": shard}, work)


def given_ranges(recipe: Recipe) -> Made | None:
    """The ranges that a recipe names in place of a calibration; None where it calibrates."""
    if not recipe.calibrate.ranges:
        return None
    path = checked_input(recipe.folder / recipe.calibrate.ranges, what="ranges file")
    return Made(path, known_digest([path]))


def lower_stage(
    recipe: Recipe, one: ArtifactSection, model: Made, ranges: Made | None, needs: Capabilities
) -> Stage | None:
    """The graph gets what the artifact's engine needs; None where it stays in float."""
    from ..data.batches import Data
    from ..lowering import writes_types

    if not writes_types(one, needs):
        return None
    one = with_floats(with_isa(one))
    spec = _spec(recipe, one, ranges)

    def work(path: Path, progress: Progress) -> object:
        from ..engines.build import require_builder
        from ..lowering import lower

        require_builder(one.target)
        return lower(model.path, spec, needs, path, keep=True, progress=progress)

    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    key = {
        "model": model.digest,
        "ranges": ranges.digest if ranges else "",
        "data": data.digest() if recipe.data.calibration else "",
        "engine": needs.as_json(),
        "options": options_key(one, without=_OF_THE_BUILD),
        "io_formats": one.tensorrt.io_formats,
        "asked": {"strict": one.strict, **processor(), **tool_versions(one.target)}
        if needs.tells_missed
        else {},
        "tools": tool_versions(*ONNX_TOOLS),
    }
    return Stage(f"quantize-{one.name}", f"{one.name}{GRAPH}", key, work)


def build_stage(
    recipe: Recipe,
    one: ArtifactSection,
    model: str,
    digest: str,
    *,
    ranges: Made | None = None,
    graph: Made | None = None,
) -> Stage:
    """A model becomes what a runtime loads, from the graph that was lowered for it, where there is one.

    Without such a graph `ranges` are for TensorRT's calibrator.
    """
    from ..data.batches import Data
    from ..engines.gpu import find_gpu
    from ..engines.registry import engine
    from ..lowering import load_lowered

    one = with_floats(with_isa(one))
    tensorrt = one.target.startswith("tensorrt")
    here = one.target == "tensorrt" or not one.gpus  # TensorRT-RTX builds for GPUs that need not be here
    gpu = find_gpu(one.tensorrt.device) if tensorrt and here else None
    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    covers = tensorrt and not has_shapes(one)
    lowered = load_lowered(graph.path) if graph else None
    spec = _spec(recipe, one, ranges)
    # Other artifacts are checked on random input: other data builds nothing again.
    reads = one.calibrates_itself or (one.needs_ranges and one.target in CPU_TARGETS)
    if not reads:
        spec = replace(spec, data=None)

    def work(path: Path, progress: Progress) -> object:
        from ..building import build, build_lowered
        from ..model.weightless import read_weightless

        shapes: dict[str, Any] = {}
        if covers:
            shapes.update(default_shapes(read_weightless(Path(model)).io.inputs, recipe.bench))
        asked = replace(spec, **shapes)
        if lowered is None:
            return build(model, path, asked, progress=progress)
        return build_lowered(model, path, asked, lowered, progress=progress)

    key = {
        "model": digest,
        "graph": (graph.digest, lowered.as_json()) if graph and lowered else (),
        "options": _build_options(recipe, one),
        "ranges": ranges.digest if ranges else "",
        "data": data.digest() if reads and recipe.data.calibration else "",
        "batches": measured_batches(recipe.bench) if covers else {},
        "inputs": spec.inputs,
        "processor": {} if one.gpus else processor(),
        "gpu": gpu.as_json() if gpu else {},
        "tools": tool_versions("torch", "openvino", "tensorrt", "tensorrt-rtx", *ONNX_TOOLS),
    }
    return Stage(f"build-{one.name}", f"{one.name}{engine(one.target).suffix}", key, work)


def with_isa(one: ArtifactSection, isa: Isa | None = None) -> ArtifactSection:
    """Return an artifact whose "auto" is the instruction set it stands for, by default this processor's.

    Another processor then has another key, and a worker makes what whoever sent the stage asked for.
    """
    if one.isa != "auto" or one.target not in CPU_TARGETS:
        return one
    return replace(one, isa=isa or isa_here())


def _build_options(recipe: Recipe, one: ArtifactSection) -> dict[str, object]:
    """The options of a build: plugins by their content; of a timing cache only whether there is one."""
    tensorrt = one.tensorrt
    options = options_key(replace(one, tensorrt=replace(tensorrt, plugins=(), timing_cache=AUTO)))
    del options["name"]
    plugins = [recipe.folder / name for name in tensorrt.plugins]
    digests = [known_digest([path]) if path.is_file() else str(path) for path in plugins]
    return {**options, "plugins": digests, "timing_cache": tensorrt.timing_cache != OFF}


def _spec(recipe: Recipe, one: ArtifactSection, ranges: Made | None) -> BuildSpec:
    """What a recipe says of an artifact, with files as the recipe's folder has them."""
    from ..engines.registry import engine

    return shared(
        BuildSpec,
        one,
        tensorrt=located_options(recipe, one.tensorrt),
        ranges=ranges.path if ranges else None,
        data=located(recipe, recipe.data.calibration) if one.calibrator != "ranges" else None,
        inputs=recipe.model.inputs if engine(one.target).takes == "pytorch" else (),
    )


def located(recipe: Recipe, spec: str) -> str | None:
    """Return a data spelling that does not depend on the working folder; None for no data."""
    if not spec:
        return None
    from ..data.batches import located as located_data

    return located_data(spec, recipe.folder.resolve())


def located_options(recipe: Recipe, options: TensorRTOptions) -> TensorRTOptions:
    """Return TensorRT's options with files as the recipe's folder has them."""
    plugins = tuple(str(recipe.folder / name) for name in options.plugins)
    kept = options.timing_cache in (AUTO, OFF)
    cache = options.timing_cache if kept else str(recipe.folder / options.timing_cache)
    return replace(options, plugins=plugins, timing_cache=cache)
