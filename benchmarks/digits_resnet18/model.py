"""ResNet-18 as commonly adapted to 32x32 images: a 3x3 stem of stride 1 and no max pooling."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

CLASSES = 10
WEIGHTS = Path(__file__).with_name("resnet18.safetensors")

_WIDTHS = (64, 128, 256, 512)
_BLOCKS_PER_STAGE = 2


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: [N,Cin,H,W] -> [N,Cout,H/stride,W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [N,Cin,H,W] float32 to [N,Cout,H/stride,W/stride] float32."""
        residual = self.relu(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        activated: torch.Tensor = self.relu(residual + self.shortcut(features))
        return activated


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average pooling, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.relu = nn.ReLU()
        self.stages = nn.Sequential(
            _stage(_WIDTHS[0], _WIDTHS[0], stride=1),
            _stage(_WIDTHS[0], _WIDTHS[1], stride=2),
            _stage(_WIDTHS[1], _WIDTHS[2], stride=2),
            _stage(_WIDTHS[2], _WIDTHS[3], stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_WIDTHS[3], CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map normalized images [N,3,32,32] float32 to logits [N,10] float32."""
        features = self.stages(self.relu(self.bn1(self.conv1(image))))
        logits: torch.Tensor = self.fc(self.pool(features).flatten(1))
        return logits


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    """Chain one stage's blocks; only the first changes the width and the resolution."""
    first = BasicBlock(inputs, outputs, stride)
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(_BLOCKS_PER_STAGE - 1)]
    return nn.Sequential(first, *rest)


def resnet18() -> nn.Module:
    """Return a randomly initialized ResNet-18: [N,3,32,32] float32 -> [N,10] float32."""
    model = ResNet18()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def build() -> nn.Module:
    """Return the trained ResNet-18 in evaluation mode: [N,3,32,32] float32 -> [N,10] float32.

    Raises:
        FileNotFoundError: The weights, 45 MB and so not in the repository, are not there yet.
    """
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python benchmarks/digits_resnet18/train.py first")
    model = resnet18()
    model.load_state_dict(load_file(WEIGHTS))
    return model.eval()
