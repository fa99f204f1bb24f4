"""A PyTorch module that was loaded, with what its source tells of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..tensors import TensorInfo

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedModel:
    """A PyTorch module in evaluation mode, with the example its function gave, if any.

    Attributes:
        module: Takes tensors; an example with nested structures was taken apart (`nested.NestedInputs`).
        example: The tensors of `forward`'s arguments, by position or by name.
        was_training: Whether it came in training mode, in which it would compute something else.
        inputs: Of a model by name: its inputs, dynamic axes with their ranges, and how samples become them.
        output_names: Suggested ones; empty for those of the structure that `forward` returns.
        warnings: What the user should know of it.
    """

    module: torch.nn.Module
    example: tuple[Any, ...] | dict[str, Any] | None
    was_training: bool = False
    inputs: tuple[TensorInfo, ...] = ()
    output_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
