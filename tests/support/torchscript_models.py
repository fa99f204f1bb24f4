"""Modules that TorchScript archives are made of; `torch.jit.script` reads their source."""

import torch
from torch import nn


class Convolutions(nn.Module):
    """A convolution with BatchNorm that has seen data, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.norm.running_mean = torch.linspace(-1, 1, 8)
        self.norm.running_var = torch.linspace(0.5, 2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """A branch on values, a loop over an extent, and a number with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if x.sum() > 0:
            x = self.head(x)
        else:
            x = x * scale
        for index in range(x.size(1)):
            x = x + index
        return x


class TwoNamed(nn.Module):
    """Two inputs, and a dict of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.table(ids) * mask.unsqueeze(-1).float()
        return {"hidden": self.head(hidden), "pooled": hidden.sum(1)}
