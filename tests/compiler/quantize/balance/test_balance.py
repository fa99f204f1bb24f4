"""`quantize` balances channels where it has data: INT8 loses less, and the proof says what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.model.output_error import output_error
from qcompile.spec.words import GraphTarget

Floats = NDArray[np.float32]
MakePath = Callable[..., Path]
SEED = 3


def save(path: Path, text: str, **weights: Floats) -> Path:
    """A model in ONNX's text form, with weights."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> tiny {text}')
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}{number}"
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def normal(*shape: int) -> Floats:
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(np.float32)


def data(path: Path, *shape: int) -> str:
    np.savez(path, x=normal(*shape))
    return str(path)


def hostile(folder: Path) -> tuple[Path, str]:
    """Convolutions and products in a row, whose channels are scaled up here and down there."""
    factors = np.ones(8, np.float32)
    factors[:2] = 1500
    conv, kernel = normal(8, 4, 3, 3), normal(8, 8, 3, 3)
    product, head = normal(8, 16), normal(16, 5)
    rows = np.repeat(factors, 2)
    model = save(
        folder / "hostile.onnx",
        """(float[N,4,6,6] x) => (float[N,5] y) { c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = Relu(c1)
        c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2) g = GlobalAveragePool(r2) f = Flatten(g)
        m = MatMul(f, w3) r3 = Relu(m) y = MatMul(r3, w4) }""",
        w1=conv * factors.reshape(-1, 1, 1, 1), b1=normal(8) * factors,
        w2=kernel / factors.reshape(1, -1, 1, 1), w3=product * rows, w4=head / rows[:, None],
    )  # fmt: skip
    return model, data(folder / "data.npz", 24, 4, 6, 6)


def snr_of_int8(
    model: Path, spec: str, target: GraphTarget, *, balance: bool
) -> tuple[float, Mapping[str, Any]]:
    """Calibrated and quantized: the ratio at the outputs in dB, and the proof.

    ONNX Runtime makes integer kernels of its own graphs alone: those for others run as they are written.
    """
    ranges = qcompile.calibrate(model, spec, model.with_suffix(".ranges"), targets=[target], method="minmax")
    made = qcompile.quantize(
        model, model.with_suffix(".q.onnx"), ranges=ranges.path, target=target, only=["*"], data=spec,
        balance=balance, correct_bias=False, allow_loss=True,
    )  # fmt: skip
    x = np.load(spec)["x"]
    (expected,) = OnnxReference(model)({"x": x})
    (found,) = OnnxReference(made.path, integers=target == "onnxruntime")({"x": x})
    return output_error(expected, found).snr_db, made.manifest.proof


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_quantize_balances_a_hostile_network_by_itself(target: GraphTarget, tmp_path: Path) -> None:
    model, spec = hostile(tmp_path)
    plain_db, plain = snr_of_int8(model, spec, target, balance=False)
    even_db, proof = snr_of_int8(model, spec, target, balance=True)
    assert plain_db < 12 < 25 < even_db
    assert "equalized_pairs" not in plain
    assert proof["equalized_pairs"] == 2


def test_outliers_of_a_norm_move_into_the_weights(tmp_path: Path) -> None:
    outlier = np.array([1, 1, 200, 1, 1, 1, 1, 1], np.float32)
    model = save(
        tmp_path / "m.onnx",
        """(float[N,3,8] x) => (float[N,3,4] y) {
        n = LayerNormalization(x, gain, bias) m = MatMul(n, w) y = Tanh(m) }""",
        gain=normal(8) * outlier, bias=normal(8, 1)[:, 0] * outlier, w=normal(8, 4) / outlier[:, None],
    )  # fmt: skip
    spec = data(tmp_path / "d.npz", 16, 3, 8)
    plain_db, _ = snr_of_int8(model, spec, "onnxruntime", balance=False)
    even_db, proof = snr_of_int8(model, spec, "onnxruntime", balance=True)
    assert even_db > plain_db + 10
    assert "into 'gain', 'bias'" in proof["smoothed"]["n"]
