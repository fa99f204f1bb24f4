"""Modules that round to the integer grid in training, and let gradients pass (straight-through).

This file needs PyTorch when it is imported; `qat` imports it when it is called.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ....calibration.qparams import ASYMMETRIC_INT8, INT8, UINT8, Scheme, per_channel, scale_and_zero_point
from ....spec.words import ARM_ISAS, GraphTarget, Isa
from ..int8.pair_limits import PairLimits

SLOWEST_AVERAGE = 0.01
"""Least weight of the newest batch in the moving averages of low and high."""


class FakeQuantize(nn.Module):
    """Round activations to a grid whose range follows them by a moving average.

    In training mode each batch's least and largest value move the range: all batches weigh the same at
    first, and from the hundredth on the newest weighs a hundredth. A range that has seen nothing lets
    values through as they are.

    Args:
        target: What the model is for: see `placement`.
        isa: What an artifact for ONNX Runtime will run on.
        device: Where the range is kept.
    """

    low: Tensor
    high: Tensor
    batches: Tensor

    def __init__(self, target: GraphTarget, isa: Isa, device: torch.device) -> None:
        super().__init__()
        self.target, self.isa = target, isa
        self.observing = True
        self.register_buffer("low", torch.zeros((), device=device))
        self.register_buffer("high", torch.zeros((), device=device))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, values: Tensor) -> Tensor:
        """Return the values rounded to the grid, in their own dtype and shape."""
        if self.training and self.observing:
            self._observe(values.detach())
        elif not bool(self.batches):
            return values
        scheme = self.scheme()
        scale, zero_point = self.qparams()
        rounded = torch.fake_quantize_per_tensor_affine(
            values.float(), scale, zero_point, scheme.qmin, scheme.qmax
        )
        return rounded.to(values.dtype)

    def _observe(self, values: Tensor) -> None:
        if not values.numel():
            return
        low, high = torch.aminmax(values)
        self.batches += 1
        weight = (1.0 / self.batches).clamp(min=SLOWEST_AVERAGE)
        self.low += (low.float() - self.low) * weight
        self.high += (high.float() - self.high) * weight

    def qparams(self) -> tuple[Tensor, Tensor]:
        """Return scale (float32) and zero_point (int32) of the range, both of shape []."""
        scale, zero_point = scale_and_zero_point(self.low, self.high, self.scheme(), torch)
        return scale, zero_point.to(torch.int32)

    def scheme(self) -> Scheme:
        """Return the integers that the target reads.

        OpenVINO's are those of ONNX Runtime: it takes both, and symmetric int8 loses 10 dB in a Concat there.
        """
        if self.target == "tensorrt":
            return INT8
        arm = self.isa in ARM_ISAS and self.target == "onnxruntime"
        return ASYMMETRIC_INT8 if arm else UINT8

    def extra_repr(self) -> str:
        return f"low={float(self.low):.4g}, high={float(self.high):.4g}, batches={int(self.batches)}"


class SameScale(nn.Module):
    """Stands where values that were only moved are quantized again, on the grid they are on: it does nothing.

    Args:
        source: Name of the `FakeQuantize` whose scale holds here too.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values


class FakeQuantizeWeight(nn.Module):
    """Round a weight to symmetric int8 with a scale per output channel, its largest magnitude by qmax.

    Args:
        axis: The axis of the output channels.
        limits: Of a layer whose kernel adds two products in 16 bits: no pair of its integers overflows.
    """

    def __init__(self, axis: int, limits: PairLimits | None = None) -> None:
        super().__init__()
        self.axis, self.limits = axis, limits

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight rounded, in its own dtype and shape."""
        scales = self.scales(weight)
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        rounded = torch.fake_quantize_per_channel_affine(
            weight.float(), scales, zeros, self.axis, -INT8.qmax, INT8.qmax
        )
        return rounded.to(weight.dtype)

    def scales(self, weight: Tensor) -> Tensor:
        """Return the scale of each channel, float32 [weight.shape[axis]]; 1 for a channel of zeros."""
        others = [axis for axis in range(weight.dim()) if axis != self.axis]
        amax = weight.detach().float().abs().amax(others)
        if self.limits is not None:
            least = self.limits.least_scales(weight.detach().float().cpu().numpy()) * INT8.qmax
            amax = torch.maximum(amax, torch.from_numpy(least).to(amax))
        scales: Tensor = scale_and_zero_point(-amax, amax, INT8, torch)[0]
        return scales

    def integers(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rounded weight as int8 and its scales; their product is what forward returns.

        Where rounding took a pair beyond its limit, one of its integers is a step nearer to zero.
        """
        scales = self.scales(weight)
        factors = per_channel(scales, self.axis, weight.dim())
        steps = torch.round(self(weight.detach()).float() / factors)
        if self.limits is not None:
            wanted = (weight.detach().float() / factors).cpu().numpy()
            steps = torch.from_numpy(self.limits.limited(steps.cpu().numpy(), wanted)).to(steps.device)
        return steps.to(torch.int8), scales

    def extra_repr(self) -> str:
        return f"axis={self.axis}, limited={self.limits is not None}"


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of any number of axes, over parameters and statistics that exist already.

    It behaves as every BatchNorm does: `eval()` on it keeps its statistics as they are.
    """

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
    ) -> None:
        super().__init__(len(running_mean), eps, momentum, affine=False, device=running_mean.device)
        self.weight, self.bias = weight, bias  # type: ignore[assignment]
        self.running_mean, self.running_var = running_mean, running_var

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return (gain, shift) of each channel in evaluation: `gain * x + shift`."""
        assert self.running_mean is not None
        assert self.running_var is not None
        gain = torch.rsqrt(self.running_var + self.eps)
        gain = gain if self.weight is None else gain * self.weight.detach()
        shift = -self.running_mean * gain
        return gain, shift if self.bias is None else shift + self.bias.detach()
