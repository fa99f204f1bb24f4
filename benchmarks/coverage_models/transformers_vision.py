"""Image classifiers of transformers."""

from __future__ import annotations

from typing import Any

from architecture import Architecture, image
from transformers_models import row

_VIT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
_SWIN: dict[str, Any] = {
    "image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
_FOUR: dict[str, Any] = {
    "num_channels": 3, "hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1], "embed_dims": [16, 32, 64, 96],
}  # fmt: skip
_MODELS: tuple[tuple[str, str, str, int, dict[str, Any]], ...] = (
    # name, class without Config, model (ForImageClassification otherwise), extent, options
    ("vit", "ViT", "", 64, _VIT),
    ("deit", "DeiT", "", 64, _VIT),
    ("deit_distilled", "DeiT", "DeiTForImageClassificationWithTeacher", 64, _VIT),
    ("beit", "Beit", "", 64, {**_VIT, "use_relative_position_bias": True}),
    ("data2vec_vision", "Data2VecVision", "", 64, {**_VIT, "use_relative_position_bias": True}),
    ("dinov2", "Dinov2", "", 56, {**_VIT, "image_size": 56, "patch_size": 14}),
    ("dinov2_registers", "Dinov2WithRegisters", "", 56, {**_VIT, "image_size": 56, "patch_size": 14}),
    ("vit_msn", "ViTMSN", "", 64, _VIT),
    ("ijepa", "IJepa", "", 64, _VIT),
    ("swin", "Swin", "", 64, _SWIN),
    ("swinv2", "Swinv2", "", 64, _SWIN),
    ("donut_swin", "DonutSwin", "", 64, _SWIN),
    ("convnext", "ConvNext", "", 64, _FOUR),
    ("convnextv2", "ConvNextV2", "", 64, _FOUR),
    ("resnet", "ResNet", "", 64, {**_FOUR, "embedding_size": 16, "layer_type": "bottleneck"}),
    ("bit", "Bit", "", 64, {**_FOUR, "embedding_size": 16, "num_groups": 8}),
    ("regnet", "RegNet", "", 64, {**_FOUR, "embedding_size": 16, "groups_width": 16}),
    ("hgnetv2", "HGNetV2", "", 64, {}),
    ("mobilenet_v1", "MobileNetV1", "", 64, {"depth_multiplier": 0.25}),
    ("mobilenet_v2", "MobileNetV2", "", 64, {"depth_multiplier": 0.35}),
    ("mobilevit", "MobileViT", "", 64, {"image_size": 64, "hidden_sizes": [32, 48, 64],
                                       "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 96]}),
    ("mobilevitv2", "MobileViTV2", "", 64, {"image_size": 64, "width_multiplier": 0.5}),
    ("efficientnet", "EfficientNet", "", 64, {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640}),
    ("levit", "Levit", "", 64, {"image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4],
                               "depths": [1, 1, 1], "key_dim": [16, 16, 16]}),
    ("pvt", "Pvt", "", 64, {**_FOUR, "image_size": 64, "hidden_sizes": [16, 32, 80, 96]}),
    ("pvt_v2", "PvtV2", "", 64, {"image_size": 64, "hidden_sizes": [16, 32, 80, 96], "depths": [1, 1, 2, 1]}),
    ("segformer_classifier", "Segformer", "", 64, {**_FOUR, "hidden_sizes": [16, 32, 80, 96]}),
    ("poolformer", "PoolFormer", "", 64, _FOUR),
    ("cvt", "Cvt", "", 64, {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}),
    ("focalnet", "FocalNet", "", 64, {"image_size": 64, "embed_dim": 32, "depths": [1, 1, 2, 1],
                                     "hidden_sizes": [32, 64, 128, 256]}),
    ("hiera", "Hiera", "", 64, {"image_size": [64, 64], "embed_dim": 32, "depths": [1, 1, 2, 1],
                               "num_heads": [1, 2, 4, 8]}),
    ("swiftformer", "SwiftFormer", "", 64, {"depths": [1, 1, 2, 1], "embed_dims": [16, 32, 64, 96]}),
    ("textnet", "TextNet", "", 64, {}),
    ("siglip_vision", "Siglip", "", 64, {"vision_config": _VIT}),
    ("pp_lcnet", "PPLCNet", "", 64, {}),
    ("clip_vision", "CLIP", "", 64, {"vision_config": _VIT}),
)  # fmt: skip


def _classifier(name: str, family: str, model: str, size: int, options: dict[str, Any]) -> Architecture:
    model = model or f"{family}ForImageClassification"
    return row(name, "classifier", family, model, image("pixel_values", size), {**options, "num_labels": 10})


ARCHITECTURES = tuple(_classifier(*one) for one in _MODELS)
