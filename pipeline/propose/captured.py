"""The inputs that a program of `torch.export` was captured with: a `.pt2` needs no others."""

from __future__ import annotations

from typing import Any

from ...tensors import format_shape


def captured_inputs(module: Any) -> tuple[str, ...]:
    """Return `NAME:SHAPE[:DTYPE]` of each input of a captured program; nothing of another module.

    A symbolic first axis is called batch; the same symbol has the same name everywhere.
    """
    if not hasattr(module, "_in_spec"):
        return ()
    values = [
        (str(node.target), node.meta.get("val")) for node in module.graph.nodes if node.op == "placeholder"
    ]
    if any(not hasattr(value, "shape") for _, value in values):
        return ()  # an argument that is no tensor
    names: dict[str, str] = {}
    return tuple(_spelled(name, value, names) for name, value in values)


def _spelled(name: str, value: Any, names: dict[str, str]) -> str:
    shape: list[int | str] = []
    for axis, extent in enumerate(value.shape):
        if isinstance(extent, int):
            shape.append(extent)
            continue
        usual = "batch" if not axis and "batch" not in names.values() else f"{name}_{axis}"
        shape.append(names.setdefault(str(extent), usual))
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{name}:{format_shape(tuple(shape))}" + ("" if dtype == "float32" else f":{dtype}")
