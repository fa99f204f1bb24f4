"""torchvision's transforms, also where its operators were built for another PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def transforms() -> Any:
    """Return `torchvision.transforms`."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "coverage_models"))
    try:
        import torchvision_operators  # noqa: F401
    finally:
        sys.path.pop(0)
    from torchvision import transforms as found

    return found
