"""A pickle that leaves a mark where it is unpickled."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def torch_saved(value: object) -> bytes:
    """What `torch.save` writes of a value."""
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()
