"""Eight architectures from PyTorch to engines for four GPUs, by the real TensorRT-RTX builder.

Small versions here, those of the published sizes with `--slow`. No engine runs: what it computes in is read
from the strongly typed network, and compared with the layers that the PyTorch module holds.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from road_models import COMPACT, FULL, Recipe, started
from torch import nn

import qcompile
from qcompile.artifact import Artifact, load_artifact
from qcompile.model.weightless import fingerprint

GPUS = ("sm80", "sm86", "sm89", "sm120")
EXTENTS = {"batch": (1, 8, 32), "length": (16, 32, 64)}
PRECISIONS = ("fp32", "fp16", "int8")
LEAST_DB = 20.0
PRODUCTS = ("MatMul", "Gemm")
WEIGHTS_DOMINATE = 500_000  # bytes of float32 per layer, beside which the code of its kernels is little


class Road:
    """One model's files, made when they are first asked for."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.graphs: dict[str, Path] = {}
        self.built: dict[tuple[str, ...], Artifact] = {}
        self.left: set[str] = set()

    @cached_property
    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return started(self.recipe.make())

    @cached_property
    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """Input name to its least, usual and largest shape."""
        found = {}
        for spelling in self.recipe.inputs:
            name, shape = spelling.split(":")[:2]
            axes = [EXTENTS.get(axis, (axis,) * 3) for axis in shape.strip("[]").split(",")]
            found[name] = [tuple(int(axis[kind]) for axis in axes) for kind in range(3)]
        return found

    @cached_property
    def data(self) -> Path:
        """Eight samples of the usual extents."""
        generator = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for name, (_, (_, *usual), _) in self.shapes.items():
            if name == "mask":
                arrays[name] = np.ones((8, *usual), np.int64)
            elif self.recipe.words:
                arrays[name] = generator.integers(0, self.recipe.words, (8, *usual))
            else:
                arrays[name] = generator.standard_normal((8, *usual)).astype(np.float32)
        np.savez(self.folder / "data.npz", **arrays)
        return self.folder / "data.npz"

    def graph(self, precision: str) -> Path:
        """The ONNX file of a precision."""
        if precision not in self.graphs:
            path = self.folder / f"{precision}.onnx"
            if precision == "fp32":
                qcompile.export(self.module, self.folder / "raw.onnx", inputs=self.recipe.inputs)
                simple = qcompile.simplify(self.folder / "raw.onnx", path)
                assert simple.manifest.warnings == ()
                qcompile.calibrate(path, str(self.data), self.folder / "m.ranges", targets=["tensorrt"])
            else:
                done = qcompile.quantize(
                    self.graph("fp32"), path, target="tensorrt", precision=precision,  # type: ignore[arg-type]
                    ranges=self.folder / "m.ranges",
                    float_precision="fp16" if precision == "int8" else "fp32",
                    data=str(self.data), correct_bias=False,
                )  # fmt: skip
                assert float(done.manifest.checks[0].detail.split(" dB")[0]) > LEAST_DB
                self.left |= {*done.manifest.proof["left_in_float"]} if precision == "int8" else set()  # type: ignore[misc]
            self.graphs[precision] = path
        return self.graphs[precision]

    def build(self, precision: str, *gpus: str) -> Artifact:
        """An engine for the dynamic axes' whole range."""
        key = (precision, *gpus)
        if key not in self.built:
            kinds = ("min_shapes", "opt_shapes", "max_shapes")
            shapes = {
                kind: {name: of[index] for name, of in self.shapes.items()}
                for index, kind in enumerate(kinds)
            }
            self.built[key] = qcompile.build(
                self.graph(precision), self.folder / f"{precision}-{'-'.join(gpus)}.engine",
                target="tensorrt-rtx", precision=precision, gpus=gpus, **shapes,  # type: ignore[arg-type]
            )  # fmt: skip
        return self.built[key]

    def build_fixed(self, precision: str) -> Artifact:
        """An engine for sm86 from a graph whose axes are all fixed: the least extents."""
        model = onnx.load(self.graph(precision))
        least = {axis: extents[0] for axis, extents in EXTENTS.items()}
        for value in (*model.graph.input, *model.graph.output):
            for axis in value.type.tensor_type.shape.dim:
                if axis.dim_param:
                    axis.dim_value = least[axis.dim_param]
        del model.graph.value_info[:]
        path = self.folder / f"{precision}-fixed.onnx"
        onnx.save(model, path)
        output = path.with_suffix(".engine")
        return qcompile.build(path, output, target="tensorrt-rtx", precision=precision, gpus=["sm86"])

    def expected_layers(self, precision: str) -> dict[str, dict[str, int]]:
        """What the graph holds, as TensorRT counts it; an LSTM, and what INT8 leaves out, is in float."""
        graphs = [onnx.load(self.graph(precision)).graph]
        graphs += [
            a.g for node in graphs[0].node if node.op_type == "Scan" for a in node.attribute if a.g.node
        ]
        counts = Counter(node.op_type for graph in graphs for node in graph.node)
        layers = {
            "CONVOLUTION": counts["Conv"],
            "DECONVOLUTION": counts["ConvTranspose"],
            "MATRIX_MULTIPLY": counts["MatMul"] + counts["Gemm"],
        }
        found = {precision: Counter(layers)}
        of_float = found.setdefault("fp16" if precision == "int8" else precision, Counter())
        if precision == "int8":
            small = sum(node.name in self.left and node.op_type in PRODUCTS for node in graphs[0].node)
            found["int8"]["MATRIX_MULTIPLY"] -= small
            of_float["MATRIX_MULTIPLY"] += small
        of_float["MATRIX_MULTIPLY"] += 2 * counts["LSTM"]  # of the inputs and of the state, both directions
        held = {kind: {name: n for name, n in layers.items() if n} for kind, layers in found.items()}
        return {kind: layers for kind, layers in held.items() if layers}


def recipes() -> list[Any]:
    """Every small model, and every one of the published size, which is slow."""
    small = [pytest.param(recipe, id=name) for name, recipe in COMPACT.items()]
    return small + [
        pytest.param(recipe, id=f"{name}-full", marks=pytest.mark.slow) for name, recipe in FULL.items()
    ]


@pytest.fixture(scope="module", params=recipes())
def road(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Road:
    return Road(request.param, tmp_path_factory.mktemp("road"))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("gpus", [GPUS, ("sm86",)], ids=["four", "sm86"])
def test_every_model_builds_in_the_precision_asked_for(
    gpus: tuple[str, ...], precision: str, road: Road
) -> None:
    artifact = road.build(precision, *gpus)
    loaded = load_artifact(artifact.path).manifest  # digests agree
    assert loaded.as_json() == artifact.manifest.as_json()
    assert loaded.device["gpus"] == list(gpus)
    assert loaded.sources["graph"] == fingerprint(road.graph(precision))
    assert loaded.proof["layers_by_precision"] == road.expected_layers(precision)
    assert loaded.proof["typing"] == "strong"
    assert loaded.proof["profiles"] == [
        {
            name: {kind: list(of[index]) for index, kind in enumerate(("min", "opt", "max"))}
            for name, of in road.shapes.items()
        }
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_model_builds_with_a_fixed_batch_of_one(precision: str, road: Road) -> None:
    manifest = road.build_fixed(precision).manifest
    assert manifest.proof["profiles"] == []
    assert manifest.proof["layers_by_precision"] == road.expected_layers(precision)
    assert manifest.io is not None
    assert all(tensor.shape[0] == 1 and not tensor.dynamic_axes for tensor in manifest.io.inputs)


def test_int8_engines_are_smaller_than_fp16_and_those_than_fp32(road: Road) -> None:
    fp32, fp16, int8 = (road.build(precision, "sm86").path.stat().st_size for precision in PRECISIONS)
    weights_bytes = road.graph("fp32").stat().st_size
    layers = sum(road.expected_layers("fp32")["fp32"].values())
    assert fp16 < fp32
    if weights_bytes / layers > WEIGHTS_DOMINATE:
        assert int8 < fp16
