"""torchvision's transforms, also where its operators were built for another PyTorch."""

from __future__ import annotations

from typing import Any

from qcompile.model.named.description import declare_torchvision_operators


def transforms() -> Any:
    """Return `torchvision.transforms`."""
    declare_torchvision_operators()
    from torchvision import transforms as module

    return module
