"""EPContext files in ONNX Runtime with NVIDIA's plugin, which must load them without building anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qcompile
from qcompile.deploy import package_ep_context
from qcompile.engines.gpu import find_gpu

pytestmark = pytest.mark.gpu

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
plugin = pytest.importorskip(
    "onnxruntime_ep_nv_tensorrt_rtx", reason="onnxruntime-ep-nv-tensorrt-rtx is not installed"
)

NAME = "NvTensorRTRTXExecutionProvider"


@pytest.mark.parametrize("embed", [False, True])
def test_the_provider_computes_what_the_model_does(
    embed: bool, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    gpu = find_gpu()
    assert gpu is not None
    model = tiny_file("residual", batch=2)
    qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=[gpu.architecture])
    path = package_ep_context(tmp_path / "m.engine", tmp_path / "m_ctx.onnx", embed=embed).path
    if NAME not in {device.ep_name for device in ort.get_ep_devices()}:
        ort.register_execution_provider_library(NAME, plugin.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    assert devices, f"{NAME} takes no GPU here"
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices[:1], {})
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)}
    (found,) = ort.InferenceSession(str(path), options).run(None, feeds)
    (expected,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feeds)
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()
