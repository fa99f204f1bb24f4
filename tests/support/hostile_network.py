"""A network with hostile layers, to be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from written_models import computed

import qcompile
from qcompile.pipeline.tune.tune import TuneResult, tune

Floats = NDArray[np.float32]


CLASSES, CHANNELS = 5, 12


def run(model: onnx.ModelProto | Path, x: Floats, name: str = "") -> Floats:
    """An output, or another tensor."""
    found = computed(model, {"x": x}, *([name] if name else []), optimize=True)
    return next(iter(found.values()))


def network(batch: int = 0, *, hostile: bool = True) -> tuple[onnx.ModelProto, Floats, NDArray[np.int64]]:
    """Four convolutions and a head that was fitted, with samples that it classifies right.

    Hostile: the first channels of what conv3 and conv6 read are 2^11 times larger, and their weights
    smaller. The function stays; one scale for the tensor leaves next to nothing of the other channels.
    """
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, 96)
    kinds = generator.standard_normal((CLASSES, 4, 8, 8)) * 1.5
    x = (kinds[labels] + 0.5 * generator.standard_normal((96, 4, 8, 8))).astype(np.float32)
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> tiny (float[N,4,8,8] x) => (float[N,5] y) {
        t = Tanh(x) c1 = Conv<pads=[1,1,1,1]>(t, w1, b1) r1 = Relu(c1)
        c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2)
        c3 = Conv<pads=[1,1,1,1]>(r2, w3, b3) c4 = Conv<pads=[1,1,1,1]>(c3, w4)
        r4 = Relu(c4) p = MaxPool<kernel_shape=[4,4], strides=[4,4]>(r4) f = Flatten(p)
        y = Gemm<transB=1>(f, w5, b5) }"""
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}{number}"
    weights = {"b1": np.zeros(CHANNELS), "b3": np.zeros(CHANNELS)}
    for index, inputs in enumerate((4, CHANNELS, CHANNELS, CHANNELS), 1):
        weights[f"w{index}"] = generator.standard_normal((CHANNELS, inputs, 3, 3)) / np.sqrt(inputs * 9)
    if hostile:
        for first, second, bias in (("w1", "w2", "b1"), ("w3", "w4", "b3")):
            weights[first][:2] *= 2**11
            weights[bias][:2] *= 2**11
            weights[second][:, :2] /= 2**11
    weights |= {"w5": np.zeros((CLASSES, 4 * CHANNELS)), "b5": np.zeros(CLASSES)}
    store = {name: numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()}
    model.graph.initializer.extend(store.values())
    features = np.c_[run(model, x, "f"), np.ones(len(x))]
    solution = np.linalg.lstsq(features, np.eye(CLASSES)[labels], rcond=1e-3)[0].astype(np.float32)
    for tensor in model.graph.initializer:
        if tensor.name in ("w5", "b5"):
            fitted = solution[:-1].T if tensor.name == "w5" else solution[-1]
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(fitted), tensor.name))
    if batch:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.checker.check_model(model)
    return model, x, labels


class Case(NamedTuple):
    """Files of a network."""

    model: Path
    data: str
    x: Floats
    labels: NDArray[np.int64]
    out: Path

    def tune(self, *, targets: Sequence[str] = ("onnxruntime",), **options: Any) -> TuneResult:
        """Tune it on its data."""
        return tune(str(self.model), self.data, self.out, targets=targets, **options)


def accuracy(path: Path, case: Case) -> float:
    with qcompile.load(path) as runner:
        found = next(iter(runner.infer({"x": case.x}).values()))
    return float((found.argmax(axis=1) == case.labels).mean())
