"""torchvision's models with outputs that are tensors."""

from __future__ import annotations

from torch import Tensor, nn


class OutputOf(nn.Module):
    """A module that returns a dict, of which one entry counts; the others serve its training."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self.name = module, name
        self.training = module.training

    def forward(self, x: Tensor) -> Tensor:
        """Take images float32 [batch, 3, height, width], return [batch, classes, height, width]."""
        return self.module(x)[self.name]  # type: ignore[no-any-return]


class Detector(nn.Module):
    """A detector that takes lists of images and returns lists of dicts, for one image."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Take one image float32 [1, 3, height, width] of 0 to 1, return boxes [n, 4], scores and labels."""
        found = self.module([image[0]])[0]
        return {name: found[name] for name in ("boxes", "scores", "labels")}
