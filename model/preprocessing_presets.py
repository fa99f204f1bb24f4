"""The usual preprocessing of images: of ImageNet and of CIFAR-10."""

from __future__ import annotations

from .preprocessing import ImagePreprocessing, Preprocessing

PRESETS: dict[str, Preprocessing] = {
    "imagenet": ImagePreprocessing(
        source="imagenet",
        height=224,
        width=224,
        resize=(256,),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    "cifar10": ImagePreprocessing(
        source="cifar10",
        height=32,
        width=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        classes=(
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
        ),
    ),
}  # fmt: skip
"""Name to preprocessing; `input` is left to whoever knows the model."""
