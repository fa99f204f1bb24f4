"""The verb: balanced models compute the same, say what was done, and lose less in INT8."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import qcompile
from qcompile.artifact import load_artifact
from qcompile.compiler.check import OnnxReference
from qcompile.errors import CalibrationError, InvalidOption, MissingFile, QuantizationError
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


def outputs(model: Path, x: Floats) -> Floats:
    with qcompile.load(model) as runner:
        found: Floats = runner.infer({"x": x})["y"]
    return found


def snr_of_int8(model: Path, spec: str, target: GraphTarget) -> float:
    """Calibrated and quantized: the ratio at the outputs, in dB.

    ONNX Runtime makes integer kernels of its own graphs alone: those for others run as they are written.
    """
    ranges = qcompile.calibrate(model, spec, model.with_suffix(".ranges"), targets=[target], method="minmax")
    output = model.with_suffix(".q.onnx")
    made = qcompile.quantize(model, output, ranges=ranges.path, target=target, only=["*"])
    x = np.load(spec)["x"]
    (found,) = OnnxReference(made.path, integers=target == "onnxruntime")({"x": x})
    return output_error(outputs(model, x), found).snr_db


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_a_hostile_network_loses_far_less_in_int8(target: GraphTarget, tmp_path: Path) -> None:
    model, spec = hostile(tmp_path)
    even = qcompile.balance(model, tmp_path / "even.onnx", data=spec).path
    assert snr_of_int8(model, spec, target) < 12
    assert snr_of_int8(even, spec, target) > 25


@pytest.mark.parametrize("with_data", [True, False])
def test_outputs_stay_the_same_and_the_manifest_says_what_was_done(with_data: bool, tmp_path: Path) -> None:
    model, spec = hostile(tmp_path)
    made = qcompile.balance(model, tmp_path / "even.onnx", data=spec if with_data else None, samples=10)
    x = np.load(spec)["x"]
    # Factors are powers of two: the very same numbers.
    np.testing.assert_array_equal(outputs(model, x), outputs(made.path, x))
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        for path in (model, made.path)
    )
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in ("w1", "w2", "w3", "w4"))

    manifest = load_artifact(made.path).manifest
    assert (manifest.stage, manifest.precision, manifest.kind) == ("balance", "fp32", "onnx")
    counted = {"equalized pairs": 2}
    proof = dict(manifest.proof)
    if with_data:
        assert not proof.pop("smoothed")
        assert "gains" in proof.pop("left alone")["matmul6"]
    assert proof == counted
    assert [(check.name, check.passed) for check in manifest.checks] == [("same outputs as before", True)]
    assert set(manifest.sources) == ({"model", "data"} if with_data else {"model"})
    assert any("weights alone" in warning for warning in manifest.warnings) != with_data
    assert manifest.io is not None
    assert manifest.io.inputs[0].shape == ("N", 4, 6, 6)


def test_no_more_samples_are_read_than_asked_for(tmp_path: Path) -> None:
    model, _ = hostile(tmp_path)
    x = normal(6, 4, 6, 6)
    x[4:] *= 1e4  # would move the largest values
    np.savez(tmp_path / "all.npz", x=x)
    np.savez(tmp_path / "four.npz", x=x[:4])
    weights = []
    for spec, samples in (("all.npz", 4), ("four.npz", 32), ("all.npz", 6)):
        made = qcompile.balance(model, tmp_path / "e.onnx", data=str(tmp_path / spec), samples=samples)
        weights.append([numpy_helper.to_array(t) for t in onnx.load(made.path).graph.initializer])
    assert all(np.array_equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(weights[0], weights[2], strict=True))


NORM = """(float[N,3,8] x) => (float[N,3,{width}] y) {{
    n = LayerNormalization(x, gain, bias) m = MatMul(n, w) {end} }}"""


def test_outliers_of_a_norm_move_into_the_weights(tmp_path: Path) -> None:
    outlier = np.array([1, 1, 200, 1, 1, 1, 1, 1], np.float32)
    model = save(
        tmp_path / "m.onnx", NORM.format(width=4, end="y = Tanh(m)"),
        gain=normal(8) * outlier, bias=normal(8, 1)[:, 0] * outlier, w=normal(8, 4) / outlier[:, None],
    )  # fmt: skip
    spec = data(tmp_path / "d.npz", 16, 3, 8)
    made = qcompile.balance(model, tmp_path / "even.onnx", data=spec)
    assert list(made.manifest.proof["smoothed"]) == ["n"]
    assert "into 'gain', 'bias'" in made.manifest.proof["smoothed"]["n"]
    assert made.manifest.proof["left alone"] == {}
    assert not made.manifest.warnings
    x = np.load(spec)["x"]
    np.testing.assert_array_equal(outputs(model, x), outputs(made.path, x))
    assert snr_of_int8(made.path, spec, "onnxruntime") > snr_of_int8(model, spec, "onnxruntime") + 10


def test_nothing_to_balance_is_said(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("elementwise")
    made = qcompile.balance(model, tmp_path / "even.onnx", data=str(samples("elementwise")))
    assert made.manifest.warnings == ("nothing in this model could be balanced",)
    # A product in front of which there is nothing to gain is named, and it is nothing that was balanced.
    model = save(
        tmp_path / "m.onnx", NORM.format(width=8, end="y = Add(m, n)"),
        gain=np.ones(8, np.float32), bias=np.zeros(8, np.float32), w=np.sign(normal(8, 8)),
    )  # fmt: skip
    made = qcompile.balance(model, tmp_path / "even.onnx", data=data(tmp_path / "d.npz", 64, 3, 8))
    assert not made.manifest.proof["smoothed"]
    assert "1.0 dB is required" in made.manifest.proof["left alone"]["matmul1"]
    assert made.manifest.warnings == ("nothing in this model could be balanced",)


def test_what_it_cannot_take_is_refused(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model, spec = tiny_file("mlp"), str(samples("mlp"))
    ranges = qcompile.calibrate(model, spec, tmp_path / "r")
    quantized = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges.path)
    even = tmp_path / "even.onnx"
    with pytest.raises(InvalidOption, match="its graph is int8 already"):
        qcompile.balance(quantized.path, even, data=spec)
    with pytest.raises(MissingFile, match=r"nowhere\.npz"):
        qcompile.balance(model, even, data=str(tmp_path / "nowhere.npz"))
    np.savez(tmp_path / "nan.npz", x=np.full((4, 16), np.nan, np.float32))
    with pytest.raises(CalibrationError, match="becomes NaN or infinite"):
        qcompile.balance(model, even, data=str(tmp_path / "nan.npz"))
    assert not even.exists()


def test_other_outputs_are_never_handed_out(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: onnx.ModelProto, *_: object) -> int:
        weight = model.graph.initializer[0]
        weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
        return 1

    monkeypatch.setattr(import_module("qcompile.compiler.quantize.balance.balance"), "equalize", wrong)
    with pytest.raises(QuantizationError, match="balanced, it computes something else"):
        qcompile.balance(tiny_file("mlp"), tmp_path / "even.onnx", data=None)
    assert not (tmp_path / "even.onnx").exists()
