"""torchvision's models with outputs that are tensors."""

from __future__ import annotations

from typing import Any

import torch
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


ONE_STAGE = ("retinanet", "fcos", "ssd", "ssdlite")
"""Modules of torchvision.models.detection whose detectors have one stage."""


class OneStage(nn.Module):
    """A detector of one stage, without the selection of its boxes.

    torchvision's own `forward` resizes each image by itself, and suppresses boxes that overlap. Here images
    come resized and normalized, and the boxes of all anchors come out.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Any = module
        self.softmax = type(module).__name__ == "SSD"  # with a class for the background
        self.training = module.training

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Take images float32 [batch, 3, h, w], return boxes [batch, anchors, 4] and scores."""
        from torchvision.models.detection.image_list import ImageList

        found = self.module.backbone(x)
        features = [found] if isinstance(found, Tensor) else list(found.values())
        heads = self.module.head(features)
        height, width = x.shape[-2:]
        [anchors] = self.module.anchor_generator(ImageList(x[:1], [(height, width)]), features)
        offsets = heads["bbox_regression"]
        coder = self.module.box_coder
        if "bbox_ctrness" in heads:
            boxes = coder.decode(offsets, anchors.expand_as(offsets))
            scores = (heads["cls_logits"].sigmoid() * heads["bbox_ctrness"].sigmoid()).sqrt()
        else:
            repeated = anchors.expand_as(offsets).reshape(-1, 4)
            boxes = coder.decode_single(offsets.reshape(-1, 4), repeated).reshape(offsets.shape)
            logits = heads["cls_logits"]
            scores = logits.softmax(-1) if self.softmax else logits.sigmoid()
        limits = torch.tensor([width, height, width, height], dtype=boxes.dtype)
        return {"boxes": boxes.clamp(min=0).minimum(limits), "scores": scores}
