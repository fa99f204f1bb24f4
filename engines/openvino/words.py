"""Data about OpenVINO: packages, rules for quantized graphs, proposals, Triton settings and known faults."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ...model import onnx
from ...model.graph.graph_rules import GraphRules, SaturatingKernels
from ..words import TRITON_TYPES, KnownFault, Proposal, TritonBackend


def shared_core() -> Any:
    """Return the one Core of this process.

    A Core's first compilation sets a signal stack for the thread; its destruction restores the previous one.
    If two Cores are destroyed in the order of their creation, the thread's signal stack is unmapped memory,
    and Ctrl-C kills the process (OpenVINO 2026.4.1, on processors with AMX).
    """
    import openvino

    return _core(openvino.Core)


@functools.cache
def _core(kind: type) -> Any:
    return kind()


def run_model(
    model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]], **settings: object
) -> dict[str, NDArray[Any]]:
    """Return the outputs of a small model, computed on one thread, with floats in float32."""
    core = shared_core()
    settings |= {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    results = compiled(dict(feeds))
    return {value.name: results[value.name] for value in model.graph.output}


SCRIPT = """\
import numpy as np
import openvino

feeds = dict(np.load("inputs.npz"))
model = openvino.Core().read_model("model.onnx")
{reshape}compiled = openvino.Core().compile_model(model, "CPU", {settings})
found = compiled(feeds)
outputs = {{name: found[output] for output in compiled.outputs for name in output.names}}
"""
RESHAPE = "model.reshape({name: array.shape for name, array in feeds.items()})\n"

RULES = GraphRules(
    # OpenVINO 2026.4 multiplies activations with zero points in float, so these are symmetric int8.
    zero_points="where free",
    writes_floats=True,
    gathers_by_vectors=True,
    reads_nbits=True,
    # measured on 2026-11-23: OpenVINO 2026.4.1 with ONEDNN_MAX_CPU_ISA=AVX2
    saturates={"avx2": SaturatingKernels(dense="taps", grouped="flat", products="flat", activations="flat")},
    run=run_model,
)

PACKAGES = {"openvino": "openvino"}
FOUR_BITS = "it does not report 4-bit weights"

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
    # With max_batch_size, openvino.cc refuses a request of another batch, or pads it to that size.
    batches=False,
    note="OpenVINO computes float parts in bf16 where the CPU can; its backend has no other hint",
)  # fmt: skip

# Graphs that OpenVINO's reader or optimizer changes into graphs with other results. This project found all of
# them with OpenVINO 2026.4.1 on every supported processor; tests/engines/test_openvino_faults.py has the
# smallest graphs. Versions from 2024.4 up to 2026.4.1 were not tested, and count as affected.
_SEEN = ("seen by us with OpenVINO 2026.4.1; not reported",)


def _fault(name: str, operator: str, defect: str, *precisions: str) -> KnownFault:
    return KnownFault(
        name, operator, _SEEN, defect, "rewrite", versions={"openvino": ("2024.4", "")}, precisions=precisions
    )


_PRODUCTS = "Conv, ConvTranspose, MatMul or Gemm"
KNOWN_FAULTS: tuple[KnownFault, ...] = (
    _fault("reduced-axes", "ReduceL1, ReduceLogSum and ReduceLogSumExp",
           "before opset 18 reduce all axes, whichever are named"),
    _fault("quantized-extremum", "ReduceMax or ReduceMin",
           "in front of a QuantizeLinear is rounded to an integer of 0 to 255 first", "int8"),
    _fault("reduced-channels", "ReduceSum, ReduceMean and other reductions",
           "without keepdims, behind operands for each channel and in front of a QuantizeLinear, takes those "
           "of other channels", "int8"),
    _fault("quantized-factors", "MatMul or Gemm",
           "of two axes, behind factors for each channel, in front of a QuantizeLinear and another such "
           "product, is wrong in fixed batches of 4, 6 and 8", "int8"),
    _fault("merged-bias", _PRODUCTS,
           "with dynamic shapes, read by a QuantizeLinear and elsewhere, has channel 0's bias in all "
           "channels; a Conv without bias that is read twice loses its scale", "int8"),
    _fault("moved-scale", _PRODUCTS,
           "without bias and with a dynamic batch in front of a Reshape is scaled along another axis",
           "int8"),
    _fault("reduced-scale", "Conv",
           "without bias, or with factors for each channel behind it, in front of a Reshape to [N, C, H W] "
           "and a reduction, is scaled along another axis", "int8"),
    _fault("gathered-scale", _PRODUCTS,
           "without bias in front of a Gather with a scalar index keeps the axis that the Gather removes, "
           "cannot be compiled, or ends the process", "int8"),
    _fault("shifted-count", "ReduceSum and other reductions",
           "of integers over the second or third of three axes, in front of a sum, a product or a quotient "
           "with constants, or of Neg, has the first vector of values alone right"),
)  # fmt: skip
