"""Where TorchScript is proposed, and what serves it."""

from __future__ import annotations

from ..words import Proposal, TritonBackend

PACKAGES = {"torch": "torch"}
PROPOSALS = (Proposal("torchscript", "fp32", "as asked for", "named"),)

TRITON = TritonBackend(
    "pytorch", "pytorch_libtorch", "model.pt",
    frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split()), ("cpu", "gpu"),
)  # fmt: skip
