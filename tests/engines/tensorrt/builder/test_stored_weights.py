"""The size of an engine bounds what of its weights is wide: held against engines that TensorRT-RTX builds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qcompile
from qcompile.engines.tensorrt.builder.stored_weights import widest_share

WIDTH, LAYERS = 512, 4
NAMES = {f"mm{index}" for index in range(LAYERS)}


def products(path: Path, *, rows: int = 16, equal: bool = False) -> Path:
    """Products of 512 x 512 behind a table of so many rows; of one weight under several names if `equal`."""
    generator = np.random.default_rng(0)

    def weight(rows: int) -> np.ndarray:
        return generator.normal(0, 0.05, (rows, WIDTH)).astype(np.float32)

    same = weight(WIDTH)
    constants = {"table": weight(rows)} | {
        f"w{i}": same if equal else weight(WIDTH) for i in range(LAYERS)
    }  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "ids"], ["t0"], "gather")]
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"], f"mm{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"t{i + 1}"], f"relu{i}"))
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [8])],
        [helper.make_tensor_value_info(f"t{LAYERS}", onnx.TensorProto.FLOAT, [8, WIDTH])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def built(model: Path, precision: str) -> int:
    """Size of the engine in bytes."""
    made = qcompile.build(
        model, model.with_suffix(".engine"), target="tensorrt-rtx", precision=precision, gpus=("sm86",)
    )
    return made.path.stat().st_size


@pytest.mark.parametrize("rows", [16, 8000])
def test_engines_of_tensorrt_rtx_are_told_apart_by_their_size(rows: int, tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", rows=rows)
    half, full = built(model, "fp16"), built(model, "fp32")
    assert widest_share(model, NAMES, half, narrow="fp16", wide="fp32") == pytest.approx(0.05, abs=0.05)
    assert widest_share(model, NAMES, full, narrow="fp16", wide="fp32") == 1.0
    assert widest_share(model, NAMES, half, narrow="int8", wide="fp16") == 1.0


def test_a_share_in_float32_is_never_told_smaller_than_it_is(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx")
    kept = qcompile.build(
        model, tmp_path / "kept.engine", target="tensorrt-rtx", precision="fp16", gpus=("sm86",),
        layers={"mm1": "fp32", "relu1": "fp32"}, allow_fallback=True,
    ).path.stat().st_size  # fmt: skip
    share = widest_share(model, NAMES, kept, narrow="fp16", wide="fp32")
    assert share is not None
    assert 1 / LAYERS <= share <= 1 / LAYERS + 0.1  # kernels and names add to it


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", equal=True)
    once = 4 * WIDTH * WIDTH
    assert widest_share(model, NAMES, once, narrow="fp16", wide="fp32") == pytest.approx(1.0, abs=0.04)


def test_without_weights_or_a_difference_nothing_is_told(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx")
    assert widest_share(model, {"relu0"}, 10**6, narrow="fp16", wide="fp32") is None
    assert widest_share(model, NAMES, 10**6, narrow="fp16", wide="bf16") is None
