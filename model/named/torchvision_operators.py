"""Declare torchvision's operators where its library does not load.

torchvision registers `nms` and others from a compiled library. Where that library does not load beside this
PyTorch, `import torchvision` fails, and with it timm and the vision models of transformers. Their networks
need none of these operators. So they are declared first, and `nms` is computed in Python; the export warns.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pytorch import import_torch

if TYPE_CHECKING:
    pass

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[Any] = []  # a library ends with its object
_reason_declared = ""


def mismatch() -> str:
    """Return why torchvision's operators do not load beside this PyTorch; empty where they do.

    Empty, too, where either package is missing.
    """
    library = _library()
    if library is None:
        return ""
    torch = import_torch()
    try:
        torch.ops.load_library(str(library))
    except OSError:
        versions = f"torchvision {importlib.metadata.version('torchvision')}, torch {torch.__version__}"
        return f"torchvision's operators do not load beside this PyTorch ({versions})"
    return ""


def declare_torchvision_operators() -> str:
    """Make `import torchvision` work where its operators do not load.

    Nothing is done where they load, where torchvision is missing, or where they are declared already.

    Returns:
        A warning that names the mismatch; empty where there is none.
    """
    global _reason_declared
    if not _KEPT and not hasattr(import_torch().ops.torchvision, "nms"):
        reason = mismatch()
        if reason:
            _define()
            _reason_declared = (
                f"{reason}; nms is computed in Python, other operators of torchvision.ops are not there"
            )
    return _reason_declared


def suppress(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the indices of the boxes that stay after greedy non-maximum suppression, best score first.

    Args:
        boxes: float32 [n, 4] as x0, y0, x1, y1.
        scores: float32 [n].
        iou_threshold: A box that overlaps a better one by more is dropped.
    """
    torch = import_torch()
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


def _define() -> None:
    torch = import_torch()
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}{_SIGNATURE}")
        library.impl(name, suppress, "CPU")
    from torchvision import extension

    extension._has_ops = lambda: True  # it would refuse to call them


def _library() -> Path | None:
    """torchvision's compiled operators; None where torchvision is missing."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return next((path for pattern in ("_C*.so", "_C*.pyd") for path in folder.glob(pattern)), None)
