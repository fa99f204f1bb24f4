"""Import PyTorch lazily, with an error that says how to install it."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import EngineUnavailable
from ..machine_memory import require_address_space

_NEEDED_BYTES = 640 << 20
"""Address space that PyTorch takes (500 MB, version 2.13): with less, its libraries may end the process."""


def import_torch() -> Any:
    """Import PyTorch."""
    if "torch" not in sys.modules:
        require_address_space(_NEEDED_BYTES, "load PyTorch")
    try:
        import torch
    except ImportError as error:
        raise EngineUnavailable(
            f"PyTorch cannot be imported ({error})",
            hint="pip install 'qcompile[torch]'",
            engine="pytorch",
        ) from error
    return torch
