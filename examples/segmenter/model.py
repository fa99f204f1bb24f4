"""A small UNet (Ronneberger et al. 2015) that gives each pixel of a scene a class."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import interpolate, max_pool2d

WEIGHTS = Path(__file__).with_name("unet.safetensors")
CLASSES = 11

_WIDTHS = (16, 24, 32, 48)


class UNet(nn.Module):
    """Three halvings, three doublings with skip connections: sizes must be multiples of 8."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third, deepest = _WIDTHS
        self.down = nn.ModuleList([_block(1, first), _block(first, second), _block(second, third)])
        self.bottom = _block(third, deepest)
        self.up = nn.ModuleList(
            [_block(deepest + third, third), _block(third + second, second), _block(second + first, first)]
        )
        self.head = nn.Conv2d(first, CLASSES, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map images [N,1,H,W] float32 to scores [N,11,H,W] float32."""
        skipped: list[torch.Tensor] = []
        x = image
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = max_pool2d(x, 2)
        x = self.bottom(x)
        for block, skip in zip(self.up, reversed(skipped), strict=True):
            x = block(torch.cat([interpolate(x, scale_factor=2.0, mode="nearest"), skip], dim=1))
        scores: torch.Tensor = self.head(x)
        return scores


def _block(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [
            nn.Conv2d(width, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def build() -> nn.Module:
    """Return the trained UNet in evaluation mode."""
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python examples/segmenter/train.py first")
    model = UNet()
    # The file holds float16, which halves it; the model computes in float32.
    weights = load_file(WEIGHTS)
    model.load_state_dict({name: _float32(tensor) for name, tensor in weights.items()})
    return model.eval()


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
