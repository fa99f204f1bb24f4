"""Known faults: graphs that OpenVINO's optimizer or reader turns into graphs that compute something else.

All were found here, with 2026.4.1 on every processor that it runs on; tests/engines/test_openvino_faults.py
has the smallest graphs. Older versions, from 2024.4 on, were not tried, and count as affected.
"""

from __future__ import annotations

from importlib import metadata

from ..faults import KnownFault, faults_of

_SEEN = ("seen by us with OpenVINO 2026.4.1; not reported",)


def _fault(name: str, operator: str, what: str, *precisions: str) -> KnownFault:
    return KnownFault(
        name, operator, _SEEN, what, "rewrite", versions={"openvino": ("2024.4", "")}, precisions=precisions
    )


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    _fault(
        "reduced-axes",
        "ReduceL1, ReduceLogSum and ReduceLogSumExp",
        "before opset 18 reduce all axes, whichever are named",
    ),
    _fault(
        "quantized-extremum",
        "ReduceMax or ReduceMin",
        "in front of a QuantizeLinear is rounded to an integer of 0 to 255 first",
        "int8",
    ),
    _fault(
        "merged-bias",
        "Conv, ConvTranspose, MatMul or Gemm",
        "with dynamic shapes, read by a QuantizeLinear and elsewhere, has channel 0's bias in all channels",
        "int8",
    ),
    _fault(
        "moved-scale",
        "Conv, ConvTranspose, MatMul or Gemm",
        "without bias and with a dynamic batch in front of a Reshape is scaled along another axis",
        "int8",
    ),
)


def known_faults() -> tuple[KnownFault, ...]:
    """Return those of the installed version; all where none is installed."""
    try:
        version = metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return KNOWN_FAULTS
    return faults_of(KNOWN_FAULTS, "openvino", version)
