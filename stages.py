"""The stages of a recipe: for each, the file it writes, all that its outcome depends on, and the work.

The key is made of digests, options and versions alone, without running or importing anything heavy, so
that a run in which nothing changed ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .artifact import tool_versions
from .engines.tensorrt.options import TensorRTOptions
from .model.source import Source, parse_source
from .progress import Progress
from .recipe import ArtifactSection, Recipe
from .recipe_batches import default_shapes, has_shapes, measured_batches
from .shapes import parse_shapes

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
        from .compiler import export

        return export(
            source,
            path,
            inputs=section.inputs,
            outputs=section.outputs,
            dynamic=section.dynamic,
            opset_version=section.opset,
            progress=progress,
        )

    key = {
        "source": source_digest,
        "inputs": section.inputs,
        "outputs": section.outputs,
        "dynamic": section.dynamic,
        "opset": section.opset,
        "tools": tool_versions("torch", "onnxscript", *ONNX_TOOLS),
    }
    return Stage("export", f"{recipe.name}.onnx", key, work)


def simplify_stage(recipe: Recipe, model: Made) -> Stage:
    """The ONNX file loses what it computes for nothing."""

    def work(path: Path, progress: Progress) -> object:
        from .compiler import simplify

        return simplify(model.path, path, progress=progress)

    key = {"model": model.digest, "tools": tool_versions("onnxsim", *ONNX_TOOLS)}
    return Stage("simplify", f"{recipe.name}.simplified.onnx", key, work)


def balance_stage(recipe: Recipe, model: Made) -> Stage:
    """Channels are evened out between layers."""
    from .calibration import Data

    calibration = located(recipe, recipe.data.calibration)
    assert calibration is not None, "read_recipe looks first"

    def work(path: Path, progress: Progress) -> object:
        from .compiler import balance

        return balance(model.path, path, data=calibration, progress=progress)

    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)
    key = {"model": model.digest, "data": data.digest(), "tools": tool_versions(*ONNX_TOOLS)}
    return Stage("balance", f"{recipe.name}.balanced.onnx", key, work)


def calibrate_stage(recipe: Recipe, model: Made, checkpoint: Path) -> Stage:
    """Samples become ranges."""
    from .calibration import Data
    from .compiler.int8.placement import graph_target
    from .model.outline import read_outline

    section = recipe.calibrate
    data = Data(
        recipe.data.calibration,
        read_outline(model.path).io.inputs,
        batch_size=1,
        limit=section.samples or None,
        base=recipe.folder,
        depends=recipe.data_depends,
    )

    targets = sorted({graph_target(one.target) for one in recipe.artifact if one.needs_ranges})

    def work(path: Path, progress: Progress) -> object:
        from .intent import calibrate

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


def quantize_stage(recipe: Recipe, one: ArtifactSection, model: Made, ranges: Made | None) -> Stage:
    """The graph gets the artifact's precision, placed for its target."""
    from .calibration import Data
    from .engines.processor import processor

    best = one.precision == "best"

    def work(path: Path, progress: Progress) -> object:
        from .compiler import quantize
        from .compiler.int8.placement import graph_target
        from .compiler.request import WeightOptions
        from .engines.base import BuildRequest
        from .engines.registry import engine
        from .preparation import leave_in_float, rest_in_graph

        runtime = engine(one.target)

        def quantized(in_float: Mapping[str, str], data: str | None = None) -> str:
            made = quantize(
                model.path,
                path,
                ranges=ranges.path if ranges else None,
                target=graph_target(one.target),
                precision="int8" if best else one.precision,  # type: ignore[arg-type]  # `read_recipe` checked it
                mode=one.mode,  # type: ignore[arg-type]
                processor=one.processor,  # type: ignore[arg-type]
                method=one.method or None,
                exclude=one.exclude,
                only=one.only,
                layers=one.layer_precisions,
                in_float=in_float,
                rest=rest_in_graph(runtime, "fp16" if best else one.rest),
                correct_bias=one.correct_bias,
                weights=WeightOptions(one.block_size, one.rounding, one.form),
                data=data,
                allow_loss=one.allow_loss,
                progress=progress,
            )
            return str(made.path)

        asked = one.target == "openvino" and one.precision == "int8" and one.mode == "static"
        left: Mapping[str, str] = {}
        if asked and not one.strict and not runtime.why_not_build():
            request = BuildRequest(quantized({}), path, "int8", rest=one.rest, progress=progress)
            left = leave_in_float(runtime, request, quantized)[1]
        return quantized(left, located(recipe, recipe.data.calibration))

    key = {
        "model": model.digest,
        "ranges": ranges.digest if ranges else "",
        "allow_loss": one.allow_loss,
        "target": one.target,
        "precision": one.precision,
        "mode": one.mode,
        "method": one.method,
        "exclude": one.exclude,
        "only": one.only,
        "layers": one.layers,
        "rest": one.rest,
        "processor": one.processor,
        "correct_bias": one.correct_bias,
        "asked": {"strict": one.strict, **processor(), **tool_versions("openvino")}
        if one.target == "openvino"
        else {},
        "weights": (one.block_size, one.rounding, one.form) if one.mode == "weights" else (),
        "data": Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends).digest()
        if recipe.data.calibration
        else "",
        "tools": tool_versions(*ONNX_TOOLS),
    }
    return Stage(f"quantize-{one.name}", f"{one.name}.graph.onnx", key, work)


def build_stage(
    recipe: Recipe, one: ArtifactSection, model: str, digest: str, ranges: Made | None = None
) -> Stage:
    """A graph, or the MODEL itself, becomes what a runtime loads; `ranges` are for TensorRT's calibrator."""
    from .calibration import Data
    from .engines.gpu import find_gpu
    from .engines.processor import processor
    from .engines.registry import engine

    kinds = ("min_shapes", "opt_shapes", "max_shapes")
    shapes = {kind: parse_shapes(getattr(one, kind), option=kind) for kind in kinds}
    tensorrt = one.target.startswith("tensorrt")
    native = one.calibrator not in ("", "ours")
    gpu = find_gpu() if tensorrt and not one.gpus else None
    data = Data(recipe.data.calibration, (), base=recipe.folder, depends=recipe.data_depends)

    covers = tensorrt and not has_shapes(one)

    def work(path: Path, progress: Progress) -> object:
        from .intent import build
        from .model.outline import read_outline

        inputs = read_outline(Path(model)).io.inputs if covers else ()
        ranges_of = shapes | default_shapes(inputs, recipe.bench)
        return build(
            model,
            path,
            target=one.target,
            precision=one.precision,
            gpus=one.gpus,
            min_shapes=ranges_of["min_shapes"],
            opt_shapes=ranges_of["opt_shapes"],
            max_shapes=ranges_of["max_shapes"],
            inputs=recipe.model.inputs,
            allow_fallback=one.allow_fallback,
            strict=one.strict,
            rest=one.rest,
            layers=one.layer_precisions,
            calibrator=one.calibrator,
            ranges=ranges.path if ranges else None,
            method=one.method or None if ranges else None,
            data=located(recipe, recipe.data.calibration) if native else None,
            options=located_options(recipe, one.tensorrt) if tensorrt else None,
            progress=progress,
        )

    key = {
        "model": digest,
        "target": one.target,
        "precision": one.precision,
        "rest": one.rest,
        "layers": one.layers,
        "calibrator": (one.calibrator, ranges.digest if ranges else "", data.digest() if native else ""),
        "tensorrt": one.tensorrt.as_json(),
        "gpus": one.gpus,
        "shapes": {kind: sorted(found.items()) for kind, found in shapes.items()},
        "batches": measured_batches(recipe.bench) if covers else {},
        "inputs": recipe.model.inputs if engine(one.target).takes == "pytorch" else (),
        "processor": {} if one.gpus else processor(),
        "gpu": gpu.as_json() if gpu else {},
        "allow_fallback": one.allow_fallback,
        "strict": one.strict,
        "tools": tool_versions("torch", "tensorrt", "tensorrt-rtx", *ONNX_TOOLS),
    }
    return Stage(f"build-{one.name}", f"{one.name}{engine(one.target).suffix}", key, work)


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
