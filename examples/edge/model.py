"""MobileNetV2 (Sandler et al. 2018, table 2) at a quarter of its width, for grey images of 32x32 pixels."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

CLASSES = 10
WIDTH = 0.25
WEIGHTS = Path(__file__).with_name("mobilenetv2.safetensors")

_STEM, _LAST = 32, 1280
# Expansion, channels, blocks, stride of the first block. Table 2 has stride 2 in the second row, for 224x224.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _scaled(channels: int, width: float) -> int:
    """Return the channels at a width, a multiple of 8 that is at least 8."""
    return max(8, int(channels * width + 4) // 8 * 8)


def _normalized(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    """Chain convolution, batch normalization and ReLU6: [N,inputs,H,W] -> [N,outputs,H/stride,W/stride]."""
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU6()] if relu else []))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project: [N,inputs,H,W] -> [N,outputs,H/stride,W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.layers = nn.Sequential(
            *([_normalized(inputs, hidden, 1)] if expansion != 1 else []),
            _normalized(hidden, hidden, 3, stride=stride, groups=hidden),
            _normalized(hidden, outputs, 1, relu=False),
        )
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [N,inputs,H,W] float32 to [N,outputs,H/stride,W/stride] float32."""
        projected: torch.Tensor = self.layers(features)
        return features + projected if self.is_residual else projected


class MobileNetV2(nn.Module):
    """Stem, seven stages of inverted residuals, a last convolution, average pooling, classifier."""

    def __init__(self, width: float) -> None:
        super().__init__()
        channels = _scaled(_STEM, width)
        layers: list[nn.Module] = [_normalized(1, channels, 3, stride=2)]
        for expansion, wide, blocks, stride in _STAGES:
            for block in range(blocks):
                outputs = _scaled(wide, width)
                layers.append(InvertedResidual(channels, outputs, stride if block == 0 else 1, expansion))
                channels = outputs
        last = _scaled(_LAST, width)
        self.features = nn.Sequential(*layers, _normalized(channels, last, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(last, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map images [N,1,32,32] float32 to logits [N,10] float32."""
        logits: torch.Tensor = self.classifier(self.pool(self.features(image)).flatten(1))
        return logits


def mobilenet_v2() -> nn.Module:
    """Return the network with random weights: [N,1,32,32] float32 -> [N,10] float32."""
    return MobileNetV2(WIDTH)


def build() -> nn.Module:
    """Return the trained network in evaluation mode: [N,1,32,32] float32 -> [N,10] float32."""
    model = mobilenet_v2()
    # Stored as float16 to keep the repository small; the network computes in float32.
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(WEIGHTS).items()})
    return model.eval()
