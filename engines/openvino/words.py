"""What OpenVINO's graphs look like, how its precisions run, and where it is proposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ...model.graph_rules import GraphRules, SaturatingKernels
from ..words import TRITON_TYPES, Proposal, TritonBackend

if TYPE_CHECKING:
    import onnx


def run_model(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a small model, on one thread and in float32 beside its integers."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    results = compiled(dict(feeds))
    return {value.name: results[value.name] for value in model.graph.output}


RULES = GraphRules(
    # With a zero point products of two activations fall to float (2026.4), so those are symmetric int8.
    zero_points="where free",
    writes_floats=True,
    gathers_by_vectors=True,
    reads_nbits=True,
    # 2026.4.1 with ONEDNN_MAX_CPU_ISA=AVX2; 2026-11-23
    saturates={"avx2": SaturatingKernels(dense="taps", grouped="flat", products="flat", activations="flat")},
    run=run_model,
)

PACKAGES = {"openvino": "openvino"}
FOUR_BITS = "it does not tell which weights have 4 bits"

PROPOSALS = (
    Proposal("openvino-fp32", "fp32", "the other runtime for this processor", "float alone"),
    Proposal(
        "openvino-int8", "int8", "often the fastest INT8 on x86: it fuses more than ONNX Runtime", "static"
    ),
    Proposal("openvino-bf16", "bf16", "this processor multiplies in bfloat16", "bf16"),
)

TRITON = TritonBackend(
    "openvino", "", "model.onnx",
    frozenset(TRITON_TYPES) - {"bfloat16", "float64", "string"},  # openvino_utils.cc
    ("cpu",),  # openvino.cc: "supports only Kind CPU and AUTO"
    default_file="model.xml",
    # openvino.cc: with max_batch_size a request of any other batch is refused, or padded up to it.
    batches=False,
    note="OpenVINO computes float parts in bf16 where the CPU can; its backend has no other hint",
)  # fmt: skip
