"""How a row of the tables of transformers becomes a module: class names and a configuration's options."""

from __future__ import annotations

from functools import partial
from typing import Any

import torchvision_operators  # noqa: F401  # transformers imports torchvision where it is installed
from architecture import Architecture, Input, Range

SMALL: dict[str, Any] = {
    "vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_labels": 5,
}  # fmt: skip
"""A Transformer of two layers, 64 wide, as most configurations spell it."""


def make(config: str, model: str, options: dict[str, Any], changes: dict[str, Any] | None = None) -> Any:
    """Return a model with random weights."""
    import transformers

    made = getattr(transformers, config)(**options)
    for name, value in (changes or {}).items():
        setattr(made, name, value)
    return getattr(transformers, model)(made)


def row(
    name: str,
    task: str,
    config: str,
    model: str,
    inputs: tuple[Input, ...],
    options: dict[str, Any],
    *,
    axes: dict[str, Range] | None = None,
    changes: dict[str, Any] | None = None,
) -> Architecture:
    """One architecture of transformers; class names without `Config` and with their head."""
    return Architecture(
        name,
        "transformers",
        task,
        partial(make, f"{config}Config", model, options, changes),
        inputs,
        axes or {},
    )
