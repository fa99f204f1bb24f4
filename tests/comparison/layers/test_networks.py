"""ResNet-50 and BERT-base as published: planted faults are found, in few runs and in the memory of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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


def weights_of(model: onnx.ModelProto, part: float) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """The quantized layer at a part of the way, and the DequantizeLinear of its weight."""
    layers = weighted_nodes(model)["int8"]
    layer = layers[int(part * len(layers))]
    return layer, producers(model.graph)[layer.input[1]]


def perturbed(model: onnx.ModelProto, part: float) -> onnx.NodeProto:
    """Add noise to one weight, in place; return the layer."""
    layer, dequantize = weights_of(model, part)
    tensor = next(t for t in model.graph.initializer if t.name == dequantize.input[0])
    values = numpy_helper.to_array(tensor).astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(values.shape) * values.std()
    changed = np.clip(np.round(values + noise), -127, 127).astype(np.int8)
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return layer


def rescaled(model: onnx.ModelProto, part: float) -> onnx.NodeProto:
    """Make the scale of one weight four times as large, in place; return the layer."""
    layer, dequantize = weights_of(model, part)
    tensor = next(t for t in model.graph.initializer if t.name == dequantize.input[1])
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(4), tensor.name))
    return layer


def check(diff: LayerDiff, layer: onnx.NodeProto, model: onnx.ModelProto) -> None:
    assert diff.first_bad.node == layer.name
    assert not diff.gradual
    layers = sum(map(len, weighted_nodes(model).values()))
    assert diff.runs <= 3 + math.log2(layers)
    for side in diff.memory_bytes.values():
        assert side["tapped"] <= 1.3 * side["plain"]


@pytest.mark.parametrize("part", [0.2, 0.7])
@pytest.mark.parametrize("plant", [perturbed, rescaled])
def test_a_planted_fault_is_found(
    network: Path, plant: Callable[[onnx.ModelProto, float], onnx.NodeProto], part: float
) -> None:
    model = onnx.load(network / "int8.onnx")
    layer = plant(model, part)
    onnx.save(model, network / "bad.onnx")
    arguments = {"data": str(network / "data.npz"), "samples": 4}
    diff = layer_diff(str(network / "model.onnx"), str(network / "bad.onnx"), **arguments)
    check(diff, layer, model)
    assert diff.complete


def test_eight_taps_find_a_fault_that_the_output_shows(network: Path) -> None:
    model = onnx.load(network / "int8.onnx")
    dense = [
        n for n in weighted_nodes(model)["int8"] if n.op_type in ("Conv", "Gemm") or "wide" in n.input[1]
    ]
    layers = weighted_nodes(model)["int8"]
    layer = rescaled(model, layers.index(dense[len(dense) // 2]) / len(layers))
    onnx.save(model, network / "bad.onnx")
    arguments = {"data": str(network / "data.npz"), "samples": 4}
    diff = layer_diff(str(network / "model.onnx"), str(network / "bad.onnx"), taps=8, **arguments)
    check(diff, layer, model)
    assert not diff.complete
