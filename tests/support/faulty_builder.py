"""A TensorRT that miscompiles: what it builds computes, with faults put in on purpose.

It stands where `bench.diff.layers.rebuild` builds: parts of a graph become engines of `simulated_plan`, which
the real runner runs on the simulated GPU. A fault is a change to the model that an engine computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from simulated_plan import write_plan
from tensorrt_simulation import rows

from qcompile.bench.diff.layers import job, rebuild, taps
from qcompile.bench.diff.layers.job import Job, run_job
from qcompile.bench.diff.layers.rebuild import EngineSource
from qcompile.core.artifact import Manifest, commit
from qcompile.core.files import writing
from qcompile.engines.base import BuildOutcome, BuildRequest
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.engine import TensorRT
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.model.graph.graph import infer_types, model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.spec.artifacts import BuildSpec

Fault = Callable[[onnx.ModelProto, set[str]], onnx.ModelProto]
"""Changes a model; told the tensors that cannot be inside a fusion: outputs, and those that are marked."""


@dataclass
class FaultyBuilder:
    """Builds engines, and says what it was asked for.

    Attributes:
        adapter: The TensorRT that it stands for.
        fault: What it does wrong.
        fused: Tensors that it fuses away where nothing keeps them out: they are never shown as unfused.
        shape: Rows of the dynamic first axis of each input: least, usual, largest.
        before: Called with each request first, such as a builder of the real TensorRT-RTX.
        parts: What each build ended with.
    """

    adapter: Adapter
    fault: Fault
    fused: Sequence[str] = ()
    shape: tuple[int, int, int] = (1, 2, 8)
    before: Callable[[BuildRequest], Any] = lambda _: None
    parts: list[list[str]] = field(default_factory=list)

    @property
    def version(self) -> str:
        """As `recorded_tensorrt` calls it."""
        known = {"8.5.3.1": "8.5.3", "10.16.1.11": "10.16", "11.4.0.106": "11.4", "1.7.1.116": "rtx"}
        return known[self.adapter.version]

    def __call__(self, adapter: Adapter, request: BuildRequest) -> BuildOutcome:
        assert adapter is self.adapter
        self.before(request)
        model = read_graph(Path(request.model)).load()
        self.parts.append([value.name for value in model.graph.output])
        profiles = self.write(model, request.output, request.debug_tensors)
        return BuildOutcome(
            "engine", model_io(model), 0, 0, proof={"profiles": profiles}, device={"gpus": ["sm86"]},
            versions={adapter.package: adapter.version},
        )  # fmt: skip

    def write(
        self, model: onnx.ModelProto, path: Path, debug: Sequence[str] | None = ()
    ) -> list[dict[str, dict[str, list[int]]]]:
        """Write an engine with the fault, and return its profiles."""
        held = {value.name for value in model.graph.output}
        computed = self.fault(_copy(model), held | set(debug or ()))
        ranges, unfused = rows(model, *self.shape), []
        if debug is None:
            made = {name for node in computed.graph.node for name in node.output} - {*self.fused}
            floats = [name for name, kind in infer_types(computed).items() if kind == "float32"]
            unfused = [name for name in floats if name in made]
        write_plan(path, computed, self.version, profiles=[ranges], marked=list(debug or ()), unfused=unfused)
        kinds = ("min", "opt", "max")
        return [{name: dict(zip(kinds, shapes, strict=True)) for name, shapes in ranges.items()}]

    def engine(self, graph: Path, output: Path, precision: str = "fp32") -> Path:
        """Write the engine of a whole graph with its manifest, as `build` does."""
        model = read_graph(graph).load()
        with writing(output) as path:
            profiles = self.write(model, path)
            digest = read_graph(graph).digest()
            manifest = Manifest(
                kind="engine", stage="build", target=self.adapter.target, precision=precision,
                io=model_io(model), sources={"model": digest, "graph": digest},
                tools={self.adapter.package: self.adapter.version}, device={"gpus": ["sm86"]},
                proof={"profiles": profiles},
            )  # fmt: skip
            commit(path, manifest)
        return output

    def source(self, graph: Path) -> EngineSource:
        """What `engine` was built from."""
        spec = BuildSpec(target=self.adapter.target)  # type: ignore[arg-type]
        profiles = self.write(read_graph(graph).load(), graph.with_suffix(".unused"))
        return EngineSource(graph, spec, profiles=profiles)


def install(monkeypatch: pytest.MonkeyPatch, builder: FaultyBuilder, folder: Path) -> None:
    """Let a comparison of layers build and run with the stand-ins, in this process."""

    def load(path: str, **named: Any) -> TensorRTRunner | Any:
        if Path(path).suffix != ".engine":
            return real_load(path, **named)
        return TensorRTRunner(builder.adapter, Path(path), declared=named["io"])

    def run(one: Job, *_: object) -> dict[str, Any]:
        place = folder / "jobs" / str(len(list(folder.glob("jobs/*"))))
        place.mkdir(parents=True)
        return run_job({**vars(one), "folder": str(place)}, lambda _: None)

    real_load = job.load
    monkeypatch.setattr(job, "load", load)
    monkeypatch.setattr(taps, "run", run)
    monkeypatch.setattr(rebuild, "build_plan", builder)
    monkeypatch.setattr(rebuild, "load_adapter", lambda _: builder.adapter)
    monkeypatch.setattr(TensorRT, "why_not_run", lambda _: "")


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
