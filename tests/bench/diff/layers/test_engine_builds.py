"""The parts of an engine are built by the real TensorRT-RTX: in each precision, it takes every one of them.

What the parts compute is then run by ONNX Runtime, as no engine runs here, with a fault put in on purpose.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import Qc
from faulty_builder import FaultyBuilder, install
from layer_faults import scaled
from simulated_cuda import install as install_gpu
from tensorrt_simulation import make_adapter

import qcompile
from qcompile.bench.diff.layers.compare import engine_pairs, layer_diff
from qcompile.bench.diff.layers.pairing import pair_tensors
from qcompile.bench.diff.layers.rebuild import EngineSource, Rebuilder
from qcompile.bench.diff.layers.sides import Side
from qcompile.building.build import engine_graph
from qcompile.engines.base import BuildRequest
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.builder import build_plan
from qcompile.errors import ArtifactError, InvalidOption

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

SHAPES = {"min_shapes": ["x:1x4x8x8"], "opt_shapes": ["x:2x4x8x8"], "max_shapes": ["x:8x4x8x8"]}
THRESHOLDS = {"fp32": 80.0, "fp16": 40.0, "int8": 15.0}
Files = Callable[..., Path]


class Built:
    """A model, what TensorRT-RTX was given for a precision, and the engine."""

    def __init__(self, folder: Path, tiny_file: Files, samples: Files, precision: str) -> None:
        self.precision, self.folder = precision, folder
        self.model, self.given = tiny_file("residual"), tiny_file("residual")
        options: dict[str, Any] = {"precision": precision}
        if precision == "int8":
            data, ranges = samples("residual"), folder / "m.ranges"
            qcompile.calibrate(self.model, str(data), ranges, targets=["tensorrt"])
            self.given = folder / "int8.onnx"
            qcompile.quantize(self.model, self.given, target="tensorrt", ranges=ranges, data=str(data))
        self.engine = folder / "m.engine"
        qcompile.build(self.given, self.engine, target="tensorrt-rtx", gpus=["sm86"], **options, **SHAPES)


@pytest.fixture(params=THRESHOLDS)
def built(request: pytest.FixtureRequest, tmp_path: Path, tiny_file: Files, samples: Files) -> Built:
    return Built(tmp_path, tiny_file, samples, request.param)


def source_of(built: Built, lowered: Any, spec: Any) -> EngineSource:
    profiles: Any = qcompile.load_artifact(built.engine).manifest.proof["profiles"]
    return EngineSource(Path(lowered.path), spec, lowered.layers, profiles=profiles)


def test_rtx_builds_every_part_and_the_whole_with_debug_tensors(built: Built, tmp_path: Path) -> None:
    with engine_graph(built.engine, built.given) as (lowered, spec):
        assert (spec.gpus, spec.precision) == (("sm86",), built.precision)
        assert [value.name for value in onnx.load(lowered.path).graph.output] == ["y"]
        source = source_of(built, lowered, spec)
        manifest = qcompile.load_artifact(built.engine).manifest
        assert manifest.io is not None
        side = Side(built.engine, "tensorrt-rtx", built.precision, None, manifest.io)
        rebuilder = Rebuilder(source, side, tmp_path, lambda *_: None)
        graph = onnx.load(source.graph)
        pairs = engine_pairs(pair_tensors(onnx.load(built.model), graph), graph).pairs
        assert len(pairs) >= 5
        for pair in pairs:
            part, outputs = rebuilder.build_part([pair.artifact])
            assert part.path.stat().st_size > 1000
            assert [tensor.name for tensor in part.io.outputs] == [outputs[pair.artifact]]
            made = qcompile.load_artifact(part.path).manifest
            assert made.proof["profiles"] == manifest.proof["profiles"]
            assert made.options["gpus"] == ["sm86"]
        everything = [pair.artifact for pair in pairs]
        assert rebuilder.survey == "unfused"
        assert rebuilder.build_whole(everything).path.stat().st_size > 1000
        assert rebuilder.build_part(everything[:2])[0].path.is_file()
        assert rebuilder.builds == len(pairs) + 2


@pytest.mark.parametrize("tensor", ["c1", "a"])
def test_the_fault_is_found_with_few_builds_of_the_real_builder(
    built: Built, tensor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: Files
) -> None:
    real: list[int] = []

    def build_really(request: BuildRequest) -> None:
        outcome = build_plan(load_adapter("tensorrt-rtx"), request)
        assert outcome.kind == "engine"
        real.append(request.output.stat().st_size)

    with engine_graph(built.engine, built.given) as (lowered, spec):
        source = source_of(built, lowered, spec)
        graph = onnx.load(source.graph)
        pairs = engine_pairs(pair_tensors(onnx.load(built.model), graph), graph).pairs
        wrong = next(pair.artifact for pair in pairs if pair.reference == tensor or pair.artifact == tensor)
        gpu = install_gpu(monkeypatch)
        builder = FaultyBuilder(
            make_adapter("rtx", gpu), lambda model, _: scaled(model, wrong, 3.0), before=build_really
        )
        engine = builder.engine(source.graph, tmp_path / "wrong.engine", built.precision)
        install(monkeypatch, builder, tmp_path)
        data = str(samples("residual"))
        diff = layer_diff(str(built.model), str(engine), data=data, samples=4, source=source)
    assert diff.threshold_db == THRESHOLDS[built.precision]
    assert diff.first_bad
    assert diff.layers[0].artifact_tensor == wrong
    assert diff.engine.builds == len(real) <= 3 + math.log2(diff.pairs.paired)
    assert diff.engine.confirmed


@pytest.mark.parametrize(
    ("change", "graph", "error", "words", "hint"),
    [
        ({}, "mlp", InvalidOption, r"was not built from .*mlp\.onnx", "the quantized one"),
        ({"calibrator": "entropy"}, "", InvalidOption, "`calibrator`, whose scales are not in", ""),
        ({"precision": "int8"}, "", InvalidOption, "its graph cannot be made again", "the quantized one"),
        (None, "", ArtifactError, "has no manifest", ""),
    ],
)
def test_a_graph_that_cannot_be_made_again_is_refused(
    tmp_path: Path, tiny_file: Files, samples: Files, change: dict[str, str] | None, graph: str,
    error: type[Exception], words: str, hint: str,
) -> None:  # fmt: skip
    built = Built(tmp_path, tiny_file, samples, "fp32")
    beside = built.engine.with_name("m.engine.json")
    manifest = json.loads(beside.read_text())
    manifest["options"] |= change or {}
    beside.write_text(json.dumps(manifest))
    if change is None:
        beside.unlink()
    with (
        pytest.raises(error, match=words) as caught,
        engine_graph(built.engine, tiny_file(graph) if graph else built.model),
    ):
        pass
    assert hint in caught.value.hint


def test_the_command_looks_inside_an_engine_or_says_why_not(
    tiny_file: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qc: Qc
) -> None:
    model = tiny_file("residual")
    gpu = install_gpu(monkeypatch)
    builder = FaultyBuilder(make_adapter("rtx", gpu), lambda graph, _: scaled(graph, "c2", 1.5))
    engine = builder.engine(model, tmp_path / "wrong.engine")
    install(monkeypatch, builder, tmp_path)

    def diff(reference: Path, *options: str) -> tuple[dict[str, Any], str]:
        said = qc("diff", reference, engine, "--layers", "--samples", 2, "--json", *options)
        assert said.code == 1
        return said.json, said.err

    written = tmp_path / "layers.json"
    told, _ = diff(model, "-o", str(written))
    assert told["first_bad"]["tensor"] == "c2"
    assert told["engine"]["confirmed"] is True
    assert told["engine"]["builds"] == len(builder.parts) <= told["engine"]["max_builds"]
    assert json.loads(written.read_text()) == told

    renamed = onnx.load(model)
    renamed.graph.name = "another file of the same graph"
    other = tmp_path / "other.onnx"
    onnx.save(renamed, other)
    builder.parts.clear()
    told, said = diff(other)
    assert "engine" not in told
    assert "its outputs alone are compared" in said
    assert "was not built from" in said
    told, _ = diff(other, "--graph", str(model))
    assert told["first_bad"]["tensor"] == "c2"
    told, _ = diff(other, "--max-builds", "0")
    assert "engine" not in told
