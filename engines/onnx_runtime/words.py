"""Data about ONNX Runtime: packages, rules for quantized graphs, proposals for recipes, Triton settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ...core.installation import SUBSTITUTES
from ...model import onnx
from ...model.graph.graph_rules import GraphRules, SaturatingKernels
from ...model.sessions.session import import_onnxruntime, session_options
from ..words import TRITON_TYPES, Proposal, TritonBackend

PACKAGES = dict.fromkeys(("onnxruntime", *SUBSTITUTES["onnxruntime"]), "onnxruntime")
"""Maps the distributions that provide the module, of which a machine has only one, to the module."""


def run_model(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a small model, on one thread."""
    session = import_onnxruntime().InferenceSession(
        model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


SCRIPT = """\
import numpy as np
import onnxruntime

feeds = dict(np.load("inputs.npz"))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(names, feeds)))
"""

RULES = GraphRules(
    weighted=frozenset(["Conv", "MatMul", "Gemm"]),
    signed_on_arm=True,
    quantizes_bias=True,
    slow_products="ONNX Runtime",
    by_onnxruntime=True,
    reads_nbits=True,
    why_no_halves="its integer kernels read and write float32, and its CPU kernels do not support bfloat16",
    # measured on 2026-11-23: ONNX Runtime 1.31.1 on a Haswell emulated by QEMU 7.2
    saturates={
        "avx2": SaturatingKernels(
            dense="flat", grouped="flat", products="flat", dynamic="flat", recurrent="flat"
        )
    },
    run=run_model,
)

_FLOAT_GAIN = "the float model in ONNX Runtime: the fairest comparison for INT8"
_STATIC = "8-bit weights and activations, with ranges from the calibration samples"
_DYNAMIC = "8-bit weights; activations get their scales at run time, so no calibration"
PROPOSALS = (
    Proposal("onnx-fp32", "fp32", _FLOAT_GAIN, "float"),
    Proposal("onnx-int8", "int8", _STATIC, "static"),
    Proposal("onnx-int8-dynamic", "int8", _DYNAMIC, "dynamic", mode="dynamic"),
)

TRITON = TritonBackend(
    "onnxruntime", "onnxruntime_onnx", "model.onnx", frozenset(TRITON_TYPES), ("cpu", "gpu"),
    infers_extents=True,
)  # fmt: skip
