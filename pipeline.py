"""`qcompile run`: a recipe becomes stages; each is done once, and again only when something changed.

export ─ simplify ─┬─ calibrate ─┐
                   └─────────────┴─ quantize, build (per artifact) ─ bench
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .artifact import tool_versions
from .model.source import digest_source, parse_source
from .progress import Progress, silent
from .recipe import BASELINE, ArtifactSection, Recipe, read_recipe
from .shapes import parse_shapes
from .store import Store, Stored

if TYPE_CHECKING:
    from .bench import Results

_EXPORT_TOOLS = ("torch", "onnx", "onnxscript", "onnxruntime")
_ONNX_TOOLS = ("onnx", "onnxruntime", "numpy")


class StageListener(Protocol):
    """Told of every stage when it is over."""

    def __call__(self, stage: str, state: str, seconds: float, /) -> None:
        """`state` is "done" or "skipped"."""


@dataclass
class RunReport:
    """What a run did.

    Attributes:
        output: Folder of the artifacts.
        stages: Stage to "done" or "skipped", in order.
        artifacts: Artifact name to its file.
        results: What was measured; None for a recipe without `[bench]`.
    """

    output: Path
    stages: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    results: Results | None = None


def run(
    recipe: str | Path | Recipe,
    *,
    output: str | Path | None = None,
    again: tuple[str, ...] = (),
    progress: Progress = silent,
    listener: StageListener | None = None,
) -> RunReport:
    """Carry out a recipe.

    Args:
        recipe: A recipe or its file.
        output: Folder for the artifacts, in place of the recipe's.
        again: Stages to carry out although nothing changed, such as "bench".
        progress: Told of every step.
        listener: Told of every stage when it is over.

    Returns:
        What was done and what was skipped.

    Raises:
        RecipeError: If the recipe is wrong.
        QCompileError: Of the stage that failed; what was done before stays done.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    folder = Path(output) if output is not None else recipe.folder / recipe.output
    store = Store(folder)
    with store.locked():
        road = _Road(recipe, store, again, progress, listener)
        report = road.drive()
        store.forget_old()
    return report


class _Road:
    """One run: the stages in order, each handing its files to the next."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        again: tuple[str, ...],
        progress: Progress,
        listener: StageListener | None,
    ) -> None:
        self.recipe, self.store, self.again = recipe, store, again
        self.progress, self.listener = progress, listener
        self.base = recipe.folder
        self.report = RunReport(store.output)
        self.source = parse_source(recipe.model.source, base=self.base)
        self.source_digest = digest_source(
            self.source, depends=[self.base / name for name in recipe.model.depends]
        )

    def drive(self) -> RunReport:
        exported = self._export()
        model = self._simplify(exported) if self.recipe.model.simplify else exported
        ranges = None
        if any(one.needs_ranges for one in self.recipe.artifact):
            ranges = self._calibrate(model)
        built = {one.name: self._artifact(one, model, ranges) for one in self.recipe.artifact}
        if self.recipe.bench:
            self._bench(built)
        return self.report

    def _stage(self, name: str, key: Mapping[str, Any], work: Callable[[Path], None]) -> Stored:
        start = time.monotonic()

        def told(text: str, done: int = 0, total: int | None = None, /) -> None:
            self.progress(f"{name}: {text}", done, total)

        self._told = told
        again = any(name == wanted or name.startswith(f"{wanted}-") for wanted in self.again)
        stored = self.store.run(name, key, work, again=again)
        state = "skipped" if stored.was_done else "done"
        self.report.stages[name] = state
        if self.listener:
            self.listener(name, state, time.monotonic() - start)
        return stored

    def _file(
        self, stage: str, name: str, key: Mapping[str, Any], work: Callable[[Path], None]
    ) -> tuple[Path, str]:
        """Carry out a stage that writes one artifact; return its file and digest."""
        stored = self._stage(stage, {**key, "file": name}, work)
        return stored.folder / name, stored.files[name]

    def _export(self) -> tuple[Path, str]:
        from .compiler import export

        section, name = self.recipe.model, f"{self.recipe.name}.onnx"
        key = {
            "source": self.source_digest,
            "inputs": section.inputs,
            "outputs": section.outputs,
            "dynamic": section.dynamic,
            "opset": section.opset,
            "tools": tool_versions(*_EXPORT_TOOLS),
        }

        def work(folder: Path) -> None:
            export(
                self.source,
                folder / name,
                inputs=section.inputs,
                outputs=section.outputs,
                dynamic=section.dynamic,
                opset_version=section.opset,
                progress=self._told,
            )

        return self._file("export", name, key, work)

    def _simplify(self, model: tuple[Path, str]) -> tuple[Path, str]:
        from .compiler import simplify

        path, digest = model
        name = f"{self.recipe.name}.simplified.onnx"
        key = {"model": digest, "tools": tool_versions("onnxsim", *_ONNX_TOOLS)}

        def work(folder: Path) -> None:
            simplify(path, folder / name, progress=self._told)

        return self._file("simplify", name, key, work)

    def _calibrate(self, model: tuple[Path, str]) -> tuple[Path, str]:
        from .calibration import Data, calibrate
        from .model.onnx_file import read_io

        path, digest = model
        name, section = f"{self.recipe.name}.ranges", self.recipe.calibrate
        data = Data(
            self.recipe.data.calibration,
            read_io(path).inputs,
            batch_size=section.batch_size or None,
            limit=section.samples or None,
            base=self.base,
        )
        key = {
            "model": digest,
            "data": data.digest(),
            "method": section.method,
            "samples": section.samples,
            "batch_size": section.batch_size,
            "tools": tool_versions(*_ONNX_TOOLS),
        }

        def work(folder: Path) -> None:
            calibrate(path, data, folder / name, method=section.method, progress=self._told)

        return self._file("calibrate", name, key, work)

    def _artifact(
        self, one: ArtifactSection, model: tuple[Path, str], ranges: tuple[Path, str] | None
    ) -> tuple[Path, str]:
        from .engines.registry import engine

        if engine(one.target).takes == "pytorch":
            return self._build(one, str(self.source.absolute), self.source_digest)
        if one.precision == "int8" or (one.precision == "fp16" and one.target != "tensorrt"):
            model = self._quantize(one, model, ranges if one.needs_ranges else None)
        return self._build(one, str(model[0]), model[1])

    def _quantize(
        self, one: ArtifactSection, model: tuple[Path, str], ranges: tuple[Path, str] | None
    ) -> tuple[Path, str]:
        from .compiler import quantize

        path, digest = model
        name = f"{one.name}.graph.onnx"
        key = {
            "model": digest,
            "ranges": ranges[1] if ranges else "",
            "target": one.target,
            "precision": one.precision,
            "mode": one.mode,
            "method": one.method,
            "exclude": one.exclude,
            "tools": tool_versions(*_ONNX_TOOLS),
        }

        def work(folder: Path) -> None:
            quantize(
                path,
                folder / name,
                ranges=ranges[0] if ranges else None,
                target="onnxruntime" if one.target == "onnxruntime" else "tensorrt",
                precision="fp16" if one.precision == "fp16" else "int8",
                mode="dynamic" if one.mode == "dynamic" else "static",
                method=one.method or None,
                exclude=one.exclude,
                data=self._data(self.recipe.data.calibration),
                progress=self._told,
            )

        return self._file(f"quantize-{one.name}", name, key, work)

    def _build(self, one: ArtifactSection, model: str, digest: str) -> tuple[Path, str]:
        from .engines.onnx_runtime.processor import processor
        from .engines.registry import engine
        from .intent import build

        name = f"{one.name}{engine(one.target).suffix}"
        shapes = {
            kind: parse_shapes(getattr(one, kind), option=kind)
            for kind in ("min_shapes", "opt_shapes", "max_shapes")
        }
        key = {
            "model": digest,
            "target": one.target,
            "precision": one.precision,
            "gpus": one.gpus,
            "shapes": {kind: sorted(found.items()) for kind, found in shapes.items()},
            "inputs": self.recipe.model.inputs if one.target == "torchscript" else (),
            "processor": processor() if not one.gpus else {},
            "allow_fallback": one.allow_fallback,
            "tools": tool_versions("torch", "tensorrt", "tensorrt-rtx", *_ONNX_TOOLS),
        }

        def work(folder: Path) -> None:
            build(
                model,
                folder / name,
                target=one.target,
                precision=one.precision,
                gpus=one.gpus,
                min_shapes=shapes["min_shapes"],
                opt_shapes=shapes["opt_shapes"],
                max_shapes=shapes["max_shapes"],
                inputs=self.recipe.model.inputs,
                allow_fallback=one.allow_fallback,
                progress=self._told,
            )

        stored = self._file(f"build-{one.name}", name, key, work)
        self.report.artifacts[one.name] = self.store.output / name
        return stored

    def _bench(self, built: Mapping[str, tuple[Path, str]]) -> None:
        from .bench import benchmark, load_results
        from .engines.onnx_runtime.processor import processor

        section = self.recipe.bench
        assert section is not None
        evaluation = self._data(self.recipe.data.evaluation)
        names = {BASELINE: self.source.absolute}
        names |= {name: _shown(self.store.output / path.name) for name, (path, _) in built.items()}
        key = {
            "artifacts": {name: digest for name, (_, digest) in built.items()},
            "source": self.source_digest,
            "evaluation": _digest_data(evaluation),
            "settings": [
                section.batch_size, section.threads, section.max_time_s, section.precision_target,
                section.metric, section.baseline,
            ],
            "machine": {**processor(), "cores": os.cpu_count()},
            "tools": tool_versions("torch", "onnxruntime", "polygraphy", "numpy"),
        }  # fmt: skip

        def work(folder: Path) -> None:
            benchmark(
                names,
                baseline=section.baseline,
                output=folder / "results.json",
                inputs=() if built else self.recipe.model.inputs,
                batch_size=section.batch_size,
                threads=section.threads,
                data=evaluation,
                evaluation=evaluation,
                metric=section.metric,
                precision_target=section.precision_target,
                max_time_s=section.max_time_s,
                progress=self._told,
            )

        stored = self._stage("bench", key, work)
        self.report.results = load_results(stored.folder / "results.json")

    def _data(self, spec: str) -> str | None:
        """A data spelling that does not depend on the working folder."""
        if not spec:
            return None
        if ":" in spec and spec.rpartition(":")[2].isidentifier():
            return parse_source(spec, base=self.base).absolute
        return str((self.base / spec).resolve())


def _digest_data(spec: str | None) -> str:
    from .calibration import Data

    return Data(spec, ()).digest() if spec else ""


def _shown(path: Path) -> str:
    """Relative to the working folder where that is shorter: what a user would type."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
