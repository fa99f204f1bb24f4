"""Import PyTorch lazily, with an error that says how to install it."""

from __future__ import annotations

from typing import Any

from ..errors import EngineUnavailable


def import_torch() -> Any:
    """Import PyTorch.

    Raises:
        EngineUnavailable: If it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise EngineUnavailable(
            f"PyTorch cannot be imported ({error})",
            hint="pip install 'qcompile[torch]'",
            engine="pytorch",
        ) from error
    return torch
