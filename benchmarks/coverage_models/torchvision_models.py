"""Models of torchvision: image and video classification, segmentation, optical flow."""

from __future__ import annotations

from functools import partial
from typing import Any

import torchvision_operators  # noqa: F401  # before torchvision
from architecture import Architecture, Input, free_image, image, normal
from torch import Tensor, nn

_NOTHING: dict[str, Any] = {"weights": None, "num_classes": 10}
_CLASSIFIERS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnet18", 64, {}),
    ("squeezenet1_1", 64, {}),
    ("googlenet", 64, {"aux_logits": False, "init_weights": True}),
    ("inception_v3", 96, {"aux_logits": False, "init_weights": True}),
    ("shufflenet_v2_x0_5", 64, {}),
    ("mobilenet_v2", 64, {"width_mult": 0.5}),
    ("mobilenet_v3_small", 64, {}),
    ("mobilenet_v3_large", 64, {}),
    ("mnasnet0_5", 64, {}),
    ("efficientnet_b0", 64, {}),
    ("efficientnet_v2_s", 64, {}),
    ("regnet_x_400mf", 64, {}),
    ("regnet_y_400mf", 64, {}),
    ("convnext_tiny", 64, {}),
    ("swin_t", 64, {}),
    ("swin_v2_t", 64, {}),
)
_VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t", "mvit_v2_s")


def _model(name: str, **options: Any) -> Any:
    from torchvision import models

    return models.get_model(name, **{**_NOTHING, **options})


def _narrow(name: str, entering: int) -> Any:
    """A model whose three fully connected layers are 256 wide, not 4096."""
    model = _model(name)
    widths = iter([(entering, 256), (256, 256), (256, 10)])
    model.classifier = nn.Sequential(
        *(nn.Linear(*next(widths)) if isinstance(part, nn.Linear) else part for part in model.classifier)
    )
    return model


def _resnet(**options: Any) -> Any:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10, **options)


def _densenet() -> Any:
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=16, block_config=(2, 2, 2, 2), num_init_features=32, num_classes=10)


def _vit() -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )


def _maxvit() -> Any:
    from torchvision.models import MaxVit

    return MaxVit(
        input_size=(64, 64), stem_channels=16, partition_size=2, block_channels=[16, 32], block_layers=[1, 1],
        head_dim=16, stochastic_depth_prob=0.0, num_classes=10,
    )  # fmt: skip


def _video(name: str) -> Any:
    from torchvision import models
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    if name == "mvit_v2_s":
        blocks = [
            MSBlockConfig(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 4, 4]),
            MSBlockConfig(2, 32, 64, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
            MSBlockConfig(2, 64, 64, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        ]
        return MViT((32, 32), 8, blocks, True, True, True, True, num_classes=10)
    if name == "swin3d_t":
        return models.video.SwinTransformer3d([2, 4, 4], 32, [2, 2], [2, 4], [2, 4, 4], num_classes=10)
    return models.get_model(name, **_NOTHING)


def _clip() -> tuple[Input, ...]:
    return (Input("x", ("batch", 3, 8, 32, 32), normal),)


def _raft() -> Any:
    from torchvision.models.optical_flow import raft_small

    return FinalFlow(raft_small(weights=None))


def _segmentation(name: str) -> Any:
    return _model(name, weights_backbone=None)


class FinalFlow(nn.Module):
    """RAFT in four rounds; the last flow alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Take two images float32 [n, 3, h, w], return the flow float32 [n, 2, h, w]."""
        return self.model(first, second, num_flow_updates=4)[-1]


_FRAMES = tuple(Input(name, ("batch", 3, 128, 128), normal) for name in ("first", "second"))

ARCHITECTURES = (
    *(
        Architecture(name, "torchvision", "classifier", partial(_model, name, **options), image("x", size))
        for name, size, options in _CLASSIFIERS
    ),
    Architecture("alexnet", "torchvision", "classifier", partial(_narrow, "alexnet", 9216), image("x", 224)),
    Architecture("vgg11", "torchvision", "classifier", partial(_narrow, "vgg11", 25088), image("x", 64)),
    Architecture("resnext50_32x4d", "torchvision", "classifier", partial(_resnet, groups=32, width_per_group=4),
                 image("x", 64)),
    Architecture("wide_resnet50_2", "torchvision", "classifier", partial(_resnet, width_per_group=128),
                 image("x", 64)),
    Architecture("densenet", "torchvision", "classifier", _densenet, image("x", 64)),
    Architecture("vit", "torchvision", "classifier", _vit, image("x", 64)),
    Architecture("maxvit", "torchvision", "classifier", _maxvit, image("x", 64)),
    *(
        Architecture(name, "torchvision", "classifier", partial(_video, name), _clip()) for name in _VIDEO
    ),
    *(
        Architecture(name, "torchvision", "segmentation", partial(_segmentation, name),
                     free_image("input" if name.startswith("lraspp") else "x"))
        for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "lraspp_mobilenet_v3_large")
    ),
    Architecture("raft_small", "torchvision", "optical flow", _raft, _FRAMES),
)  # fmt: skip
