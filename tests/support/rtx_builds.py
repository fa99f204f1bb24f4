"""What TensorRT-RTX builds of a graph for a GPU that need not be here."""

from __future__ import annotations

import onnx
import pytest

from qcompile.engines.tensorrt.builder.network import by_precision, compute_layers


def rtx_build(model: onnx.ModelProto, gpu: str) -> tuple[dict[str, dict[str, int]], bytes]:
    """Return layers by precision of the parsed network, and the engine; no bytes where it is refused."""
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    log = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse(model.SerializeToString()), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, gpu), 0)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shapes = [[extent if size < 0 else size for size in tensor.shape] for extent in (1, 3, 4)]
        profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return by_precision(compute_layers(network)), b"" if plan is None else bytes(plan)
