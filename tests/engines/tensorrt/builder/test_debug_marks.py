"""Tensors marked for debugging: by the real TensorRT-RTX, and refused by versions that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_tensorrt import VERSIONS, recorded_module

from qcompile.engines.base import BuildRequest
from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.builder import builder
from qcompile.engines.tensorrt.builder.network import mark_debug_tensors, marks_unfused
from qcompile.errors import InvalidOption
from qcompile.spec.artifacts import BuildSpec


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_since_10_12_mark_without_preventing_fusions(version: str) -> None:
    adapter = Adapter(recorded_module(version), "tensorrt")
    assert marks_unfused(adapter) == (version != "8.5.3")


def test_a_version_without_debug_tensors_says_so() -> None:
    module = recorded_module("8.5.3")
    network = module.INetworkDefinition()
    for names in (["a"], None):
        with pytest.raises(InvalidOption, match="debug tensors: tensorrt 8"):
            mark_debug_tensors(Adapter(module, "tensorrt"), network, names)
    mark_debug_tensors(Adapter(module, "tensorrt"), network, ())


@pytest.mark.parametrize("names", [(), ("c1", "r2", "absent"), None])
def test_rtx_builds_with_the_tensors_that_were_named(
    names: tuple[str, ...] | None,
    tiny_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    marked: list[str] = []

    def observe(adapter: Adapter, network: Any, asked: Any) -> None:
        mark_debug_tensors(adapter, network, asked)
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        tensors = [layer.get_output(0) for layer in layers]
        marked.extend(tensor.name for tensor in tensors if network.is_debug_tensor(tensor))

    monkeypatch.setattr(builder, "mark_debug_tensors", observe)
    spec = BuildSpec(target="tensorrt-rtx", gpus=("sm86",))
    model = tiny_file("residual", batch=2)
    request = BuildRequest(str(model), tmp_path / "m.engine", spec, debug_tensors=names)
    builder.build_plan(load_adapter("tensorrt-rtx"), request)
    assert (tmp_path / "m.engine").stat().st_size > 1000
    # NvInfer.h of 10.16: unfused tensors cannot be detected by isDebugTensor().
    assert marked == [name for name in ("c1", "r2") if names and name in names]
