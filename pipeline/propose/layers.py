"""What the layers of a model tell: their kinds, and the shape that the first of them takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

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
