"""Capture embedding bags as a lookup and a reduction instead of a loop over the bags.

`torch.nn.EmbeddingBag` looks up rows of a table and reduces the rows of each bag. PyTorch's exporter writes a
Loop that appends to a sequence, which neither OpenVINO nor TensorRT supports. If the bags are the rows of an
index matrix [bags, length], the equivalent is

    Gather(table, indices) [bags, length, width] ─ ReduceMean, -Sum or -Max of axis 1 ─ [bags, width]

If offsets [bags] give the start of each bag in the indices [n], the row at place p belongs to bag

    bag[p] = (ReduceSum over b of (offsets[b] <= p)) - 1

and a scatter to bag[p] computes the sum, which a count divides for the mean, or the maximum. Of several bags
with the same start, all but the last are empty; the result of an empty bag is 0.
"""

from __future__ import annotations

from typing import Any

from ...model.sources.pytorch import import_torch


def embedding_bag_form(functional: Any) -> Any:
    """Return a replacement of `functional.embedding_bag`; calls with `max_norm` run the original."""
    torch, original = import_torch(), functional.embedding_bag

    def embedding_bag(  # type: ignore[no-untyped-def]
        input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
        sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None,
    ):  # fmt: skip
        if max_norm is not None or (input.dim() == 2 and offsets is not None):  # offsets: an error
            return original(
                input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
                per_sample_weights, include_last_offset, padding_idx,
            )  # fmt: skip
        rows = functional.embedding(input, weight)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if input.dim() == 2 and padding_idx is None:
            return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
        present = torch.ones_like(input, dtype=torch.bool)
        if padding_idx is not None:
            present = input != (padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx)
        if offsets is None:
            offsets = torch.arange(input.shape[0], device=input.device) * input.shape[1]
            rows, present = rows.flatten(0, 1), present.flatten()
        bags = _reduce_bags(rows, present, offsets, mode)
        return bags[:-1] if include_last_offset else bags

    return embedding_bag


def _reduce_bags(rows: Any, present: Any, offsets: Any, mode: str) -> Any:
    """Return the sum, mean or maximum over the present rows of each bag."""
    torch = import_torch()
    places = torch.arange(rows.shape[0], device=rows.device)
    bag = (offsets.unsqueeze(0) <= places.unsqueeze(1)).sum(1) - 1
    present = present.unsqueeze(1)
    count = rows.new_zeros(offsets.shape[0], 1).index_add(0, bag, present.to(rows.dtype))
    if mode == "max":
        lowest = torch.finfo(rows.dtype).min
        start = rows.new_full((offsets.shape[0], rows.shape[1]), lowest)
        index = bag.unsqueeze(1).expand_as(rows)
        largest = start.scatter_reduce(0, index, torch.where(present, rows, lowest), "amax")
        return torch.where(count > 0, largest, 0.0)
    sums = rows.new_zeros(offsets.shape[0], rows.shape[1])
    sums = sums.index_add(0, bag, torch.where(present, rows, 0.0))
    return sums / count.clamp(min=1) if mode == "mean" else sums
