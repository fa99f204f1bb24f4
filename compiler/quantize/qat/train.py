"""Quantization-aware training: prepare a model with fake quantization, and convert the trained model.

    model = qcompile.qat.prepare(model, example_inputs, target="onnxruntime")
    ...                                        # the usual training loop, a few epochs at a small rate
    model = qcompile.qat.convert(model)        # `qcompile export` writes QuantizeLinear/DequantizeLinear

The model is captured by `torch.export`, as `qcompile export` does: what can be exported can be trained.
Fake quantization goes where `placement` would put Q/DQ (`qat_placement`).

BatchNorm needs no folding before training. A weight has one scale per output channel, its largest
magnitude by 127, so rounding commutes with a gain g per channel, `round(g w) = g round(w)`: rounding the
weight in front of the BatchNorm is rounding the folded weight, whatever the statistics are. `convert` folds
it into scales and bias, and keeps the integers.

Near the end, ranges and statistics may be frozen, with `freeze(model)`: then the last steps train exactly
what will run. Without it they follow the data to the end, and `convert` takes them as they are then.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....calibration.qparams import per_channel
from ....errors import ExportError, InvalidOption, QuantizationError, first_line
from ....model.pytorch import import_torch
from ....model.saturating_kernels import SaturatingKernels, saturating_kernels
from ....processor import resolve_isa
from ....progress import quiet
from ....spec.decode import current_isas, deprecated
from ....spec.words import GRAPH_TARGETS, ISAS, GraphTarget, Isa
from ..int8.pair_limits import pair_limits
from .onnx_translations import TRAINED_FOR, onnx_translations, register_operators
from .placement import Spots, as_onnx, find_spots, operator, weight_axis

if TYPE_CHECKING:
    import torch

    from .fake_quantize import FakeQuantize

__all__ = ["convert", "freeze", "onnx_translations", "prepare"]

_IN_PLACE = frozenset(
    """
    relu_ relu6_ hardtanh_ clamp_ clamp_min_ leaky_relu_ sigmoid_ silu_ hardswish_ elu_ dropout_
    feature_dropout_ add_ sub_ mul_ div_
    """.split()
)
_VIEWS = frozenset(
    """
    view reshape flatten slice select permute transpose t squeeze unsqueeze expand detach alias split chunk
    """.split()
)


def prepare(
    model: torch.nn.Module,
    example_inputs: Any,
    target: GraphTarget = "onnxruntime",
    *,
    isa: Isa = "auto",
    exclude: Sequence[str] = (),
    dynamic_shapes: Any = None,
) -> torch.fx.GraphModule:
    """Return a copy of a model with fake quantization, ready to be trained, in training mode.

    Parameters and statistics keep their names, and are on the model's device. Dropout and BatchNorm follow
    `train()` and `eval()`; other code that asks for `self.training` is captured as in evaluation, so
    auxiliary heads and stochastic depth are left out.

    Args:
        model: The trained float model; it is not changed.
        example_inputs: A tensor, a tuple of positional, or a dict of keyword arguments of `forward`.
        target: "onnxruntime", "openvino" or "tensorrt" (also TensorRT-RTX): decides grids and places.
        isa: What the CPU that runs it multiplies integers with; "auto" is this one's.
        exclude: Globs of names of modules (`fc`, `stages.0.*`) that stay in float.
        dynamic_shapes: For `torch.export.export`; by default the first axis of every input may vary.

    Raises:
        ExportError: If PyTorch cannot capture the model.
        InvalidOption: If the target is unknown, or a pattern of `exclude` matches nothing.
        QuantizationError: If nothing in the model can be quantized.
    """
    if target not in GRAPH_TARGETS:
        raise InvalidOption(f"target {target!r} is unknown; known are {', '.join(GRAPH_TARGETS)}")
    isa = current_isas({"isa": isa}, deprecated)["isa"]
    if isa not in ISAS:
        raise InvalidOption(f"isa {isa!r} is unknown; known are {', '.join(ISAS)}")
    isa = resolve_isa(isa, target)
    captured = _capture(model, example_inputs, dynamic_shapes)
    _without_mutation(captured.graph)
    spots = find_spots(captured.graph, target, exclude)
    if not spots.weighted:
        name, reason = next(iter(spots.left_in_float.items()), ("", "no convolution and no linear layer"))
        raise QuantizationError(
            f"nothing to quantize: {f'{name!r}: ' if name else ''}{reason}",
            hint="choose another target, or leave the model in float",
            reasons=dict(spots.left_in_float),
        )
    _insert_weights(captured, spots, saturating_kernels(target, isa))
    _insert_activations(captured, spots, target, isa)
    _follow_mode(captured)
    prepared = _rebuilt(captured, type(model).__name__)
    prepared.meta[TRAINED_FOR] = target
    prepared.train()
    return prepared


def freeze(model: torch.nn.Module, *, ranges: bool = True, batch_norm: bool = True) -> None:
    """Let ranges of activations, and statistics of BatchNorm, stay as they are from here on.

    Call it after `model.train()`, which lets BatchNorm follow again.
    """
    from .fake_quantize import BatchNorm, FakeQuantize

    for module in model.modules():
        if ranges and isinstance(module, FakeQuantize):
            module.observing = False
        if batch_norm and isinstance(module, BatchNorm):
            module.eval()


def convert(model: torch.nn.Module) -> torch.fx.GraphModule:
    """Return a trained model with its scales frozen, in evaluation mode, for `qcompile export`.

    Weights are stored as int8, BatchNorm is folded, and activations go through
    `quantized_decomposed.quantize_per_tensor`, which exporters write as QuantizeLinear.

    Args:
        model: From `prepare`, after training; it is not changed.

    Raises:
        InvalidOption: If the model does not come from `prepare`.
        QuantizationError: If an activation was never observed, or its range is not finite.
    """
    torch = import_torch()
    from .fake_quantize import FakeQuantize, FakeQuantizeWeight, SameScale

    if not isinstance(model, torch.fx.GraphModule) or TRAINED_FOR not in model.meta:
        raise InvalidOption(
            f"{type(model).__name__}: not a model from qcompile.qat.prepare",
            hint="prepare it and train it first; pass the module itself, not a wrapper such as DDP",
        )
    register_operators()
    with quiet():  # PyTorch warns of its own way to copy a graph
        converted = copy.deepcopy(model).eval()
    for node in list(converted.graph.nodes):
        module = converted.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, SameScale):
            _quantize_activation(converted.graph, node, converted.get_submodule(module.source))
        elif isinstance(module, FakeQuantize):
            _quantize_activation(converted.graph, node, module)
        elif isinstance(module, FakeQuantizeWeight):
            _store_integers(converted, node)
        elif isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d):
            _take_out(converted.graph, node, node.args[0])
    result = _rebuilt(converted, type(model).__name__)
    result.meta[TRAINED_FOR] = model.meta[TRAINED_FOR]
    result.eval()
    return result


def _capture(model: torch.nn.Module, example_inputs: Any, dynamic_shapes: Any) -> torch.fx.GraphModule:
    torch = import_torch()
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(example_inputs, Mapping):
        keywords = dict(example_inputs)
    elif isinstance(example_inputs, torch.Tensor):
        arguments = (example_inputs,)
    else:
        arguments = tuple(example_inputs)
    shapes = dynamic_shapes
    if shapes is None:
        # An extent of 1 would be taken for fixed.
        arguments, keywords = torch.utils._pytree.tree_map(_doubled, (arguments, keywords))
        shapes = torch.utils._pytree.tree_map(_first_axis, keywords or arguments)
    own = copy.deepcopy(model).eval()
    try:
        with quiet():
            program = torch.export.export(own, arguments, keywords, dynamic_shapes=shapes, strict=False)
            captured = program.module(check_guards=False)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__}: PyTorch cannot capture it: {first_line(error)}",
            hint="`qcompile export` gives details; PyTorch cannot capture Python branches on tensor values",
        ) from error
    return captured  # type: ignore[no-any-return]


def _doubled(value: Any) -> Any:
    torch = import_torch()
    if isinstance(value, torch.Tensor) and value.dim() and len(value) == 1:
        return torch.cat([value, value])
    return value


def _first_axis(value: Any) -> Any:
    torch = import_torch()
    return {0: torch.export.Dim.AUTO} if isinstance(value, torch.Tensor) and value.dim() else None


def _without_mutation(graph: torch.fx.Graph) -> None:
    """`relu_(x)` becomes `relu(x)`, which those behind it read: a rounded copy of x must not miss it.

    Writing through a view (`x[:, 0] += 1`) stays as it is: its effect is on the whole.
    """
    torch = import_torch()
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        value = node.args[0] if operator(node) in _IN_PLACE else None
        if (
            value is None
            or operator(value) in _VIEWS
            or any(operator(user) in _VIEWS for user in value.users)
        ):
            continue
        node.target = getattr(getattr(torch.ops.aten, operator(node)[:-1]), node.target._overloadname)
        for reader in [user for user in value.users if order[user] > order[node]]:
            reader.replace_input_with(value, node)


def _insert_weights(model: torch.fx.GraphModule, spots: Spots, kernels: SaturatingKernels) -> None:
    from .fake_quantize import FakeQuantizeWeight

    graph = model.graph
    for index, node in enumerate(spots.weighted):
        name = f"weight_fake_quantize_{index}"
        weight: Any = node.args[1]
        limits = pair_limits(as_onnx(node), tuple(_attribute(model, weight.target).shape), kernels)
        model.add_submodule(name, FakeQuantizeWeight(weight_axis(node), limits))
        with graph.inserting_before(node):
            rounded = graph.call_module(name, (weight,))
        node.replace_input_with(weight, rounded)


def _insert_activations(model: torch.fx.GraphModule, spots: Spots, target: GraphTarget, isa: Isa) -> None:
    from .fake_quantize import FakeQuantize, SameScale

    graph = model.graph
    device = next((tensor.device for tensor in model.parameters()), import_torch().device("cpu"))
    names: dict[Any, str] = {}
    made: dict[Any, Any] = {}

    def rounded(value: Any, source: Any) -> Any:
        if value in made:
            return made[value]
        name = f"fake_quantize_{len(made)}"
        if source is value:
            names[source] = name
            model.add_submodule(name, FakeQuantize(target, isa, device))
        else:
            model.add_submodule(name, SameScale(names[source]))
        with graph.inserting_after(value):
            made[value] = graph.call_module(name, (value,))
        return made[value]

    for value, source in spots.results.items():
        new = rounded(value, source)
        for reader in [reader for reader in value.users if reader is not new]:
            reader.replace_input_with(value, new)
    for reader, value in spots.operands:
        reader.replace_input_with(value, rounded(value, value))


def _follow_mode(model: torch.fx.GraphModule) -> None:
    """Make modules of BatchNorm and dropout, which know of train() and eval()."""
    torch = import_torch()
    from .fake_quantize import BatchNorm

    dropouts = {"dropout": torch.nn.Dropout, "feature_dropout": torch.nn.Dropout2d}
    for index, node in enumerate(list(model.graph.nodes)):
        name = operator(node)
        if name in dropouts:
            path, module = f"dropout_{index}", dropouts[name](node.args[1])
        elif name == "batch_norm" and all(getattr(value, "op", "") == "get_attr" for value in node.args[3:5]):
            tensors: Any = [
                None if value is None else _attribute(model, value.target) for value in node.args[1:5]
            ]
            path = str(node.args[3].target).rpartition(".")[0]
            module = BatchNorm(*tensors, *node.args[6:8])
        else:
            continue
        model.add_submodule(path, module)
        with model.graph.inserting_before(node):
            node.replace_all_uses_with(model.graph.call_module(path, (node.args[0],)))
        model.graph.erase_node(node)


def _quantize_activation(graph: torch.fx.Graph, node: Any, module: FakeQuantize) -> None:
    """Put quantize_per_tensor and dequantize_per_tensor in place of a module."""
    torch = import_torch()
    low, high = float(module.low), float(module.high)
    value = node.args[0]
    if not int(module.batches):
        raise QuantizationError(
            f"activation {value.name!r} was never observed",
            hint="run the training loop, in training mode, before convert",
            tensor=value.name,
        )
    if not (np.isfinite(low) and np.isfinite(high)):
        raise QuantizationError(
            f"activation {value.name!r} has the range {low} to {high}; finite numbers are required",
            hint="the training diverged: lower its rate",
            tensor=value.name,
        )
    scheme = module.scheme()
    scale, zero_point = module.qparams()
    dtype = torch.int8 if scheme.qmin < 0 else torch.uint8
    points = (float(scale), int(zero_point), scheme.qmin, scheme.qmax, dtype)
    operators = torch.ops.quantized_decomposed
    with graph.inserting_before(node):
        integers = graph.call_function(operators.quantize_per_tensor.default, (value, *points))
        floats = graph.call_function(operators.dequantize_per_tensor.default, (integers, *points))
    _take_out(graph, node, floats)


def _store_integers(model: torch.fx.GraphModule, node: Any) -> None:
    """Store the rounded weight as int8 with its scales, a BatchNorm behind its reader folded in."""
    torch = import_torch()
    from .fake_quantize import BatchNorm

    fake: Any = model.get_submodule(node.target)
    source = node.args[0]
    for reader in list(node.users):
        weight = _attribute(model, source.target)
        integers, scales = fake.integers(weight)
        bias = None if len(reader.args) < 3 or reader.args[2] is None else reader.args[2]
        behind = next(iter(reader.users)) if len(reader.users) == 1 else None
        norm = (
            model.get_submodule(behind.target) if behind is not None and behind.op == "call_module" else None
        )
        if isinstance(norm, BatchNorm):
            gain, shift = norm.factors()
            if bias is not None:
                shift = shift + _attribute(model, bias.target).detach() * gain
            integers, scales = _scaled(integers, scales, gain, fake.axis)
        stored = {"int8": integers, "scale": scales, "zero_point": torch.zeros_like(scales, dtype=torch.int8)}
        with model.graph.inserting_before(reader):
            made = [_store(model, f"{source.target}_{kind}", tensor) for kind, tensor in stored.items()]
            floats = model.graph.call_function(
                torch.ops.quantized_decomposed.dequantize_per_channel.default,
                (*made, fake.axis, -128, 127, torch.int8),
            )
            if isinstance(norm, BatchNorm):
                place = str(source.target).rpartition(".")[0]
                bias = _store(model, f"{place}.bias_folded" if place else "bias_folded", shift)
        reader.args = (reader.args[0], floats, bias, *reader.args[3:])
        if isinstance(norm, BatchNorm):
            _take_out(model.graph, behind, reader)
    model.graph.erase_node(node)


def _scaled(integers: Any, scales: Any, gain: Any, axis: int) -> tuple[Any, Any]:
    """Multiply a rounded weight by a gain per channel: into the scales; its sign into the integers."""
    torch = import_torch()
    multiplied = scales * gain.abs().float()
    dead = multiplied < torch.finfo(torch.float32).tiny
    signs = torch.where(dead, 0, torch.sign(gain)).to(torch.int8)
    integers = integers * per_channel(signs, axis, integers.dim())
    return integers, torch.where(dead, torch.ones_like(multiplied), multiplied)


def _store(model: torch.fx.GraphModule, name: str, tensor: Any) -> Any:
    """Register a buffer under a free name, and return the node that reads it."""
    place, _, leaf = name.rpartition(".")
    parent = model.get_submodule(place)
    free, number = leaf, 1
    while hasattr(parent, free):
        number += 1
        free = f"{leaf}_{number}"
    parent.register_buffer(free, tensor.detach().clone())
    return model.graph.get_attr(f"{place}.{free}" if place else free)


def _take_out(graph: torch.fx.Graph, node: Any, instead: Any) -> None:
    node.replace_all_uses_with(instead)
    graph.erase_node(node)


def _attribute(model: torch.fx.GraphModule, path: str) -> Any:
    place, _, leaf = path.rpartition(".")
    return getattr(model.get_submodule(place), leaf)


def _rebuilt(model: torch.fx.GraphModule, name: str) -> torch.fx.GraphModule:
    """A module of what the graph still reads, that takes train() and eval() as every module does."""
    torch = import_torch()
    for node in reversed(list(model.graph.nodes)):
        if node.op == "get_attr" and not node.users:
            model.graph.erase_node(node)
    model.graph.lint()
    return torch.fx.GraphModule(model, model.graph, class_name=name)  # type: ignore[no-any-return]
