"""Find the first diverging tensor inside an engine, with few builds of parts of its graph.

1. The engine runs unchanged. If no output diverges, nothing is built.
2. If TensorRT has debug tensors, one build exposes many tensors at once. They are only hints: marking changes
   fusions ("marked"), or names and memory formats are TensorRT's ("unfused"). A second build, which ends with
   the suspected tensor and its parents, confirms the place or shows on which side of it the fault lies.
3. Bisection: each build ends with, and measures, the last tensors of the first half of the region.
4. A build that ends with the first bad tensor alone, and a build that ends with its parents, confirm it.

Bisection assumes that errors do not disappear downstream. If a tensor downstream of a diverging one
does not diverge, the result reports it: a fault may then be hidden upstream of all measured tensors.

Builds: one for the survey, one for its hint, and at most 1 + log2(n) for the bisection of n tensors.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....core.artifact import Manifest, commit
from ....core.files import locked_folder
from ....core.progress import Progress
from ....engines.base import BuildRequest
from ....engines.tensorrt.adapter import Adapter, load_adapter
from ....engines.tensorrt.builder.builder import build_plan
from ....engines.tensorrt.builder.network import can_mark_unfused_tensors
from ....errors import BuildError, InvalidOption, ModelError
from ....model.graph.graph_edits import extract_tensors
from ....model.graph.onnx_file import read_graph, save_onnx
from ....model.outputs.judgement import ErrorSums
from ....spec.artifacts import BuildSpec
from ....spec.decode import non_default_options
from ....spec.tensors import format_shape
from .outcome import EngineSearch
from .search import ABRUPT_DB, LayerSearch, Search, pack_groups
from .sides import Side
from .taps import LayerRuns

Profile = Mapping[str, Mapping[str, Sequence[int]]]
_MOST_NAMES = 3


@dataclass(frozen=True)
class EngineSource:
    """The graph and the options that an engine was built from.

    Attributes:
        graph: The ONNX file that TensorRT parsed.
        layers: Node to precision, for layers with a fixed precision in a weakly typed network.
        tf32: Whether float32 products may round to TF32.
        profiles: The engine's optimization profiles: input to its "min", "opt" and "max".
    """

    graph: Path
    spec: BuildSpec
    layers: Mapping[str, str] = field(default_factory=dict)
    tf32: bool = False
    profiles: Sequence[Profile] = ()


class Rebuilder:
    """Builds engines of parts of one graph in `folder`; each build replaces the previous one."""

    def __init__(self, source: EngineSource, engine: Side, folder: Path, progress: Progress) -> None:
        self.source, self.engine, self.folder, self.progress = source, engine, folder, progress
        self.builds = 0

    @property
    def survey(self) -> str:
        """How this TensorRT exposes many tensors at once: "unfused", "marked", or "" if it cannot."""
        adapter = self._adapter()
        if not hasattr(adapter.module, "IDebugListener"):
            return ""
        return "unfused" if can_mark_unfused_tensors(adapter) else "marked"

    @property
    def types_are_weak(self) -> bool:
        """Whether TensorRT chooses the types of layers, separately in each build."""
        return self.engine.precision != "fp32" and not self._adapter().strongly_typed

    def build_part(self, names: Sequence[str]) -> tuple[Side, dict[str, str]]:
        """Build the graph up to these tensors; return the part, and each tensor's output name."""
        model = read_graph(self.source.graph).load()
        outputs = extract_tensors(model, names)
        with locked_folder(self.folder, "cut") as place:
            file = place / "part.onnx"
            save_onnx(model, file)
            del model
            return self._build(file, debug=()), outputs

    def build_whole(self, debug: Sequence[str]) -> Side:
        """Build the whole graph with debug tensors: all unfused ones if TensorRT can, else `debug`."""
        return self._build(self.source.graph, debug=None if self.survey == "unfused" else debug)

    def _build(self, file: Path, *, debug: Sequence[str] | None) -> Side:
        self.builds += 1
        graph = read_graph(file).model.graph
        nodes = {node.name for node in graph.node}
        inputs = {value.name for value in graph.input}
        place = self.folder / "part"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        engine = place / "part.engine"
        source = self.source
        request = BuildRequest(
            str(file),
            engine,
            _spec_for(source, inputs),
            source=f"a part of {self.engine.path}",
            layers={name: kind for name, kind in source.layers.items() if name in nodes},
            tf32=source.tf32,
            debug_tensors=debug,
            progress=self.progress,
        )
        outcome = build_plan(self._adapter(), request)
        manifest = Manifest(
            kind=outcome.kind,
            stage="build",
            target=source.spec.target,
            precision=self.engine.precision,
            io=outcome.io,
            tools=outcome.versions,
            device=outcome.device,
            options=non_default_options(request.spec),
            proof=outcome.proof,
        )
        commit(engine, manifest)
        return replace(self.engine, path=engine, io=outcome.io)

    def _adapter(self) -> Adapter:
        return load_adapter(self.source.spec.target)


def _spec_for(source: EngineSource, inputs: set[str]) -> BuildSpec:
    """Return the spec with the engine's profiles, limited to the part's inputs, and linear formats."""
    profiles = [
        ",".join(f"{name}:{_shapes_text(ranges[name])}" for name in ranges if name in inputs)
        for ranges in source.profiles
    ]
    options = replace(
        source.spec.tensorrt, profiles=tuple(filter(None, profiles)), io_formats=(), strip_weights=False
    )
    return replace(source.spec, min_shapes=(), opt_shapes=(), max_shapes=(), tensorrt=options)


def _shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    return "..".join(format_shape(tuple(shapes[kind])) for kind in ("min", "opt", "max"))


class EngineLayerSearch(LayerSearch):
    """A comparison with an engine that rebuilds parts of the engine's graph."""

    runs: EngineRuns

    def __init__(
        self, runs: EngineRuns, most: int, threshold_db: float | None, *, keep: bool, max_builds: int | None
    ) -> None:
        super().__init__(runs, most, threshold_db, keep=keep)
        allowed = 3 + int(math.log2(len(runs.pairs.pairs))) if max_builds is None else max_builds
        self.allowed = runs.most_builds = allowed
        self.limit = allowed - keep
        self.survey = ""
        self.unknown: list[str] = []
        self.ratios: dict[int, float] = {}  # from the latest build of a part
        self.hints: dict[int, float] = {}  # from debug tensors
        self.with_upstream: set[int] = set()  # measured in the same part as a tensor upstream
        self.given_up = False

    def run(self) -> None:
        """Measure until the first bad tensor is confirmed, or no builds remain."""
        self._run_plain()
        if self.search.first_bad(self.threshold_db) is None or not self._has_builds_left():
            return
        self._survey()
        while self._has_builds_left() and not self.given_up:
            region = self.search.region(self.threshold_db)
            indexes = self.search.cut(region, self.most) if region else self._next_to_confirm()
            if not indexes:
                break
            self._measure(indexes)
        self._conclude()

    def engine(self) -> EngineSearch:
        bad = self.search.first_bad(self.threshold_db)
        parents = self.pairs[bad].parents if bad is not None else ()
        return EngineSearch(
            layers=len(self.pairs),
            builds=self.runs.rebuilder.builds,
            max_builds=self.allowed,
            survey=self.survey,
            before={self.pairs[i].reference: self.errors[i].snr_db for i in parents if i in self.errors},
            after_db=self.errors[bad].snr_db if bad is not None else None,
            confirmed=bad is not None and self._is_confirmed(bad),
            unknown=self.unknown,
        )

    def _has_builds_left(self) -> bool:
        return self.runs.rebuilder.builds < self.limit

    def _survey(self) -> None:
        """Locate the fault with one build that has debug tensors, and measure there."""
        kind = self.runs.rebuilder.survey
        if not kind or self.limit < 2:
            return
        try:
            hints, outputs = self.runs.survey()
        except (BuildError, InvalidOption, ModelError) as error:
            self.unknown.append(f"debug tensors cannot be read: {error.message}")
            return
        self.survey = kind
        if self._reproduces(outputs, kind):
            self.hints = {index: sums.snr_db for index, sums in hints.items()}
            hinted = Search([pair.upstream for pair in self.pairs], cap_db=self.search.cap_db)
            hinted.record({**self.search.snr_db, **self.hints})
            hinted_index = hinted.first_bad(self.threshold_db)
            if hinted_index is not None and hinted_index not in self.errors:
                self._measure([*self.pairs[hinted_index].parents, hinted_index])

    def _reproduces(self, outputs: dict[str, ErrorSums], kind: str) -> bool:
        """Return whether the rebuilt whole graph has a bad output where the engine has one."""
        bad = {name for name, sums in self.outputs.items() if sums.snr_db < self.threshold_db}
        rebuilt = {name for name in bad if name in outputs and outputs[name].snr_db < self.threshold_db}
        if rebuilt or not bad & outputs.keys():
            return True
        if kind == "marked":
            self.unknown.append(
                "the fault disappears when every tensor is marked, which prevents fusions: a fusion "
                "contributes to it"
            )
        else:
            self._not_reproduced()
        return False

    def _not_reproduced(self) -> None:
        self.given_up = True
        self.unknown.append(
            "the rebuilt graph does not show the engine's fault: the builder chose differently, such as "
            "kernels by their times, or the file was built in another way"
        )

    def _measure(self, indexes: Sequence[int]) -> None:
        plain = {index: sums for index, sums in self.errors.items() if index not in self.ratios}
        measured = self.runs.measure(indexes)
        for index in indexes:
            if index not in measured:
                self.search.skip(index)
        for index, sums in measured.items():
            self.ratios[index] = sums.snr_db
            has_upstream = any(self.pairs[index].upstream >> other & 1 for other in indexes)
            (self.with_upstream.add if has_upstream else self.with_upstream.discard)(index)
        corrected = [
            index
            for index, sums in measured.items()
            if index in plain and plain[index].snr_db < self.threshold_db <= sums.snr_db
        ]
        if corrected:  # bad outputs of the engine that are correct in a rebuilt part
            self._not_reproduced()
            measured = {index: sums for index, sums in measured.items() if index not in corrected}
        self._take(measured)

    def _next_to_confirm(self) -> list[int]:
        """Return the next tensors to measure for confirmation: the first bad one alone, then its parents."""
        bad = self.search.first_bad(self.threshold_db)
        if bad is None:
            return []
        if (bad not in self.ratios or bad in self.with_upstream) and bad not in self.runs.refused:
            return [bad]
        parents = self.pairs[bad].parents
        return [i for i in parents if i not in self.ratios and i not in self.runs.refused][: self.most]

    def _is_confirmed(self, bad: int) -> bool:
        parents = self.pairs[bad].parents
        return (
            self.ratios.get(bad, math.inf) < self.threshold_db
            and bad not in self.with_upstream
            and all(self.ratios.get(i, -math.inf) >= self.ratios[bad] + ABRUPT_DB for i in parents)
        )

    def _conclude(self) -> None:
        if self.given_up:  # later measurements do not describe the engine
            return
        bad = self.search.first_bad(self.threshold_db)
        region = self.search.region(self.threshold_db)
        if bad is not None and region:
            names = [self.pairs[index].reference for index in region]
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            self.unknown.append(
                f"the fault may lie earlier, at {', '.join(names[:_MOST_NAMES])}{more}: "
                f"{self.runs.rebuilder.builds} of {self.allowed} builds were made"
            )
        elif bad is not None and not self._has_builds_left() and self._next_to_confirm():
            self.unknown.append(
                "the first bad tensor was not confirmed by builds that end with it and with its parents: "
                f"{self.allowed} builds were allowed"
            )
        ratios = {**self.hints, **self.ratios}
        shrinking = [
            (i, j)
            for i, low in ratios.items()
            for j, high in ratios.items()
            if low < self.threshold_db <= high and self.pairs[j].upstream >> i & 1
        ]
        if shrinking:
            i, j = shrinking[0]
            self.unknown.append(
                f"the error shrinks again: {self.pairs[i].reference} has {ratios[i]:.1f} dB, "
                f"{self.pairs[j].reference} downstream {ratios[j]:.1f} dB; a fault upstream of all measured "
                "tensors may be hidden"
            )
        if bad is not None:
            self.unknown.append(
                f"a part ends with {self.pairs[bad].reference}: if the engine fuses that tensor with its "
                "consumers, its kernel differs"
            )
        if self.runs.rebuilder.builds and self.runs.rebuilder.types_are_weak:
            self.unknown.append(
                "types are weak in this TensorRT: it may compute a layer of a part in another precision"
            )


class EngineRuns(LayerRuns):
    """The runs of a comparison with an engine, and the builds of its parts."""

    def __init__(self, source: EngineSource, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.rebuilder = Rebuilder(source, self.artifact, self.folder, self.progress)
        self.most_builds = 0
        del self._cost["artifact"]  # outputs of engines are in GPU memory

    def measure(self, indexes: Sequence[int]) -> dict[int, ErrorSums]:
        """Build and run the graph up to the tensors; return index to error, or fill `refused`."""
        names = {self.pairs.pairs[index].artifact: index for index in indexes}
        self._report_build(f"{len(names)} tensors" if len(names) > 1 else next(iter(names)))
        try:
            part, outputs = self.rebuilder.build_part(list(names))
        except (BuildError, InvalidOption, ModelError) as error:
            self.refused.update(dict.fromkeys(indexes, f"cannot be built: {error.message}"))
            return {}
        written = self._write_reference(indexes)
        by_output = {outputs[name]: index for name, index in names.items()}
        return self._by_index(self._compare(part, by_output, written), by_output)

    def survey(self) -> tuple[dict[int, ErrorSums], dict[str, ErrorSums]]:
        """Build and run the whole graph with debug tensors; return index to error, and output to error.

        They are only hints: TensorRT does not report whether a debug tensor is in row-major order.
        """
        names = {pair.artifact: index for index, pair in enumerate(self.pairs.pairs)}
        self._report_build("the whole graph with debug tensors")
        part = self.rebuilder.build_whole(list(names))
        written = self._folder("taps")
        for group in pack_groups(list(names.values()), self.fits, len(names)):
            self._write_reference(group, into=written)
        errors = self._compare(part, names, written, debug=True)["errors"]
        outputs = {t.name: errors[t.name] for t in part.io.outputs if t.name in errors}
        return {names[name]: sums for name, sums in errors.items()}, outputs

    def save_values(self, indexes: Sequence[int]) -> tuple[Path, Path]:
        """Build a part that ends with the tensors; write their values and the reference's to disk."""
        written = self._write_reference(indexes)
        values = self._folder("kept")
        names = [self.pairs.pairs[index].artifact for index in indexes]
        self._report_build(f"{len(names)} tensors to keep")
        part, outputs = self.rebuilder.build_part(names)
        files = {outputs[name]: self.tap_file(index) for name, index in zip(names, indexes, strict=True)}
        self._run("artifact", f"keep {len(indexes)} tensors", part=part, output_folders=files, write=values)
        return Path(written), Path(values)

    def _compare(
        self, part: Side, by_output: Mapping[str, int], written: str, *, debug: bool = False
    ) -> dict[str, Any]:
        files = {output: self.tap_file(index) for output, index in by_output.items()}
        try:
            return self._run(
                "artifact", "run the part", part=part, outputs=files, reference_outputs=written, debug=debug
            )
        finally:
            shutil.rmtree(written)

    def _report_build(self, text: str) -> None:
        number = self.rebuilder.builds + 1
        self.progress(f"build {number} of at most {self.most_builds}: {text}", number - 1, self.most_builds)
