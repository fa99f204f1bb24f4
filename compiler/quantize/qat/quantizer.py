"""A torchao `Quantizer` that places fake quantization where the target's Q/DQ go (`placement`).

Activations have a range that follows them; weights are symmetric int8 with a scale per output channel, their
largest magnitude by 127. This file needs PyTorch and torchao when it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchao.quantization.pt2e import (
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    Quantizer,
    SharedQuantizationSpec,
)

from ....errors import QuantizationError
from ....model.saturating_kernels import saturating_kernels
from ....spec.words import ARM_ISAS, GraphTarget, Isa
from ..int8.pair_limits import LARGEST_SUM, PairLimits, pair_limits
from .placement import VIEWS, as_onnx, find_spots, operator, weight_axis

AVERAGING = 0.01
"""Weight of the newest batch in the ranges of activations; the first one begins them."""


class ActivationFakeQuantize(FakeQuantize):  # type: ignore[misc]
    """Observe in training mode alone; a range that has seen nothing lets values through as they are."""

    frozen = False

    def train(self, mode: bool = True) -> ActivationFakeQuantize:
        """Switch the observer with the mode."""
        super().train(mode)
        seen = bool(torch.isfinite(self.activation_post_process.min_val).all())
        self.enable_observer(mode and not self.frozen)
        self.enable_fake_quant((mode and not self.frozen) or seen)
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Return the values rounded to the grid."""
        try:
            rounded: Tensor = super().forward(values)
        except AssertionError as error:  # of torchao's observer
            raise QuantizationError(
                f"an activation of shape {tuple(values.shape)} is not finite ({error})",
                hint="the training diverged: lower its rate",
            ) from error
        return rounded


class LimitedObserver(MovingAveragePerChannelMinMaxObserver):  # type: ignore[misc]
    """Scales under which no pair of integers overflows a kernel that adds two products in 16 bits."""

    def __init__(self, limits: PairLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._least: Tensor | None = None

    def forward(self, weight: Tensor) -> Tensor:
        """Observe a weight."""
        room = LARGEST_SUM / (LARGEST_SUM - 1)  # rounding adds at most 1 to a pair
        least = self._limits.least_scales(weight.detach().float().cpu().numpy()) * room
        self._least = torch.from_numpy(least).to(weight.device)
        observed: Tensor = super().forward(weight)
        return observed

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return scales and zero points of the channels."""
        scales, zero_points = super().calculate_qparams()
        return scales if self._least is None else torch.maximum(scales, self._least.to(scales)), zero_points


class TargetQuantizer(Quantizer):  # type: ignore[misc]
    """Annotate a captured model for one target.

    Args:
        target: "onnxruntime", "openvino" or "tensorrt".
        isa: What an artifact for ONNX Runtime will run on.
        exclude: Globs of names of modules and weights that stay in float.
    """

    def __init__(self, target: GraphTarget, isa: Isa, exclude: Sequence[str]) -> None:
        super().__init__()
        self.target, self.exclude = target, exclude
        self._kernels = saturating_kernels(target, isa)
        signed = target == "tensorrt" or (isa in ARM_ISAS and target == "onnxruntime")
        symmetric = target == "tensorrt"
        limits = (-128, 127) if signed else (0, 255)
        # OpenVINO's grid is that of ONNX Runtime: symmetric int8 loses 10 dB in a Concat there.
        scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
        dtype = torch.int8 if signed else torch.uint8
        constructor = ActivationFakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver.with_args(averaging_constant=AVERAGING)
        )
        self._activation = QuantizationSpec(dtype, constructor, *limits, scheme)

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Write the specifications of `placement` into the nodes."""
        spots = find_spots(model.graph, self.target, self.exclude)
        if not spots.weighted:
            name, reason = next(iter(spots.left_in_float.items()), ("", "no convolution, no linear layer"))
            raise QuantizationError(
                f"nothing to quantize: {f'{name!r}: ' if name else ''}{reason}",
                hint="choose another target, or leave the model in float",
                reasons=dict(spots.left_in_float),
            )
        inputs: dict[Any, dict[Any, QuantizationSpecBase]] = {}
        for node in spots.weighted:
            inputs.setdefault(node, {})[node.args[1]] = self._weight(model, node)
        for reader, value in spots.operands:
            inputs.setdefault(reader, {})[value] = self._activation
        for node in _written_views(model.graph):
            spots.results.pop(node, None)
        for node in {**dict.fromkeys(inputs), **spots.results}:
            source = spots.results.get(node)
            shared = source if source is None or source is node else SharedQuantizationSpec(source)
            node.meta["quantization_annotation"] = QuantizationAnnotation(
                inputs.get(node, {}), self._activation if shared is node else shared, _annotated=True
            )
        return model

    def validate(self, model: torch.fx.GraphModule) -> None:
        """Nothing: `placement` knows what it annotates."""

    def _weight(self, model: torch.fx.GraphModule, node: Any) -> QuantizationSpec:
        shape = tuple(_attribute(model, node.args[1].target).shape)
        limits = pair_limits(as_onnx(node), shape, self._kernels)
        observer: Any = MovingAveragePerChannelMinMaxObserver
        if limits is not None:
            observer = LimitedObserver.with_args(limits=limits)
        axis = weight_axis(node)  # torchao passes it on to classes with PerChannel in their names alone
        observer = observer.with_args(averaging_constant=1.0, ch_axis=axis)
        constructor = FakeQuantize.with_args(observer=observer)
        return QuantizationSpec(torch.int8, constructor, -127, 127, torch.per_channel_symmetric, axis)


def _written_views(graph: torch.fx.Graph) -> set[Any]:
    """Views that are written to where they are: a rounded copy of one would lose what is written."""
    found = set()
    for node in graph.nodes:
        while operator(node).endswith("_") or node in found:
            node = node.args[0]
            if operator(node) not in VIEWS:
                break
            found.add(node)
    return found


def _attribute(model: torch.nn.Module, path: str) -> Any:
    place, _, leaf = path.rpartition(".")
    return getattr(model.get_submodule(place), leaf)
