"""Where packages keep what they downloaded, and how they are kept from downloading more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import ModelError


def hub_cache() -> Path:
    """Return the folder of Hugging Face's cache, as huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def torch_cache() -> Path:
    """Return the folder of PyTorch's cache of checkpoints."""
    home = os.environ.get("TORCH_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch"
    )
    return Path(home).expanduser() / "hub" / "checkpoints"


def not_cached(spec: str, what: str, folder: Path) -> ModelError:
    """Return the error for weights that are not in the local cache."""
    return ModelError(
        f"{spec}: {what} is not in the local cache {folder}; only with `download` it is downloaded",
        hint="give `download`; or `weights` random, for a model without its training; or `weights` FILE",
        file=folder,
    )


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Let Hugging Face's packages download in the block, or keep them from it."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not allowed
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
