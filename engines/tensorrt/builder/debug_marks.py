"""Mark tensors of a network as debug tensors, which an engine can show while it runs (TensorRT 10 and newer).

`markDebug` keeps a tensor out of fusions; `markUnfusedTensorsAsDebugTensors` (10.12 and newer) does not, and
shows what the builder left unfused, by the names that the inspector has (NvInfer.h, release/10.16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import InvalidOption
from ..adapter import Adapter

_UNFUSED = "mark_unfused_tensors_as_debug_tensors"


def marks_unfused(adapter: Adapter) -> bool:
    """Whether this TensorRT can show tensors without keeping them out of fusions."""
    return hasattr(adapter.module.INetworkDefinition, _UNFUSED)


def mark_debug_tensors(adapter: Adapter, network: Any, names: Sequence[str] | None) -> None:
    """Mark tensors by their names, or with None those that will not be fused.

    Raises:
        InvalidOption: If this TensorRT knows no debug tensors, or refuses one.
    """
    if names is None:
        if not marks_unfused(adapter) or not getattr(network, _UNFUSED)():
            raise InvalidOption(f"debug tensors: {adapter.name} marks no unfused tensors")
        return
    if not names:
        return
    if not hasattr(network, "mark_debug"):
        raise InvalidOption(f"debug tensors: {adapter.name} has none; TensorRT 10 or newer has")
    asked = set(names)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for number in range(layer.num_outputs):
            tensor = layer.get_output(number)
            if tensor.name in asked and not network.mark_debug(tensor):
                raise InvalidOption(f"debug tensors: {adapter.name} does not mark {tensor.name!r}")
