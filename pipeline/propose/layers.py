"""What a module tells: kinds of layers, the shape that the first takes, inputs of a captured program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ...tensors import format_shape

KINDS = {
    "convolution": re.compile(r"conv", re.I),
    "recurrent": re.compile(r"^(aten\.)?(lstm|gru|rnn)", re.I),
    "attention": re.compile(r"attention|^softmax$|layernorm", re.I),
    "product": re.compile(r"linear|^matmul$|^gemm$|^(aten\.)?(addmm|bmm|mm)\b", re.I),
}
"""Kind of layer to what names it: a module of PyTorch, an operator of `torch.export`, an operator of ONNX."""


def required_arguments(module: Any) -> list[str]:
    """Return the names of the arguments that `forward` requires."""
    import inspect

    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]


def input_templates(module: Any, names: Sequence[str]) -> str:
    """Return `inputs` for each argument, with what the first layer says of the only one."""
    if len(names) != 1:
        return " and ".join(f"`inputs` {name}:[batch,...]" for name in names) or "`inputs` NAME:[batch,...]"
    shape = next((text for part in module.modules() if (text := _taken_by(part))), "[batch,...]")
    return f"`inputs` {names[0]}:{shape}"


def _taken_by(part: Any) -> str:
    """The shape that a layer takes, as far as it tells; empty for another."""
    kind = type(part).__name__
    if kind in ("Conv1d", "Conv2d", "Conv3d"):
        axes = {"1": "LENGTH", "2": "HEIGHT,WIDTH", "3": "DEPTH,HEIGHT,WIDTH"}[kind[4]]
        return f"[batch,{part.in_channels},{axes}]"
    if kind == "Linear":
        return f"[batch,{part.in_features}]"
    if kind == "Embedding":
        return "[batch,LENGTH]:int64"
    if kind in ("LSTM", "GRU", "RNN"):
        order = "batch,LENGTH" if part.batch_first else "LENGTH,batch"
        return f"[{order},{part.input_size}]"
    return ""


def names_of_layers(module: Any) -> Iterable[str]:
    """Yield what names the layers of a module, of TorchScript, or of a captured program."""
    for part in module.modules():
        yield getattr(part, "original_name", "") or type(part).__name__
    graph = getattr(module, "graph", None)
    for node in getattr(graph, "nodes", ()) if hasattr(module, "_in_spec") else ():
        yield str(node.target)


def kinds_of_layers(names: Iterable[str]) -> frozenset[str]:
    """Return the kinds of layers by their names."""
    every = set(names)
    return frozenset(kind for kind, pattern in KINDS.items() if any(map(pattern.search, every)))


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
