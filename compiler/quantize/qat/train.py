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
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....calibration.qparams import per_channel
from ....errors import EngineUnavailable, ExportError, InvalidOption, QuantizationError, first_line
from ....model.pytorch import import_torch
from ....processor import resolve_isa
from ....progress import quiet
from ....spec.decode import current_isas, deprecated
from ....spec.words import GRAPH_TARGETS, ISAS, GraphTarget, Isa
from .placement import OPERATOR, VIEWS, WEIGHTED, operator, weight_axis

if TYPE_CHECKING:
    import torch

__all__ = ["convert", "freeze", "prepare"]

TRAINED_FOR = "qat_target"
"""Key in a module's `meta` for the target that its scales were trained for."""

_IN_PLACE = frozenset(
    """
    relu_ relu6_ hardtanh_ clamp_ clamp_min_ leaky_relu_ sigmoid_ silu_ hardswish_ elu_ dropout_
    feature_dropout_ add_ sub_ mul_ div_
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
    captured = _capture(model, example_inputs, dynamic_shapes)
    _without_mutation(captured.graph)
    _follow_mode(captured)
    quantize_pt2e, quantizer = _torchao()
    with quiet():
        prepared = quantize_pt2e.prepare_qat_pt2e(
            captured, quantizer.TargetQuantizer(target, resolve_isa(isa, target), exclude)
        )
    for name in ("train", "eval"):  # torchao forbids them; here BatchNorm and dropout are modules
        prepared.__dict__.pop(name, None)
    prepared.meta[TRAINED_FOR] = target
    prepared.train()
    return prepared  # type: ignore[no-any-return]


def freeze(model: torch.nn.Module, *, ranges: bool = True, batch_norm: bool = True) -> None:
    """Let ranges of activations, and statistics of BatchNorm, stay as they are from here on.

    Call it after `model.train()`, which lets BatchNorm follow again.
    """
    _, quantizer = _torchao()
    for module in model.modules():
        if ranges and isinstance(module, quantizer.ActivationFakeQuantize):
            module.frozen = True
            module.train(module.training)
        if batch_norm and isinstance(module, import_torch().nn.BatchNorm2d):
            module.eval()


def convert(model: torch.nn.Module) -> torch.fx.GraphModule:
    """Return a trained model with its scales frozen, in evaluation mode, for `qcompile export`.

    BatchNorm is folded, weights are stored as int8, and activations go through
    `quantized_decomposed.quantize_per_tensor`, which exporters write as QuantizeLinear.

    Args:
        model: From `prepare`, after training; it is not changed.

    Raises:
        InvalidOption: If the model does not come from `prepare`.
        QuantizationError: If an activation was never observed, or its range is not finite.
    """
    torch = import_torch()
    if not isinstance(model, torch.fx.GraphModule) or TRAINED_FOR not in model.meta:
        raise InvalidOption(
            f"{type(model).__name__}: not a model from qcompile.qat.prepare",
            hint="prepare it and train it first; pass the module itself, not a wrapper such as DDP",
        )
    quantize_pt2e, quantizer = _torchao()
    with quiet(), torch.no_grad():  # PyTorch warns of its own way to copy a graph
        converted = copy.deepcopy(model).eval()
        for node in list(converted.graph.nodes):
            module = converted.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, quantizer.ActivationFakeQuantize):
                _require_range(node.args[0].name, module.activation_post_process)
            elif module is not None and node.args[0].op == "get_attr":
                module(_attribute(converted, str(node.args[0].target)))  # the weight may have been loaded
            elif isinstance(module, torch.nn.BatchNorm2d):
                _fold(converted, node, module)
            elif isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d):
                node.replace_all_uses_with(node.args[0])
                converted.graph.erase_node(node)
        result = quantize_pt2e.convert_pt2e(converted)
    result.meta[TRAINED_FOR] = model.meta[TRAINED_FOR]
    for name in ("train", "eval"):
        result.__dict__.pop(name, None)
    return result.eval()  # type: ignore[no-any-return]


def register_operators() -> None:
    """Make `torch.ops.quantized_decomposed` exist: programs saved with it can be loaded from then on."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401


def _torchao() -> tuple[Any, Any]:
    import_torch()
    try:
        with quiet():  # it tells of kernels that it lacks
            from torchao.quantization.pt2e import quantize_pt2e
    except ImportError as error:
        raise EngineUnavailable(
            "torchao is not installed; qcompile.qat prepares and converts with it",
            hint="pip install 'qcompile[qat]'",
            engine="pytorch",
            reason="torchao missing",
        ) from error
    from . import quantizer

    return quantize_pt2e, quantizer


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
        if value is None or operator(value) in VIEWS or any(operator(user) in VIEWS for user in value.users):
            continue
        node.target = getattr(getattr(torch.ops.aten, operator(node)[:-1]), node.target._overloadname)
        for reader in [user for user in value.users if order[user] > order[node]]:
            reader.replace_input_with(value, node)


def _follow_mode(model: torch.fx.GraphModule) -> None:
    """Make modules of BatchNorm and dropout, which know of train() and eval().

    torchao's own switch of their modes gives every BatchNorm the eps 1e-5 and every dropout the rate 0.5.
    """
    torch = import_torch()
    dropouts = {"dropout": torch.nn.Dropout, "feature_dropout": torch.nn.Dropout2d}
    for index, node in enumerate(list(model.graph.nodes)):
        name = operator(node)
        if name in dropouts:
            path, module = f"dropout_{index}", dropouts[name](node.args[1])
        elif name == "batch_norm" and all(getattr(value, "op", "") == "get_attr" for value in node.args[3:5]):
            weight, bias, mean, variance = (
                None if value is None else _attribute(model, value.target) for value in node.args[1:5]
            )
            path = str(node.args[3].target).rpartition(".")[0]
            assert mean is not None, "looked at above"
            module = torch.nn.BatchNorm2d(len(mean), node.args[7], node.args[6], affine=False)
            module.weight, module.bias, module.running_mean, module.running_var = weight, bias, mean, variance
            module._check_input_dim = _any_axes
        else:
            continue
        model.add_submodule(path, module)
        with model.graph.inserting_before(node):
            called = model.graph.call_module(path, (node.args[0],))
        called.meta = {**node.meta, OPERATOR: name}
        node.replace_all_uses_with(called)
        model.graph.erase_node(node)
    for node in reversed(list(model.graph.nodes)):
        if node.op == "get_attr" and not node.users:
            model.graph.erase_node(node)
    model.recompile()


def _any_axes(_values: torch.Tensor) -> None:
    """BatchNorm of any number of axes."""


def _require_range(name: str, observer: Any) -> None:
    low, high = float(observer.min_val), float(observer.max_val)
    if low == float("inf"):
        raise QuantizationError(
            f"activation {name!r} was never observed",
            hint="run the training loop, in training mode, before convert",
            tensor=name,
        )
    if not (math.isfinite(low) and math.isfinite(high)):
        raise QuantizationError(
            f"activation {name!r} has the range {low} to {high}; finite numbers are required",
            hint="the training diverged: lower its rate",
            tensor=name,
        )


def _fold(model: torch.fx.GraphModule, node: Any, norm: Any) -> None:
    """Fold a BatchNorm into the float weight and bias of the convolution in front of it, where one is.

    The observer of the weight then sees the folded weight: the integers stay, but for signs.
    """
    torch = import_torch()
    reader = node.args[0]
    fake = reader.args[1] if operator(reader) in WEIGHTED else None
    if fake is None or fake.op != "call_module" or len(reader.users) > 1 or len(fake.users) > 1:
        return
    gain = torch.rsqrt(norm.running_var + norm.eps)
    gain = gain if norm.weight is None else gain * norm.weight
    shift = -norm.running_mean * gain
    shift = shift if norm.bias is None else shift + norm.bias
    path = str(fake.args[0].target)
    weight = _attribute(model, path)
    bias = reader.args[2] if len(reader.args) > 2 else None
    if bias is not None:
        shift = shift + _attribute(model, str(bias.target)) * gain
    folded = weight * per_channel(gain, weight_axis(reader), weight.dim())
    place = path.rpartition(".")[0]
    with model.graph.inserting_before(fake):
        nodes = []
        for name, tensor in (("weight_folded", folded), ("bias_folded", shift)):
            full = f"{place}.{name}_{node.name}" if place else f"{name}_{node.name}"
            model.get_submodule(place).register_buffer(full.rpartition(".")[2], tensor)
            nodes.append(model.graph.get_attr(full))
    fake.args = (nodes[0],)
    model.get_submodule(str(fake.target))(folded)
    reader.args = (reader.args[0], fake, nodes[1], *reader.args[3:])
    node.replace_all_uses_with(reader)
    model.graph.erase_node(node)


def _attribute(model: torch.fx.GraphModule, path: str) -> Any:
    place, _, leaf = path.rpartition(".")
    return getattr(model.get_submodule(place), leaf)
