"""The probe of saturating kernels: what it says of this machine is true, and recordings are what it said.

ONNX Runtime's optimizer makes another MaxPool of one behind a Pad of zeros; no session of ours does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated import require_emulated, run_emulated
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qcompile
import qcompile.model.saturating_kernels as home
from qcompile.engines.registry import engine
from qcompile.model.onnxruntime_optimizer import optimizers_that_lose_zeros, zero_padded_pools
from qcompile.model.saturating_kernels import NONE, RECORDED, probe, saturating_kernels
from qcompile.model.session import make_session, session_options
from qcompile.processor import isa_here, isa_of
from qcompile.spec.words import ISAS


def test_an_order_is_read_from_four_sums() -> None:
    assert home._order(np.float32([126, 126, 126, 126])) == ""
    assert home._order(np.float32([64, 64, 126, 126])) == "flat"
    assert home._order(np.float32([64, 126, 64, 126])) == "taps"


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_processor_is_one_that_was_recorded_or_saturates_nowhere(target: str) -> None:
    """Natively, whichever processor this is: with VNNI and on ARM nothing saturates."""
    found = probe(target)  # type: ignore[arg-type]
    assert found == RECORDED.get((target, isa_here()), NONE)  # type: ignore[arg-type]


def test_onnx_runtime_on_an_emulated_haswell_is_as_recorded(tmp_path: Path) -> None:
    require_emulated("haswell")
    models = [home._static_layers(), home._dynamic_layers()]
    outputs = run_emulated("haswell", [(model, dict(feeds)) for model, feeds in models], tmp_path)
    orders = {name: home._order(home._sums(sums)) for each in outputs for name, sums in each.items()}
    assert home.SaturatingKernels(**orders) == RECORDED["onnxruntime", "avx2"]  # type: ignore[arg-type]


def test_openvino_told_to_use_avx2_is_as_recorded() -> None:
    if isa_here() in ("neon", "neon-dotprod", "i8mm"):
        pytest.skip("ARM has no AVX2")
    code = """from qcompile.model.saturating_kernels import RECORDED, probe
print(probe("openvino") == RECORDED["openvino", "avx2"])"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_another_instruction_set_is_looked_up_and_this_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    monkeypatch.setattr(home, "probe", lambda _: "asked")
    assert saturating_kernels("onnxruntime", "avx512-vnni") == "asked"
    monkeypatch.setattr(home, "isa_here", lambda: "avx2")
    monkeypatch.setattr(home, "probe", lambda _: NONE)  # a file for AVX2 is for every processor that has it
    assert saturating_kernels("openvino", "avx2") == RECORDED["openvino", "avx2"]
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    assert saturating_kernels("onnxruntime", "avx2") == RECORDED["onnxruntime", "avx2"]
    assert saturating_kernels("openvino", "amx") == NONE
    assert saturating_kernels("tensorrt", "avx512-vnni") == NONE
    assert not NONE


def test_features_of_a_processor_are_one_instruction_set() -> None:
    assert isa_of(["avx2"], arm=False) == isa_of([], arm=False) == "avx2"
    assert isa_of(["avx2", "avx512f"], arm=False) == "avx2"  # AVX-512 without VNNI
    assert isa_of(["avx2", "avx_vnni"], arm=False) == "avx-vnni"
    assert isa_of(["avx512_vnni", "avx_vnni"], arm=False) == "avx512-vnni"
    assert isa_of(["avx512_vnni", "amx_int8"], arm=False) == "amx"
    assert [isa_of(one, arm=True) for one in ([], ["asimddp"], ["asimddp", "i8mm"])] == [
        "neon", "neon-dotprod", "i8mm",
    ]  # fmt: skip
    assert isa_here() in ISAS


LOWEST = float("-inf")


def write(path: Path, value: float | None, *, operator: str = "MaxPool") -> Path:
    """x [n, 2, 7, 7] ─ Pad of one row and column ─ pool of 3 x 3 by 2 ─ y [n, 2, 4, 4]."""
    nodes = [
        helper.make_node("Pad", ["x", "pads", *(["value"] if value is not None else [])], ["padded"]),
        helper.make_node(operator, ["padded"], ["y"], name="pool", kernel_shape=[3, 3], strides=[2, 2]),
    ]
    stored = [helper.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1])]
    if value is not None:
        stored.append(helper.make_tensor("value", TensorProto.FLOAT, [], [value]))
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2, extent, extent])
        for name, extent in (("x", 7), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "graph", tensors[:1], tensors[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def pooled(x: NDArray[np.float32], value: float) -> NDArray[np.float32]:
    """The largest of every window, by hand."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max(axis=(-2, -1)))


@pytest.fixture
def negative() -> NDArray[np.float32]:
    """Values below 0, which a padding of zeros covers at the border."""
    return -np.random.default_rng(0).uniform(0.1, 1, (2, 2, 7, 7)).astype(np.float32)


@pytest.mark.parametrize(("value", "found"), [(None, True), (0.0, True), (LOWEST, False), (-1.0, False)])
def test_only_zeros_are_lost(tmp_path: Path, value: float | None, found: bool) -> None:
    path = write(tmp_path / "pool.onnx", value)
    assert zero_padded_pools(onnx.load(path)) == (["pool"] if found else [])
    assert bool(optimizers_that_lose_zeros(path)) is found


def test_no_other_pool_is_meant(tmp_path: Path) -> None:
    assert not zero_padded_pools(onnx.load(write(tmp_path / "mean.onnx", 0.0, operator="AveragePool")))


@pytest.mark.parametrize("value", [None, 0.0, LOWEST, -1.0])
def test_a_session_pools_the_zeros(
    tmp_path: Path, negative: NDArray[np.float32], value: float | None
) -> None:
    path = write(tmp_path / "pool.onnx", value)
    found = make_session(path, session_options()).run(None, {"x": negative})[0]
    np.testing.assert_array_equal(found, pooled(negative, value or 0.0))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_what_is_built_pools_the_zeros(tmp_path: Path, negative: NDArray[np.float32], target: str) -> None:
    path = write(tmp_path / "pool.onnx", 0.0)
    simplified = qcompile.simplify(path, tmp_path / "simplified.onnx")
    qcompile.build(simplified.path, tmp_path / "built.onnx", target=target)
    with engine(target).open(str(tmp_path / "built.onnx")) as runner:
        found = runner.infer({"x": negative})["y"]
    np.testing.assert_array_equal(found, pooled(negative, 0.0))
