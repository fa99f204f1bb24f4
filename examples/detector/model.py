"""A small detector without anchors: each cell of a 16x16 grid scores ten digits and gives a box.

It finds centres, as CenterNet does (Zhou et al. 2019, "Objects as Points").
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import interpolate, max_pool2d, softplus

WEIGHTS = Path(__file__).with_name("detector.safetensors")
CLASSES = 10
STRIDE = 4
NOTHING = 0.05

_PEAK_MARGIN = 0.02
"""How far a score may lie below the largest of its neighbours and still be a peak.

Equality would do in float32. In INT8 the two sides of the comparison may be rounded at different places.
"""


class Detector(nn.Module):
    """Backbone with one skip connection, two heads, and the decoding of boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(1, 16, stride=2), _conv(16, 32, stride=2), _conv(32, 32))
        self.deep = nn.Sequential(_conv(32, 64, stride=2), _conv(64, 64))
        self.lateral = _conv(64, 32)
        self.merged = _conv(32, 48)
        self.heat = nn.Conv2d(48, CLASSES, 1)
        self.distances = nn.Conv2d(48, 4, 1)
        nn.init.constant_(self.heat.bias, -4.0)  # most cells are no centre

    def raw(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map images [N,1,H,W] to heat logits [N,10,H/4,W/4] and distances [N,4,H/4,W/4] in cells.

        The distances are those from a cell's centre to the left, upper, right and lower side of its box.
        """
        fine = self.stem(image)
        coarse = interpolate(self.lateral(self.deep(fine)), scale_factor=2.0, mode="nearest")
        merged = self.merged(fine + coarse)
        return self.heat(merged), softplus(self.distances(merged))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Map images [N,1,64,64] to boxes [N,256,4], scores [N,256] and classes [N,256] int64.

        Boxes are x1, y1, x2, y2 in pixels. The score of a cell that is no peak among its neighbours is 0.
        The class of a cell with next to no score is -1.
        """
        heat, distances = self.raw(image)
        heat = torch.sigmoid(heat)
        around = max_pool2d(heat, 3, stride=1, padding=1)
        peaks = heat * (heat > around - _PEAK_MARGIN).to(heat.dtype)
        scores, classes = peaks.flatten(2).max(1)
        classes = torch.where(scores > NOTHING, classes, torch.full_like(classes, -1))
        left, top, right, bottom = distances.unbind(1)
        y, x = _centres(heat)
        boxes = torch.stack([x - left, y - top, x + right, y + bottom], dim=-1) * STRIDE
        return boxes.flatten(1, 2), scores, classes


def _centres(grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y [H,1] and x [1,W]: the cells' centres in cells."""
    height, width = grid.shape[-2:]
    rows = torch.arange(height, dtype=grid.dtype, device=grid.device) + 0.5
    columns = torch.arange(width, dtype=grid.dtype, device=grid.device) + 0.5
    return rows[:, None], columns[None, :]


def _conv(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution with BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def build() -> nn.Module:
    """Return the trained detector in evaluation mode."""
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python examples/detector/train.py first")
    model = Detector()
    # The file holds float16, which halves it; the model computes in float32.
    weights = load_file(WEIGHTS)
    model.load_state_dict({name: _float32(tensor) for name, tensor in weights.items()})
    return model.eval()


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
