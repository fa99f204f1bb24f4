"""Capture embedding bags of one length as a lookup and a reduction, not as a loop over the bags.

`torch.nn.EmbeddingBag` reads rows of a table and reduces each bag of them. Its exporter writes a Loop that
appends to a sequence, which neither OpenVINO nor TensorRT takes. Where the bags are the rows of a matrix of
indices [bags, length], the same is

    Gather(table, indices) [bags, length, width] ─ ReduceMean, -Sum or -Max of axis 1 ─ [bags, width]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...model.pytorch import import_torch


@contextmanager
def bags_without_loops() -> Iterator[None]:
    """Let bags of one length be a lookup and a reduction while a model is captured.

    Bags of several lengths (offsets) or with padded indices, and tables that a call renormalizes, stay.
    """
    functional = import_torch().nn.functional
    original = functional.embedding_bag

    def embedding_bag(
        input: Any,
        weight: Any,
        offsets: Any = None,
        max_norm: Any = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: Any = None,
    ) -> Any:
        if input.dim() != 2 or offsets is not None or max_norm is not None or padding_idx is not None:
            return original(
                input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
                per_sample_weights, include_last_offset, padding_idx,
            )  # fmt: skip
        rows = functional.embedding(input, weight)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)

    functional.embedding_bag = embedding_bag
    try:
        yield
    finally:
        functional.embedding_bag = original
