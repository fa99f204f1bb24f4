"""Weights rounded against the samples: on the scales of the plan, and with less error on what they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.quantize.weights.rounding import gptq
from qcompile.errors import InvalidOption
from qcompile.spec.words import GraphTarget

Floats = NDArray[np.float32]


def model(folder: Path) -> tuple[Path, Floats]:
    """A convolution and two products, on inputs whose channels go together."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return generator.standard_normal(shape).astype(np.float32)

    made = model_of(
        """(float[N,4,6,6] x) => (float[N,8] y) { c = Conv<pads=[1,1,1,1]>(x, w1) r = Relu(c)
        g = GlobalAveragePool(r) f = Flatten(g) m = Gemm<transB=1>(f, w2, b) t = Relu(m)
        y = MatMul(t, w3) }""",
        named=True, w1=normal(16, 4, 3, 3), w2=normal(12, 16), b=normal(12), w3=normal(12, 8),
    )  # fmt: skip
    onnx.save(made, folder / "m.onnx")
    x = normal(48, 1, 6, 6) + 0.1 * normal(48, 4, 6, 6)
    np.savez(folder / "d.npz", x=x)
    qcompile.calibrate(folder / "m.onnx", str(folder / "d.npz"), folder / "r", method="minmax")
    return folder / "m.onnx", x


def weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Name of a weight to its stored values, in steps."""
    graph = onnx.load(path).graph
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.name.startswith("w")}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_layer_errs_less_and_scales_stay(target: GraphTarget, tmp_path: Path) -> None:
    path, x = model(tmp_path)
    common = {"ranges": tmp_path / "r", "data": str(tmp_path / "d.npz"), "target": target}
    common |= {"search": False, "balance": False, "correct_bias": False, "exclude": ["Gemm", "MatMul"]}
    found: dict[str, dict[str, Floats]] = {}
    errors = {}
    float_model = onnx.load(path)
    (expected,) = outputs_of(float_model, x, "c")
    for rounding in ("rtn", "gptq"):
        made = qcompile.quantize(path, tmp_path / "q.onnx", block_size=0, rounding=rounding, **common)  # type: ignore[arg-type]
        assert made.manifest.proof["rounded_weights"] == (rounding == "gptq")
        found[rounding] = weights(made.path)
        # The convolution by itself: float inputs, the weights that were stored.
        name = next(n for n in found[rounding] if n.startswith("w1") and "scale" not in n and "zero" not in n)
        values = found[rounding][name] * found[rounding]["w1_scale"].reshape(-1, 1, 1, 1)
        alone = onnx.ModelProto()
        alone.CopyFrom(float_model)
        for tensor in alone.graph.initializer:
            if tensor.name == "w1":
                tensor.CopyFrom(numpy_helper.from_array(values, "w1"))
        errors[rounding] = float(np.square(outputs_of(alone, x, "c")[0] - expected).sum())
    np.testing.assert_array_equal(found["rtn"]["w1_scale"], found["gptq"]["w1_scale"])
    assert errors["gptq"] < 0.5 * errors["rtn"]


def test_a_stored_float_weight_is_already_on_the_steps(tmp_path: Path) -> None:
    path, _ = model(tmp_path)
    made = qcompile.quantize(
        path, tmp_path / "q.onnx", ranges=tmp_path / "r", data=str(tmp_path / "d.npz"), target="tensorrt",
        block_size=0, rounding="gptq", balance=False,
    )  # fmt: skip
    found = weights(made.path)
    steps = found["w1"] / found["w1_scale"].reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert np.abs(steps).max() <= 127.001


def test_given_scales_are_kept_and_no_worse_than_any_neighbour() -> None:
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((3, 4)).astype(np.float32)
    x = generator.standard_normal((50, 1)) + 0.2 * generator.standard_normal((50, 4))
    hessian = 2 * x.T @ x
    scales = (np.abs(weight).max(axis=1) / 7).astype(np.float32)
    rounded = gptq(weight, hessian, bits=8, block_size=0, symmetric=True, scales=scales)
    np.testing.assert_array_equal(rounded.scales[:, 0], scales)
    for row in range(3):
        # Every choice between the steps below and above, by hand.
        below = np.floor(weight[row] / scales[row])
        errors = []
        for choice in np.ndindex(2, 2, 2, 2):
            error = (below + choice) * scales[row] - weight[row]
            errors.append(error @ hessian @ error)
        nearest = np.round(weight[row] / scales[row]) * scales[row] - weight[row]
        missed = rounded.dequantized()[row] - weight[row]
        assert missed @ hessian @ missed <= 1.01 * nearest @ hessian @ nearest
        assert missed @ hessian @ missed <= np.median(errors)


def test_it_needs_samples(tmp_path: Path) -> None:
    path, _ = model(tmp_path)
    with pytest.raises(InvalidOption, match="needs samples"):
        qcompile.quantize(path, tmp_path / "q.onnx", ranges=tmp_path / "r", block_size=0, rounding="gptq")
