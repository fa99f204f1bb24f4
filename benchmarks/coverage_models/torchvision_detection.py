"""Detectors of torchvision: as they are deployed (backbone and heads), and two with their post-processing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torchvision_operators  # noqa: F401  # before torchvision
from architecture import Architecture, Input, image, unit
from torch import Tensor, nn

_OPTIONS: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 5}


class Heads(nn.Module):
    """Backbone, feature pyramid and heads of a one-stage detector; the application decodes the boxes."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Take float32 [n, 3, h, w], return the heads' outputs, [n, anchors, k] each."""
        return self.head(list(self.backbone(image).values()))


class Proposals(nn.Module):
    """Backbone and region proposal head of a two-stage detector."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.rpn.head

    def forward(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Take float32 [n, 3, h, w], return objectness and box offsets of every level."""
        return self.head(list(self.backbone(image).values()))


class Whole(nn.Module):
    """A detector with its post-processing; one image."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take float32 [3, h, w] from 0 to 1, return boxes [k, 4], scores [k] and labels [k]."""
        found = self.detector([image])[0]
        return found["boxes"], found["scores"], found["labels"]


def _detector(name: str, wrapper: Any, **options: Any) -> Any:
    from torchvision.models import get_model

    return wrapper(get_model(name, **{**_OPTIONS, **options}))


def _small_pyramid(name: str, wrapper: Any, **options: Any) -> Any:
    """RetinaNet or FCOS on ResNet-18 with its feature pyramid, in place of ResNet-50."""
    from torchvision.models import detection
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    backbone = resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256),
        trainable_layers=5, norm_layer=nn.BatchNorm2d,
    )  # fmt: skip
    return wrapper(getattr(detection, name)(backbone, num_classes=5, **options))


def _case(name: str, wrapper: Any, size: int, **options: Any) -> Architecture:
    task = "detection heads"
    return Architecture(
        name, "torchvision", task, partial(_detector, name, wrapper, **options), image("image", size)
    )


ARCHITECTURES = (
    *(
        Architecture(
            name.lower(), "torchvision", "detection heads", partial(_small_pyramid, name, Heads), image("image", 64)
        )
        for name in ("RetinaNet", "FCOS")
    ),
    _case("ssd300_vgg16", Heads, 300),
    _case("ssdlite320_mobilenet_v3_large", Heads, 128),
    _case("fasterrcnn_mobilenet_v3_large_320_fpn", Proposals, 64),
    Architecture(
        "ssdlite320_whole", "torchvision", "detection",
        partial(_detector, "ssdlite320_mobilenet_v3_large", Whole, score_thresh=0.1),
        (Input("image", (3, 320, 320), unit),),
    ),
    Architecture(
        "retinanet_whole", "torchvision", "detection",
        partial(_small_pyramid, "RetinaNet", Whole, min_size=96, max_size=96),
        (Input("image", (3, 96, 96), unit),),
    ),
)  # fmt: skip
