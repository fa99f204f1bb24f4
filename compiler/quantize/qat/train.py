"""Quantization-aware training: prepare a model with fake quantization, and convert the trained model.

    model = qcompile.qat.prepare(model, example_inputs, target="onnxruntime")
    ...                                        # the usual training loop, a few epochs at a small rate
    model = qcompile.qat.convert(model)        # `qcompile export` writes QuantizeLinear/DequantizeLinear

Every model that `torch.export` captures can be trained. Fake quantization is placed where `quantize` places
Q/DQ (`quantizer`).

BatchNorm needs no folding before training. A weight has one scale per output channel, its largest magnitude
divided by 127, so rounding commutes with a gain g per channel, `round(g w) = g round(w)`: rounding the weight
in front of the BatchNorm equals rounding the folded weight, for any statistics. `convert` folds the BatchNorm
into scales and bias; the integers do not change.

After `freeze(model)` the last steps train exactly the model that will run. Without `freeze`, ranges and
statistics follow the data to the end.
"""

from __future__ import annotations

import copy
import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ....core.installation import install_hint
from ....core.processor import resolve_isa
from ....core.progress import quiet
from ....errors import EngineUnavailable, InvalidOption, QuantizationError
from ....model.sources.pytorch import import_torch
from ....spec.artifacts import QatSpec
from ....spec.decode import spec_from_call
from ....spec.words import GraphTarget

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from ....spec.keywords import QatKeywords

__all__ = ["convert", "freeze", "prepare"]

TRAINED_FOR = "qat_target"
"""Key in a module's `meta` for the target that its scales were trained for."""


def prepare(
    model: torch.nn.Module,
    example_inputs: Any,
    target: GraphTarget | None = None,
    spec: QatSpec | None = None,
    /,
    *,
    dynamic_shapes: Any = None,
    **options: Unpack[QatKeywords],
) -> torch.fx.GraphModule:
    """Return a copy of a model with fake quantization, in training mode.

    Names and device of parameters and statistics do not change. Dropout and BatchNorm follow `train()` and
    `eval()`. Other code that reads `self.training` is captured in evaluation mode, so auxiliary heads and
    stochastic depth are left out.

    Args:
        model: The trained float model; it is not changed.
        example_inputs: A tensor, a tuple of positional, or a dict of keyword arguments of `forward`.
        target: Overrides `spec.target`; it decides the integer grids and the placement.
        spec: Options.
        dynamic_shapes: For `torch.export.export`; by default the first axis of every input may vary.
        options: Fields of `QatSpec` by name; they override `spec`.

    Raises:
        ExportError: If PyTorch cannot capture the model.
        InvalidOption: If an option is wrong, or a pattern of `exclude` matches nothing.
        QuantizationError: If nothing in the model can be quantized.
    """
    overrides = {} if target is None else {"target": target}
    spec = spec_from_call(QatSpec, spec, {**options, **overrides})
    quantizer = _import_quantizer()
    captured = quantizer.capture(model, example_inputs, dynamic_shapes)
    with quiet():
        placement = quantizer.TargetQuantizer(spec.target, resolve_isa(spec.isa, spec.target), spec.exclude)
        return _record_target(quantizer.prepare_qat_pt2e(captured, placement), spec.target).train()


def freeze(model: torch.nn.Module, *, ranges: bool = True, batch_norm: bool = True) -> None:
    """Freeze the ranges of activations and the statistics of BatchNorm.

    Call it after `model.train()`, which unfreezes BatchNorm.
    """
    quantizer = _import_quantizer()
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
    quantizer = _import_quantizer()
    with quiet(), torch.no_grad():  # PyTorch warns when it copies a graph
        converted = copy.deepcopy(model).eval()
        for node in list(converted.graph.nodes):
            module = converted.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, quantizer.ActivationFakeQuantize):
                observer = module.activation_post_process
                _require_range(node.args[0].name, float(observer.min_val), float(observer.max_val))
            elif module is not None and node.args[0].op == "get_attr":
                module(attrgetter(node.args[0].target)(converted))  # observe it: it may have been loaded
            elif isinstance(module, torch.nn.BatchNorm2d):
                quantizer.fold_batch_norm(converted, node, module)
            elif isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d):
                node.replace_all_uses_with(node.args[0])
                converted.graph.erase_node(node)
        return _record_target(quantizer.convert_pt2e(converted), model.meta[TRAINED_FOR]).eval()


def register_operators() -> None:
    """Register `torch.ops.quantized_decomposed`, which is required to load programs saved with it."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401


def _import_quantizer() -> Any:
    """Return the module `quantizer`; raise EngineUnavailable without torchao."""
    import_torch()
    try:
        with quiet():  # torchao warns of missing kernels
            from . import quantizer
    except ImportError as error:
        raise EngineUnavailable(
            "torchao is not installed; qcompile.qat prepares and converts with it",
            hint=install_hint("qat"),
            engine="pytorch",
            reason="torchao missing",
        ) from error
    return quantizer


def _record_target(model: torch.fx.GraphModule, target: str) -> torch.fx.GraphModule:
    """Record the target; make train() and eval(), which torchao forbids, work for BatchNorm and dropout."""
    for name in ("train", "eval"):
        model.__dict__.pop(name, None)
    model.meta[TRAINED_FOR] = target
    return model


def _require_range(name: str, low: float, high: float) -> None:
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
