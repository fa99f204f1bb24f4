"""ResNet-50 and BERT-base as published: planted faults are found, in few runs and in the memory of one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layer_faults import perturbed

import qcompile
from qcompile.comparison.layers import LayerDiff, layer_diff
from qcompile.model.graph import producers, weighted_nodes

pytestmark = pytest.mark.slow

MODEL = """
import sys

import torch

sys.path.insert(0, {support!r})
from road_models import FULL, started


def build():
    torch.manual_seed(0)
    return started(FULL[{name!r}].make())
"""


@pytest.fixture(scope="module", params=["resnet", "bert"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.onnx`, `int8.onnx` and `data.npz` of a network."""
    from road_models import FULL

    folder, recipe = tmp_path_factory.mktemp(request.param), FULL[request.param]
    support = str(Path(__file__).parents[2] / "support")
    (folder / "net.py").write_text(MODEL.format(support=support, name=request.param))
    qcompile.export(f"{folder / 'net.py'}:build", folder / "model.onnx", inputs=list(recipe.inputs))
    generator = np.random.default_rng(0)
    if recipe.words:
        tokens = generator.integers(0, recipe.words, (8, 128))
        np.savez(folder / "data.npz", tokens=tokens, mask=np.ones_like(tokens))
    else:
        np.savez(folder / "data.npz", image=generator.standard_normal((8, 3, 224, 224), np.float32))
    data = str(folder / "data.npz")
    qcompile.calibrate(folder / "model.onnx", data, folder / "model.ranges")
    qcompile.quantize(folder / "model.onnx", folder / "int8.onnx", ranges=folder / "model.ranges")
    return folder


def layers_of_faulty(
    network: Path, model: onnx.ModelProto, layer: onnx.NodeProto, place: int, times: float, **options: Any
) -> LayerDiff:
    """Multiply an input of the DequantizeLinear of a layer's weight, and compare the layers."""
    dequantize = producers(model.graph)[layer.input[1]]
    onnx.save(perturbed(model, dequantize.input[place], times=times), network / "bad.onnx")
    files = (str(network / "model.onnx"), str(network / "bad.onnx"))
    return layer_diff(*files, data=str(network / "data.npz"), samples=4, **options)


def check(diff: LayerDiff, layer: onnx.NodeProto, model: onnx.ModelProto) -> None:
    assert diff.first_bad.node == layer.name
    assert not diff.gradual
    layers = sum(map(len, weighted_nodes(model).values()))
    assert diff.runs <= 3 + math.log2(layers)
    for side in diff.memory_bytes.values():
        assert side["tapped"] <= 1.3 * side["plain"]


@pytest.mark.parametrize("part", [0.2, 0.7])
@pytest.mark.parametrize(("place", "times"), [(0, -1.0), (1, 4.0)], ids=["values", "scale"])
def test_a_planted_fault_is_found(network: Path, place: int, times: float, part: float) -> None:
    """In the values of a weight, or in its scale."""
    model = onnx.load(network / "int8.onnx")
    layers = weighted_nodes(model)["int8"]
    layer = layers[int(part * len(layers))]
    diff = layers_of_faulty(network, model, layer, place, times)
    check(diff, layer, model)
    assert diff.complete


def test_eight_taps_find_a_fault_that_the_output_shows(network: Path) -> None:
    model = onnx.load(network / "int8.onnx")
    layers = weighted_nodes(model)["int8"]
    dense = [node for node in layers if node.op_type in ("Conv", "Gemm") or "wide" in node.input[1]]
    layer = dense[len(dense) // 2]
    diff = layers_of_faulty(network, model, layer, 1, 4.0, taps=8)
    check(diff, layer, model)
    assert not diff.complete
