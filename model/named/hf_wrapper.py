"""A transformers model that takes plain tensors and returns a dict of plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..nested import NestedInputs, Slot

_NOT_RETURNED = ("loss", "encoder_last_hidden_state")
_TOLD = ("logits", "boxes", "embeds", "predicted_depth")


class PlainModel(NestedInputs):
    """Tensors by position in, a dict of the tensors that answer the task out; no cache, no hidden states.

    Args:
        model: Of transformers.
        names: Names of its inputs, in order.
        left_out: Outputs that are none.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], left_out: Sequence[str] = ()) -> None:
        super().__init__(model, (), {name: Slot(name) for name in names}, names)
        self.left_out = tuple(left_out)

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the model."""
        return kept_outputs(super().forward(*tensors), self.left_out)


def kept_outputs(outputs: Any, left_out: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of what a model returned: logits, boxes and embeddings where there are some."""
    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    if not isinstance(outputs, Mapping):
        return {f"output_{i}": item for i, item in enumerate(outputs) if isinstance(item, torch.Tensor)}
    tensors = {
        name: value
        for name, value in outputs.items()
        if isinstance(value, torch.Tensor) and name not in (*_NOT_RETURNED, *left_out)
    }
    told = {name: value for name, value in tensors.items() if any(word in name for word in _TOLD)}
    return told or tensors
