"""What TensorRT's graphs look like, and where TensorRT and TensorRT-RTX are proposed."""

from __future__ import annotations

from ...model.graph_rules import GraphRules
from ...spec.words import BLOCK_FORMATS
from ..words import Proposal, TritonBackend

PACKAGES = {"tensorrt": "tensorrt"}
RTX_PACKAGES = {"tensorrt-rtx": "tensorrt_rtx"}

RULES = GraphRules(
    zero_points="none", quantizes_chains=False, opens_lstms=True, formats=("fp8", *BLOCK_FORMATS)
)

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
