"""The stages of a recipe: for each, the file it writes, all that its outcome depends on, and the work.

The key is made of digests, options and versions alone, without running or importing anything heavy, so
that a run in which nothing changed ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import tool_versions
from ..engines.tensorrt.options import TensorRTOptions
from ..model.source import Source, parse_source
from ..progress import Progress
from ..tensors import parse_shapes
from .recipe import ArtifactSection, Recipe
from .recipe_batches import default_shapes, has_shapes, measured_batches

if TYPE_CHECKING:
    from ..engines.capabilities import Capabilities
    from ..preparation import Intent

ONNX_TOOLS = ("onnx", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Made:
    """A file that a stage wrote: where it is kept, and its digest."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Stage:
    """One piece of work.

    Attributes:
        name: "export", "quantize-NAME", ...
        file: Name of the file it writes.
        key: Everything its outcome depends on.
        work: Writes the file, given its path and where to tell progress.
    """

    name: str
    file: str
    key: Mapping[str, Any]
    work: Callable[[Path, Progress], object]


def export_stage(recipe: Recipe, source: Source, source_digest: str) -> Stage:
    """The model becomes ONNX."""
    section = recipe.model

    def work(path: Path, progress: Progress) -> object:
        from ..compiler.export import export

        return export(
            source,
            path,
            inputs=section.inputs,
            outputs=section.outputs,
            dynamic=section.dynamic,
            opset_version=section.opset,
            freeze_branches=section.freeze_branches,
            progress=progress,
        )

    key = {
        "source": source_digest,
        "inputs": section.inputs,
        "outputs": section.outputs,
        "dynamic": section.dynamic,
        "freeze_branches": section.freeze_branches,
        "opset": section.opset,
        "tools": tool_versions("torch", "onnxscript", *ONNX_TOOLS),
    }
    return Stage("export", f"{recipe.name}.onnx", key, work)


def simplify_stage(recipe: Recipe, model: Made) -> Stage:
    """The ONNX file loses what it computes for nothing."""

    def work(path: Path, progress: Progress) -> object:
        from ..compiler.simplify.simplify import simplify

        return simplify(model.path, path, progress=progress)

    key = {"model": model.digest, "tools": tool_versions("onnxsim", *ONNX_TOOLS)}
    return Stage("simplify", f"{recipe.name}.simplified.onnx", key, work)


def balance_stage(recipe: Recipe, model: Made) -> Stage:
    """Channels are evened out between layers."""
    from ..data.batches import Data

    calibration = located(recipe, recipe.data.calibration)
    assert calibration is not None, "read_recipe looks first"

    def work(path: Path, progress: Progress) -> object:
        from ..compiler.quantize.balance.balance import balance

        return balance(model.path, path, data=calibration, progress=progress)

    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    key = {"model": model.digest, "data": data.digest(), "tools": tool_versions(*ONNX_TOOLS)}
    return Stage("balance", f"{recipe.name}.balanced.onnx", key, work)


def calibrate_stage(recipe: Recipe, model: Made, checkpoint: Path) -> Stage:
    """Samples become ranges."""
    from ..compiler.quantize.int8.placement import graph_target
    from ..data.batches import Data
    from ..model.weightless import read_weightless

    section = recipe.calibrate
    data = Data(
        recipe.data.calibration,
        read_weightless(model.path).io.inputs,
        batch_size=1,
        limit=section.samples or None,
        base=recipe.folder,
        depends=recipe.data_depends,
    )

    targets = sorted({graph_target(one.target) for one in recipe.artifact if one.needs_ranges})

    def work(path: Path, progress: Progress) -> object:
        from ..intent import calibrate

        return calibrate(
            model.path,
            data,
            path,
            method=section.method,
            targets=targets,
            checkpoint=checkpoint,
            progress=progress,
        )

    key = {
        "model": model.digest,
        "data": data.digest(),
        "method": section.method,
        "samples": section.samples,
        "targets": targets,
        "tools": tool_versions(*ONNX_TOOLS),
    }
    return Stage("calibrate", f"{recipe.name}.ranges", key, work)


def lower_stage(
    recipe: Recipe, one: ArtifactSection, model: Made, ranges: Made | None, needs: Capabilities
) -> Stage | None:
    """The graph gets what the artifact's engine needs; None where it stays in float."""
    from ..data.batches import Data
    from ..engines.processor import processor
    from ..lowering import writes_types

    intent = _intent(recipe, one, str(model.path), ranges)
    if not writes_types(intent, needs):
        return None

    def work(path: Path, progress: Progress) -> object:
        from ..engines.build import require_builder
        from ..lowering import lower

        require_builder(one.target)
        return lower(intent, needs, path, keep=True, progress=progress)

    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    key = {
        "model": model.digest,
        "ranges": ranges.digest if ranges else "",
        "data": data.digest() if recipe.data.calibration else "",
        "engine": needs.as_json(),
        "precision": one.precision,
        "mode": one.mode,
        "method": one.method,
        "exclude": one.exclude,
        "only": one.only,
        "layers": one.layers,
        "rest": one.rest,
        "processor": one.processor,
        "correct_bias": one.correct_bias,
        "search": one.search,
        "weights": (one.block_size, one.rounding, one.form),
        "allow_loss": one.allow_loss,
        "io_formats": one.tensorrt.io_formats,
        "asked": {"strict": one.strict, **processor(), **tool_versions(one.target)}
        if needs.tells_missed
        else {},
        "tools": tool_versions(*ONNX_TOOLS),
    }
    return Stage(f"quantize-{one.name}", f"{one.name}.graph.onnx", key, work)


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
    from ..engines.processor import processor
    from ..engines.registry import engine
    from ..lowering import load_lowered

    tensorrt = one.target.startswith("tensorrt")
    native = one.calibrator not in ("", "ours")
    gpu = find_gpu() if tensorrt and not one.gpus else None
    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    covers = tensorrt and not has_shapes(one)
    lowered = load_lowered(graph.path) if graph else None
    intent = _intent(recipe, one, model, ranges)
    if not native:
        intent = replace(intent, data=None)  # it is checked on random input: other data builds nothing again

    def work(path: Path, progress: Progress) -> object:
        from ..intent import build_intent
        from ..model.weightless import read_weightless

        shapes: dict[str, Any] = {}
        if covers:
            shapes.update(default_shapes(read_weightless(Path(model)).io.inputs, recipe.bench))
        return build_intent(
            replace(intent, **shapes),
            path,
            allow_fallback=one.allow_fallback,
            lowered=lowered,
            progress=progress,
        )

    key = {
        "model": digest,
        "graph": (graph.digest, lowered.as_json()) if graph and lowered else (),
        "target": one.target,
        "precision": one.precision,
        "rest": one.rest,
        "layers": one.layers,
        "exclude": one.exclude,
        "only": one.only,
        "calibrator": (one.calibrator, ranges.digest if ranges else "", data.digest() if native else ""),
        "tensorrt": one.tensorrt.as_json(),
        "gpus": one.gpus,
        "shapes": {
            kind: sorted(getattr(intent, kind).items()) for kind in ("min_shapes", "opt_shapes", "max_shapes")
        },
        "batches": measured_batches(recipe.bench) if covers else {},
        "inputs": recipe.model.inputs if engine(one.target).takes == "pytorch" else (),
        "processor": {} if one.gpus else processor(),
        "gpu": gpu.as_json() if gpu else {},
        "allow_fallback": one.allow_fallback,
        "strict": one.strict,
        "tools": tool_versions("torch", "openvino", "tensorrt", "tensorrt-rtx", *ONNX_TOOLS),
    }
    return Stage(f"build-{one.name}", f"{one.name}{engine(one.target).suffix}", key, work)


def _intent(recipe: Recipe, one: ArtifactSection, model: str, ranges: Made | None) -> Intent:
    """What a recipe says of an artifact, with files as the recipe's folder has them."""
    from ..compiler.quantize.request import WeightOptions
    from ..preparation import Intent

    tensorrt = one.target.startswith("tensorrt")
    return Intent(
        model,
        one.target,
        one.precision,
        ranges=ranges.path if ranges else None,
        method=one.method or None,
        gpus=one.gpus,
        min_shapes=parse_shapes(one.min_shapes, option="min_shapes"),
        opt_shapes=parse_shapes(one.opt_shapes, option="opt_shapes"),
        max_shapes=parse_shapes(one.max_shapes, option="max_shapes"),
        inputs=recipe.model.inputs,
        rest=one.rest,
        layers=one.layer_precisions,
        calibrator=one.calibrator,
        data=located(recipe, recipe.data.calibration) if one.calibrator != "ours" else None,
        options=located_options(recipe, one.tensorrt) if tensorrt else None,
        strict=one.strict,
        allow_loss=one.allow_loss,
        mode=one.mode,
        processor=one.processor,
        exclude=one.exclude,
        only=one.only,
        correct_bias=one.correct_bias,
        search=one.search,
        weights=WeightOptions(one.block_size, one.rounding, one.form),
    )


def located(recipe: Recipe, spec: str) -> str | None:
    """Return a data spelling that does not depend on the working folder; None for no data."""
    if not spec:
        return None
    if ":" in spec and spec.rpartition(":")[2].isidentifier():
        return parse_source(spec, base=recipe.folder).absolute
    return str((recipe.folder / spec).resolve())


def located_options(recipe: Recipe, options: TensorRTOptions) -> TensorRTOptions:
    """Return TensorRT's options with files as the recipe's folder has them."""
    plugins = tuple(str(recipe.folder / name) for name in options.plugins)
    kept = options.timing_cache in ("auto", "off")
    cache = options.timing_cache if kept else str(recipe.folder / options.timing_cache)
    return replace(options, plugins=plugins, timing_cache=cache)
