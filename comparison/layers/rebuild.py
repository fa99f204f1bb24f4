"""Build parts of an engine's graph as the engine was built, so that they show what lies inside."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...artifact import Manifest, commit
from ...engines.base import BuildRequest
from ...engines.tensorrt.adapter import Adapter, load_adapter
from ...engines.tensorrt.builder.builder import build_plan
from ...engines.tensorrt.builder.network import marks_unfused
from ...files import held_folder
from ...model.graph_edits import cut
from ...model.onnx_file import load_onnx, save_onnx
from ...progress import Progress
from ...spec.artifacts import BuildSpec
from ...spec.decode import changed
from ...tensors import format_shape
from .sides import Side

Profile = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class EngineSource:
    """What an engine was built from.

    Attributes:
        graph: The ONNX file that TensorRT parsed.
        spec: What was asked for beside it.
        layers: Node to precision, where types are weak and some were kept.
        tf32: Whether products of float32 may round.
        profiles: The engine's optimization profiles: input to its "min", "opt" and "max".
    """

    graph: Path
    spec: BuildSpec
    layers: Mapping[str, str] = field(default_factory=dict)
    tf32: bool = False
    profiles: Sequence[Profile] = ()


class Rebuilder:
    """Builds engines of parts of one graph, one in place of the other, below `folder`."""

    def __init__(self, source: EngineSource, engine: Side, folder: Path, progress: Progress) -> None:
        self.source, self.engine, self.folder, self.progress = source, engine, folder, progress
        self.builds = 0

    @property
    def survey(self) -> str:
        """How this TensorRT shows many tensors at once: "unfused", "marked", or "" where it cannot."""
        adapter = self._adapter()
        if not hasattr(adapter.module, "IDebugListener"):
            return ""
        return "unfused" if marks_unfused(adapter) else "marked"

    @property
    def types_are_weak(self) -> bool:
        """Whether TensorRT chooses the types of layers, in each build by itself."""
        return self.engine.precision != "fp32" and not self._adapter().strongly_typed

    def part(self, names: Sequence[str]) -> tuple[Side, dict[str, str]]:
        """Build what lies before tensors, and return it with tensor to the output that holds it."""
        model = load_onnx(self.source.graph)
        outputs = cut(model, names)
        nodes = {node.name for node in model.graph.node}
        inputs = {value.name for value in model.graph.input}
        with held_folder(self.folder, "cut") as place:
            file = place / "part.onnx"
            save_onnx(model, file)
            del model
            return self._build(file, nodes=nodes, inputs=inputs, debug=()), outputs

    def whole(self, debug: Sequence[str]) -> Side:
        """Build the whole graph again, with debug tensors: those of names, or where none is fused away."""
        model = load_onnx(self.source.graph, external_data=False)
        nodes = {node.name for node in model.graph.node}
        inputs = {value.name for value in model.graph.input}
        marks = None if self.survey == "unfused" else debug
        return self._build(self.source.graph, nodes=nodes, inputs=inputs, debug=marks)

    def _build(self, graph: Path, *, nodes: set[str], inputs: set[str], debug: Sequence[str] | None) -> Side:
        self.builds += 1
        place = self.folder / "part"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        file = place / "part.engine"
        source = self.source
        request = BuildRequest(
            str(graph),
            file,
            _spec_for(source, inputs),
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
            options=changed(request.spec),
            proof=outcome.proof,
        )
        commit(file, manifest)
        return replace(self.engine, path=file, io=outcome.io)

    def _adapter(self) -> Adapter:
        return load_adapter(self.source.spec.target)


def _spec_for(source: EngineSource, inputs: set[str]) -> BuildSpec:
    """The spec with the engine's own profiles, without the inputs that a part has not; all is linear."""
    profiles = [
        ",".join(f"{name}:{_spelled(ranges[name])}" for name in ranges if name in inputs)
        for ranges in source.profiles
    ]
    options = replace(
        source.spec.tensorrt, profiles=tuple(filter(None, profiles)), io_formats=(), strip_weights=False
    )
    return replace(source.spec, min_shapes=(), opt_shapes=(), max_shapes=(), tensorrt=options)


def _spelled(shapes: Mapping[str, Sequence[int]]) -> str:
    return "..".join(format_shape(tuple(shapes[kind])) for kind in ("min", "opt", "max"))
