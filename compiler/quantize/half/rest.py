"""Convert what a quantized graph leaves in float32 to half precision: the Q/DQ stay as they are."""

from __future__ import annotations

from pathlib import Path

from ....model.graph import infer_types
from ....model.onnx_file import load_onnx, save_onnx
from ....spec.words import HALVES
from .precision import to_half


def with_half_rest(model: Path, output: Path, precision: str) -> Path:
    """Return the file of a quantized model whose float parts have a precision.

    A weakly typed TensorRT chose FP16 by a flag, for what the Q/DQ leave in float. A strongly typed one takes
    the types of the graph.

    Args:
        model: ONNX file with Q/DQ, of any target.
        output: File to write, where something changes.
        precision: "fp16" or "bf16"; "fp32" changes nothing.

    Returns:
        `output`, or `model`: where nothing changes, or it has half types already, which whoever quantized it
        chose.

    Raises:
        UnsupportedOperator: As `to_half`.
    """
    if precision not in HALVES:
        return model
    proto = load_onnx(model)
    if {*HALVES.values()} & {*infer_types(proto).values()}:
        return model
    save_onnx(to_half(proto, HALVES[precision])[0], output)
    return output
