"""INT4 as an intent: what holds weights of 4 bits is built and counted, everything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qcompile
from qcompile.errors import BuildError, IntentNotReached, InvalidOption, QCompileError

MakePath = Callable[..., Path]


@pytest.fixture
def int4(tiny_file: MakePath, tmp_path: Path) -> Callable[..., Path]:
    """`int4("tensorrt")` is the tiny MLP with weights of 4 bits; of its two products, those of `only`."""

    def make(target: str = "onnxruntime", **options: object) -> Path:
        return qcompile.quantize(
            tiny_file("mlp"), tmp_path / f"{target}.int4.onnx", precision="int4", mode="weights",
            target=target, block_size=16, **options,
        ).path  # type: ignore[arg-type]  # fmt: skip

    return make


def test_onnx_runtime_executes_what_was_planned_and_the_manifest_counts_it(
    int4: MakePath, tmp_path: Path
) -> None:
    path = int4()
    artifact = qcompile.build(path, tmp_path / "b.onnx", target="onnxruntime", precision="int4")
    proof = artifact.manifest.proof
    assert (proof["planned_in_precision"], proof["reached_in_precision"]) == (2, 2)
    assert proof["layers_by_precision"]["int4"] == {"MatMulNBits": 2}  # type: ignore[index]
    assert not proof["layers_by_precision"]["fp32"]  # type: ignore[index]
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with qcompile.load(artifact.path) as runner:
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(runner.infer({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_the_nodes_in_float_are_counted_apart(int4: MakePath, tmp_path: Path) -> None:
    artifact = qcompile.build(
        int4(only=["matmul1"]), tmp_path / "b.onnx", target="onnxruntime", precision="int4"
    )
    proof = artifact.manifest.proof
    assert (proof["planned_in_precision"], proof["reached_in_precision"]) == (1, 1)
    assert sum(proof["layers_by_precision"]["fp32"].values()) == 1  # type: ignore[index]


def test_tensorrt_rtx_holds_4_bits_and_says_so(int4: MakePath, tmp_path: Path) -> None:
    artifact = qcompile.build(
        int4("tensorrt"), tmp_path / "m.engine", target="tensorrt-rtx", precision="int4", gpus=["sm86"]
    )
    proof = artifact.manifest.proof
    assert artifact.manifest.precision == "int4"
    assert proof["layers_by_precision"] == {"int4": {"MATRIX_MULTIPLY": 2}}
    assert (proof["planned_in_precision"], proof["reached_in_precision"]) == (2, 2)


def test_onnx_runtimes_own_operators_are_refused_by_tensorrt_rtx(int4: MakePath, tmp_path: Path) -> None:
    with pytest.raises(QCompileError, match="MatMulNBits"):
        qcompile.build(int4(), tmp_path / "m.engine", target="tensorrt-rtx", precision="int4", gpus=["sm86"])
    assert not (tmp_path / "m.engine").exists()


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_openvino_cannot_prove_it_and_refuses(target: str, int4: MakePath, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(BuildError, match="does not tell which weights it keeps in 4 bits") as caught:
        qcompile.build(int4(target), tmp_path / "b.onnx", target="openvino", precision="int4")
    assert "tensorrt-rtx" in caught.value.hint
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt-rtx"])
def test_a_float_graph_is_not_made_int4_by_a_build(target: str, tiny_file: MakePath, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="holds no weights of 4 bits") as caught:
        qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target=target, precision="int4")
    assert "`mode` weights and `precision` int4" in caught.value.hint
    assert not (tmp_path / "b.onnx").exists()


def test_an_int8_graph_is_not_int4(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    model = tiny_file("mlp")
    ranges = qcompile.calibrate(model, str(samples("mlp")), tmp_path / "r", targets=["onnxruntime"]).path
    int8 = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges).path
    with pytest.raises(InvalidOption, match="its graph is int8 already; int4 was asked for") as caught:
        qcompile.build(int8, tmp_path / "b.onnx", target="onnxruntime", precision="int4")
    assert "`precision` int8" in caught.value.hint


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
def test_an_int4_graph_is_nothing_else(precision: str, int4: MakePath, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=f"its graph is int4 already; {precision} was asked for"):
        qcompile.build(int4(), tmp_path / "b.onnx", target="onnxruntime", precision=precision)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_an_int4_graph_is_not_quantized_again(target: str, int4: MakePath, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="its graph is int4 already"):
        qcompile.quantize(int4(target), tmp_path / "q.onnx", precision="int4", mode="weights")


def test_weights_of_8_bits_are_int8_for_onnx_runtime(tiny_file: MakePath, tmp_path: Path) -> None:
    path = qcompile.quantize(tiny_file("mlp"), tmp_path / "w.onnx", mode="weights").path
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"MatMulNBits"}
    artifact = qcompile.build(path, tmp_path / "b.onnx", target="onnxruntime", precision="int8")
    assert artifact.manifest.proof["reached_in_precision"] == 2


def test_4_bits_that_onnx_runtime_dequantizes_each_time_do_not_pass_for_int4(
    int4: MakePath, tmp_path: Path
) -> None:
    path = int4("tensorrt")  # one scale per channel: K is 16
    with pytest.raises(IntentNotReached, match=r"int4 was asked for; \d of 2 layers"):
        qcompile.build(path, tmp_path / "b.onnx", target="onnxruntime", precision="int4")
    assert not (tmp_path / "b.onnx").exists()
