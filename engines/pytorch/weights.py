"""What a PyTorch module holds as weights, also where quantization has packed them away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model.graph import WeightsHeld

_INTEGER = ("torch.qint8", "torch.quint8", "torch.qint32", "torch.int8", "torch.uint8")
_HALVES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}


def weights_of_module(torch: Any, module: Any) -> WeightsHeld:
    """Return the weights of a module.

    `parameters()` alone would not do: quantized modules of torch.ao hold theirs packed, outside of it, and
    would seem to have lost them. Counted are parameters, integer tensors, what the state holds beside
    parameters and buffers (the packed weights), and the constants of a TorchScript graph. Scales and zero
    points, which are scalars or buffers, and running means are bytes, but no parameters.
    """
    module = getattr(module, "_orig_mod", module)  # what torch.compile has wrapped
    if isinstance(module, torch.jit.ScriptModule):
        return _of_script(torch, module)
    parameters = dict(module.named_parameters())
    buffers = {name for name, _ in module.named_buffers()}
    used = _used(torch, module)
    count, size, types = 0, 0, set()
    seen: set[int] = set()
    for name, value in {**module.state_dict(), **parameters}.items():
        for tensor in _tensors(torch, value):
            if id(tensor) in seen or not (used is None or name.startswith(used)):
                continue
            seen.add(id(tensor))
            size += sum(part.numel() * part.element_size() for part in _parts(tensor))
            integer = any(str(part.dtype) in _INTEGER and part.ndim > 1 for part in _parts(tensor))
            packed = name not in parameters and name not in buffers
            if name in parameters or integer or (packed and tensor.numel() > 1):
                count += tensor.numel()
                types |= {"int8"} if integer else {_HALVES.get(str(tensor.dtype), "fp32")}
    return WeightsHeld(count, size, _precision(module, types))


def _precision(module: Any, types: set[str]) -> str:
    simulated = any(type(part).__name__.endswith("FakeQuantize") for part in module.modules())
    if "int8" in types or simulated:
        return "int8"
    return next(iter(types)) if len(types) == 1 and types != {"fp32"} else ""


def _used(torch: Any, module: Any) -> tuple[str, ...] | None:
    """Names that a graph reads; None for all: what torchao's conversion folds leaves the original behind."""
    if not isinstance(module, torch.fx.GraphModule):
        return None
    nodes = [node for node in module.graph.nodes if node.op in ("get_attr", "call_module")]
    return tuple(node.target if node.op == "get_attr" else f"{node.target}." for node in nodes)


def _of_script(torch: Any, module: Any) -> WeightsHeld:
    """The parameters of a TorchScript module; of a frozen one, the constants of its graph."""
    stored = [*module.state_dict().values()]
    count = sum(tensor.numel() for tensor in module.parameters())
    try:
        graph = module.inlined_graph  # its nodes live as long as it does
        nodes = graph.findAllNodes("prim::Constant")
    except RuntimeError:  # it has no `forward` of its own
        nodes = []
    for node in nodes:
        kind = node.output().type().kind()
        constant = node.output().toIValue() if kind == "TensorType" else None
        if isinstance(constant, torch.Tensor):
            stored.append(constant)
            count += constant.numel() if constant.ndim and constant.is_floating_point() else 0
    return WeightsHeld(count, sum(tensor.numel() * tensor.element_size() for tensor in stored))


def _tensors(torch: Any, value: object) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(torch, item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(torch, item)


def _parts(tensor: Any) -> list[Any]:
    """The tensors that a subclass, such as one of torchao's, is made of; the tensor itself otherwise."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in _parts(getattr(tensor, name))]
