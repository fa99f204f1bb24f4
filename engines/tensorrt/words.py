"""TensorRT and TensorRT-RTX in data: packages, scripts, graph rules, recipe proposals and Triton settings."""

from __future__ import annotations

from ...model.graph.graph_rules import GraphRules
from ..words import Proposal, TritonBackend

PACKAGES = {"tensorrt": "tensorrt"}
RTX_PACKAGES = {"tensorrt-rtx": "tensorrt_rtx"}

SCRIPT = """\
import numpy as np
import {module} as trt


class Log(trt.ILogger):
    errors = []

    def __init__(self):
        trt.ILogger.__init__(self)

    def log(self, severity, text):
        if severity <= trt.ILogger.ERROR:
            Log.errors.append(text)


feeds, log = dict(np.load("inputs.npz")), Log()
builder = trt.Builder(log)
network = builder.create_network({flags})
parser = trt.OnnxParser(network, log)
parsed = parser.parse_from_file("model.onnx")
config, profile = builder.create_builder_config(), builder.create_optimization_profile()
for tensor in map(network.get_input, range(network.num_inputs)):
    if -1 in tensor.shape:
        largest = feeds[tensor.name].shape
        profile.set_shape(tensor.name, [abs(extent) for extent in tensor.shape], largest, largest)
config.add_optimization_profile(profile)
{gpus}if not parsed or builder.build_serialized_network(network, config) is None:
    raise RuntimeError("; ".join(Log.errors))
outputs = {{}}
"""
GPUS = """\
config.num_compute_capabilities = {count}
for index, name in enumerate({names}):
    config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
"""

RULES = GraphRules(zero_points="none", quantizes_chains=False, opens_recurrences=True, formats=("fp8",))

TRITON = TritonBackend(
    "tensorrt", "tensorrt_plan", "model.plan",
    frozenset("float32 float16 bfloat16 int8 uint8 int32 int64 bool".split()),
    ("gpu",),  # model_state.cc: "TensorRT backend does not support KIND_CPU at all"
)  # fmt: skip


def proposals(prefix: str) -> tuple[Proposal, ...]:
    return (
        Proposal(f"{prefix}-fp16", "fp16", "half the size, Tensor Cores", "float"),
        Proposal(f"{prefix}-int8", "int8", "a quarter of the size, INT8 Tensor Cores", "static"),
    )
