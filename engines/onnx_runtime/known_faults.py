"""Known faults: graphs that ONNX Runtime's optimizer turns into graphs that compute something else."""

from __future__ import annotations

from pathlib import Path

from ...model.requantized import OPTIMIZER, requantized
from ...model.weightless import read_weightless
from ..faults import KnownFault

KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        "requantized-layer",
        "Conv, ConvTranspose or Gemm",
        ("microsoft/onnxruntime 22889", "microsoft/onnxruntime 22969"),
        "between Q/DQ gets weights of int8 where the graph has floats, or a bias of int32 that overflows",
        "rewrite",  # seen with 1.21.1, 1.23.2 and 1.31.1; model/requantized.py has the three cases
        versions={"onnxruntime": ("1.21", "")},
    ),
)


def optimizers_to_leave_out(path: Path) -> tuple[str, ...]:
    """Return the names of the optimizers that would change what a file computes."""
    return (OPTIMIZER,) if requantized(read_weightless(path).model) else ()
