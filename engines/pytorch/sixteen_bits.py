"""Call a module as users do to halve its memory traffic: `.half()`, or `torch.autocast`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def in_sixteen_bits(torch: Any, module: Any, mode: str, device: Any) -> Callable[..., Any]:
    """Return a call that takes and returns float32 tensors, and computes in 16 bits between.

    Args:
        torch: The module.
        module: In mode half, one whose weights are float16 already.
        mode: "half", or "autocast" with PyTorch's default type: bfloat16 on a processor, float16 on a GPU.
        device: The GPU; None for the processor.
    """
    if mode == "half":

        def run(*arguments: Any, **keywords: Any) -> Any:
            cast = [_cast(torch, tensor, torch.float16) for tensor in arguments]
            named = {name: _cast(torch, tensor, torch.float16) for name, tensor in keywords.items()}
            return _cast(torch, module(*cast, **named), torch.float32)

        return run
    kind = "cpu" if device is None else "cuda"
    dtype = torch.bfloat16 if device is None else torch.float16

    def run_with_autocast(*arguments: Any, **keywords: Any) -> Any:
        with torch.autocast(kind, dtype=dtype):
            return _cast(torch, module(*arguments, **keywords), torch.float32)

    return run_with_autocast


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    """The floating-point tensors of a value in another type; everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _cast(torch, item, dtype) for name, item in value.items()}
    return [_cast(torch, item, dtype) for item in value] if isinstance(value, tuple | list) else value
