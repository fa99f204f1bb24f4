"""torchvision beside a PyTorch that its operators were not built for: two are defined in Python first.

Import this before torchvision. Elsewhere its own operators are loaded, and nothing happens here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[Any] = []  # a library ends with its object


def suppress(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes that stay after greedy non-maximum suppression, best score first.

    Args:
        boxes: float32 [n, 4] as x0, y0, x1, y1.
        scores: float32 [n].
        iou_threshold: A box that overlaps a better one by more is dropped.
    """
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, kept = scores.argsort(descending=True, stable=True).tolist(), []
    while order:
        best = order.pop(0)
        kept.append(best)
        low = torch.maximum(boxes[order, :2], boxes[best, :2])
        high = torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        overlap = shared / (area[order] + area[best] - shared)
        order = [
            index for index, value in zip(order, overlap.tolist(), strict=True) if value <= iou_threshold
        ]
    return torch.tensor(kept, dtype=torch.int64)


def define() -> None:
    """Define `nms` and `qnms`, unless torchvision's own can be loaded."""
    if _KEPT or _loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}{_SIGNATURE}")
        library.impl(name, suppress, "CPU")
    from torchvision import extension

    extension._has_ops = lambda: True  # it would refuse to call them


def _loads() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True  # importing it will say so
    for path in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            return False
        return True
    return False


define()
