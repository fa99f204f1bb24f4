"""Vision models of transformers that do not classify: segmentation, detection, depth, image and text."""

from __future__ import annotations

from typing import Any

from architecture import Input, free_image, image, integers, padded_mask, smooth, text
from transformers_models import SMALL, row

_PIXELS = "pixel_values"
_VIT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
_FOUR: dict[str, Any] = {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1], "num_labels": 5}
_TEXT = {**SMALL, "projection_dim": 32}
_BOTH = (*text(), *image(_PIXELS, 64))
_PAIR = {"text_config": _TEXT, "vision_config": {**_VIT, "projection_dim": 32}, "projection_dim": 32}
_DETR: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_queries": 10,
    "num_labels": 5, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
}  # fmt: skip


def _resnet(stages: tuple[str, ...] = ("stage4",)) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=list(stages),
    )  # fmt: skip


def _swin() -> Any:
    from transformers import SwinConfig

    return SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 4, 4], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip


def _dinov2() -> Any:
    from transformers import Dinov2Config

    return Dinov2Config(
        **{**_VIT, "image_size": 56, "patch_size": 14},
        out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False, apply_layernorm=True,
    )  # fmt: skip


_STAGES = ("stage2", "stage3", "stage4")

ARCHITECTURES = (
    row("segformer", "segmentation", "Segformer", "SegformerForSemanticSegmentation", free_image(_PIXELS),
        {**_FOUR, "decoder_hidden_size": 32, "num_attention_heads": [1, 2, 4, 6]}),
    row("mobilenet_v2_deeplab", "segmentation", "MobileNetV2", "MobileNetV2ForSemanticSegmentation",
        free_image(_PIXELS), {"depth_multiplier": 0.35, "num_labels": 5, "output_stride": 16}),
    row("mobilevit_deeplab", "segmentation", "MobileViT", "MobileViTForSemanticSegmentation", image(_PIXELS, 64),
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 96],
         "num_labels": 5}),
    row("upernet", "segmentation", "UperNet", "UperNetForSemanticSegmentation", image(_PIXELS, 64),
        {"backbone_config": _swin(), "hidden_size": 32, "auxiliary_in_channels": 64, "num_labels": 5,
         "auxiliary_channels": 16}),
    row("dpt", "depth", "DPT", "DPTForDepthEstimation", image(_PIXELS, 64),
        {**_VIT, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 32, 48, 64],
         "fusion_hidden_size": 32, "is_hybrid": False}),
    row("glpn", "depth", "GLPN", "GLPNForDepthEstimation", image(_PIXELS, 64),
        {**_FOUR, "decoder_hidden_size": 32, "num_attention_heads": [1, 2, 4, 6]}),
    row("depth_anything", "depth", "DepthAnything", "DepthAnythingForDepthEstimation", image(_PIXELS, 56),
        {"backbone_config": _dinov2(), "patch_size": 14, "neck_hidden_sizes": [16, 32, 48, 64],
         "fusion_hidden_size": 32, "head_hidden_size": 16, "reassemble_hidden_size": 64}),
    row("detr", "detection", "Detr", "DetrForObjectDetection", image(_PIXELS, 64),
        {**_DETR, "backbone_config": _resnet()}),
    row("conditional_detr", "detection", "ConditionalDetr", "ConditionalDetrForObjectDetection",
        image(_PIXELS, 64), {**_DETR, "backbone_config": _resnet()}),
    row("deformable_detr", "detection", "DeformableDetr", "DeformableDetrForObjectDetection", image(_PIXELS, 64),
        {**_DETR, "backbone_config": _resnet(_STAGES), "num_feature_levels": 3}),
    row("table_transformer", "detection", "TableTransformer", "TableTransformerForObjectDetection",
        image(_PIXELS, 64), {**_DETR, "backbone_config": _resnet()}),
    row("rt_detr", "detection", "RTDetr", "RTDetrForObjectDetection", image(_PIXELS, 64),
        {"d_model": 64, "encoder_hidden_dim": 64, "decoder_layers": 2, "encoder_ffn_dim": 128,
         "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 10,
         "num_denoising": 0, "num_labels": 5, "encoder_in_channels": [32, 48, 64], "anchor_image_size": None,
         "decoder_in_channels": [64, 64, 64], "hidden_expansion": 0.5,
         "backbone_config": {"model_type": "rt_detr_resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 48, 64],
                             "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": list(_STAGES)}}),
    row("yolos", "detection", "Yolos", "YolosForObjectDetection", image(_PIXELS, 64),
        {**_VIT, "image_size": [64, 64], "num_detection_tokens": 10, "num_labels": 5}),
    row("maskformer", "segmentation", "MaskFormer", "MaskFormerForInstanceSegmentation", image(_PIXELS, 64),
        {"backbone_config": _swin(), "fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 5,
         "decoder_config": {"model_type": "detr", **_DETR}}),
    row("mask2former", "segmentation", "Mask2Former", "Mask2FormerForUniversalSegmentation", image(_PIXELS, 64),
        {"backbone_config": _swin(), "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32,
         "encoder_feedforward_dim": 64, "dim_feedforward": 64, "encoder_layers": 2, "decoder_layers": 3,
         "num_attention_heads": 4, "num_queries": 10, "num_labels": 5}),
    row("clip", "image and text", "CLIP", "CLIPModel", _BOTH, _PAIR),
    row("siglip", "image and text", "Siglip", "SiglipModel", _BOTH, _PAIR),
    row("chinese_clip", "image and text", "ChineseCLIP", "ChineseCLIPModel", _BOTH, _PAIR),
    row("blip", "image and text", "Blip", "BlipModel", _BOTH, _PAIR),
    row("vilt", "classifier", "Vilt", "ViltForQuestionAnswering",
        (*text(axis=16), *image(_PIXELS, 64)), {**SMALL, **_VIT, "max_image_length": -1}),
    row("clipseg", "segmentation", "CLIPSeg", "CLIPSegForImageSegmentation", _BOTH,
        {**_PAIR, "extract_layers": [1, 2, 3], "reduce_dim": 32, "decoder_num_attention_heads": 4,
         "decoder_intermediate_size": 64}),
    row("owlvit", "detection", "OwlViT", "OwlViTForObjectDetection",
        (Input("input_ids", ("batch", 16), integers(200, least=4)), *image(_PIXELS, 64),
         Input("attention_mask", ("batch", 16), padded_mask)), {**_PAIR, "projection_dim": 64}),
    row("swin2sr", "super-resolution", "Swin2SR", "Swin2SRForImageSuperResolution", image(_PIXELS, 64),
        {"image_size": 64, "patch_size": 1, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 2],
         "window_size": 8, "upscale": 2, "upsampler": "pixelshuffle"}),
    row("vitmatte", "matting", "VitMatte", "VitMatteForImageMatting",
        (Input(_PIXELS, ("batch", 4, 64, 64), smooth),),
        {"backbone_config": {"model_type": "vitdet", **_VIT, "num_channels": 4, "out_features": ["stage4"],
                             "window_size": 2, "window_block_indices": [0, 2]},
         "hidden_size": 64, "convstream_hidden_sizes": [16, 32, 48], "fusion_hidden_sizes": [64, 48, 32, 16]}),
    row("vitpose", "pose", "VitPose", "VitPoseForPoseEstimation", image(_PIXELS, 64),
        {"backbone_config": {"model_type": "vitpose_backbone", **_VIT, "image_size": [64, 64],
                             "patch_size": [16, 16], "out_indices": [4]}, "num_labels": 5}),
    row("dinov3", "encoder", "DINOv3ViT", "DINOv3ViTModel", image(_PIXELS, 64), _VIT),
    row("videomae", "classifier", "VideoMAE", "VideoMAEForVideoClassification",
        (Input(_PIXELS, ("batch", 4, 3, 32, 32), smooth),),
        {**_VIT, "image_size": 32, "patch_size": 8, "num_frames": 4, "tubelet_size": 2, "num_labels": 5}),
    row("timesformer", "classifier", "Timesformer", "TimesformerForVideoClassification",
        (Input(_PIXELS, ("batch", 4, 3, 32, 32), smooth),),
        {**_VIT, "image_size": 32, "patch_size": 8, "num_frames": 4, "num_labels": 5}),
    row("git", "image and text", "Git", "GitModel", (*text(axis=16), *image(_PIXELS, 64)),
        {**SMALL, "vision_config": _VIT, "use_cache": False}),
)  # fmt: skip
