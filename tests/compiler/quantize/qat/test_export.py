"""`qcompile export` of a model trained with fake quantization, and what the other verbs make of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from written_models import model_of, outputs_of, stored

import qcompile
from qcompile import qat
from qcompile.compiler.quantize.qat.finish_qdq import finish_qdq
from qcompile.core.artifact import Artifact, load_artifact
from qcompile.errors import ExportError, InvalidOption, QuantizationError

INPUT = "x:[batch,3,8,8]"

FILE = """
import torch
from torch import nn
from qcompile import qat


def build():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )
    prepared = qat.prepare(model, torch.randn(2, 3, 8, 8), {target!r})
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.02)
    for _ in range(4):
        loss = prepared(torch.randn(16, 3, 8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return qat.convert(prepared.eval())
"""

OPERANDS = 3  # two convolutions and a linear layer


def source(folder: Path, target: str) -> str:
    path = folder / f"trained_{target}.py"
    path.write_text(FILE.replace("{target!r}", repr(target)), encoding="utf-8")
    return f"{path}:build"


def module(folder: Path, target: str) -> nn.Module:
    """The very module that the file's function returns."""
    names: dict[str, Any] = {}
    exec(Path(source(folder, target).removesuffix(":build")).read_text(encoding="utf-8"), names)
    built: nn.Module = names["build"]()
    return built


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Target to the file that `export` wrote from `file.py:build`."""
    folder = tmp_path_factory.mktemp("trained")
    return {
        target: qcompile.export(source(folder, target), folder / f"{target}.onnx", inputs=[INPUT])
        for target in ("onnxruntime", "openvino", "tensorrt")
    }


def points(path: Path) -> set[tuple[str, bool]]:
    """dtype of the zero points of activations, and whether any is not 0."""
    graph = onnx.load(path).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] not in stored]
    return {(stored[node.input[2]].dtype.name, bool(stored[node.input[2]].any())) for node in made}


def int32_biases(path: Path) -> int:
    """How many DequantizeLinear read a stored int32."""
    graph = onnx.load(path).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    readers = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    return sum(types.get(node.input[0]) == onnx.TensorProto.INT32 for node in readers)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_the_file_is_finished_and_the_manifest_says_int8(target: str, exported: dict[str, Artifact]) -> None:
    manifest = exported[target].manifest
    assert (manifest.stage, manifest.precision) == ("export", "int8")
    assert all(check.passed for check in manifest.checks)
    assert sum("same outputs as PyTorch at batch" in check.name for check in manifest.checks) >= 2
    assert load_artifact(exported[target].path).manifest.as_json() == manifest.as_json()
    assert [str(tensor) for tensor in manifest.io.inputs] == ["x:[batch,3,8,8]:float32"]  # type: ignore[union-attr]
    path = exported[target].path
    onnx.checker.check_model(onnx.load(path), full_check=True)
    found = points(path)
    if target == "tensorrt":
        assert found == {("int8", False)}
    else:
        assert {"uint8"} <= {dtype for dtype, _ in found} <= {"uint8", "int8"}
    assert int32_biases(path) == (OPERANDS if target == "onnxruntime" else 0)  # TensorRT refuses int32
    assert not any(node.op_type == "BatchNormalization" for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_module_is_exported_as_the_file_that_makes_it(
    target: str, exported: dict[str, Artifact], tmp_path: Path
) -> None:
    model = module(tmp_path, target)
    artifact = qcompile.export(model, tmp_path / "m.onnx", inputs=[INPUT])
    assert artifact.manifest.precision == "int8"
    assert points(artifact.path) == points(exported[target].path)
    if target == "tensorrt":  # another target than the trained one can be named
        other = qcompile.export(model, tmp_path / "o.onnx", inputs=[INPUT], target="onnxruntime")
        assert int32_biases(other.path) == OPERANDS
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(x).numpy()
    for path in (artifact.path, exported[target].path):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": x.numpy()})
        error = np.square(found - expected).sum()
        assert error < 1e-3 * np.square(expected).sum()  # 30 dB


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
def test_every_layer_is_built_in_int8(target: str, exported: dict[str, Artifact], tmp_path: Path) -> None:
    pytest.importorskip(target.replace("-", "_"))
    path, gpus = exported[target.removesuffix("-rtx")].path, ["sm86"] * target.endswith("rtx")
    built = qcompile.build(path, tmp_path / "b", target=target, precision="int8", gpus=gpus)  # type: ignore[arg-type]
    proof = built.manifest.proof
    assert proof["planned_in_precision"] == proof["reached_in_precision"] == OPERANDS
    layers = proof["layers_by_precision"]
    assert isinstance(layers, Mapping)
    assert not layers.get("fp32")


def test_it_is_not_quantized_a_second_time(exported: dict[str, Artifact], tmp_path: Path) -> None:
    for options in ({"mode": "dynamic"}, {"mode": "weights", "precision": "int4"}):
        with pytest.raises(InvalidOption, match="its graph is int8 already"):
            qcompile.quantize(exported["onnxruntime"].path, tmp_path / "q.onnx", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_is_still_in_training_is_sent_to_convert(tmp_path: Path) -> None:
    prepared = qat.prepare(nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8))
    with pytest.raises(ExportError, match="still in training") as caught:
        qcompile.export(prepared.eval(), tmp_path / "m.onnx", inputs=["x:2x8"])
    assert "qat.convert" in caught.value.hint
    assert not (tmp_path / "m.onnx").exists()


def quantized_weight(bias: float) -> onnx.ModelProto:
    """x [2,4], a stored weight behind DequantizeLinear and Transpose, then a Gemm, as exported."""
    generator = np.random.default_rng(0)
    arrays = {
        "xs": np.float32(0.02), "xz": np.uint8(100),
        "w": generator.integers(-127, 128, (4, 3)).astype(np.int8),
        "ws": np.array([0.02, 0.03, 1e-6], np.float32), "wz": np.zeros(3, np.int8),
        "b": np.array([bias, -bias, bias], np.float32),
    }  # fmt: skip
    text = """(float[2,4] x) => (float[2,3] y) {
        xq = QuantizeLinear(x, xs, xz) xd = DequantizeLinear(xq, xs, xz)
        wd = DequantizeLinear<axis=1>(w, ws, wz) wt = Transpose(wd) [gemm] y = Gemm<transB=1>(xd, wt, b) }"""
    return model_of(text, opset=19, **{name: np.asarray(array) for name, array in arrays.items()})


@pytest.mark.parametrize(("bias", "kernel"), [(0.5, "QGemm"), (1e4, "Gemm")])
def test_a_bias_is_int32_where_it_fits(bias: float, kernel: str, tmp_path: Path) -> None:
    model, x = quantized_weight(bias), np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    finished = finish_qdq(model, "onnxruntime")
    assert any(array.dtype == np.int32 for array in stored(finished).values()) is (kernel == "QGemm")
    expected = outputs_of(model, x, optimize=True)[0]
    np.testing.assert_allclose(
        outputs_of(finished, x, optimized=tmp_path / "o.onnx")[0], expected, rtol=1e-5, atol=1e-3
    )
    assert kernel in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


def test_tensorrt_is_given_no_zero_point_and_finishing_twice_changes_nothing_more() -> None:
    with pytest.raises(QuantizationError, match="'x' has a zero point of 100"):
        finish_qdq(quantized_weight(0.5), "tensorrt")
    with pytest.raises(InvalidOption, match="'cpu' is unknown"):
        finish_qdq(quantized_weight(0.5), "cpu")  # type: ignore[arg-type]
    once = finish_qdq(quantized_weight(0.5), "onnxruntime")
    assert finish_qdq(once, "onnxruntime") == once
