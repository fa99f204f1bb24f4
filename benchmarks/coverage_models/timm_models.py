"""Image classifiers of timm: the smallest of each family, or one made smaller by its own options."""

from __future__ import annotations

from typing import Any

from architecture import Architecture, image

_MODELS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    # name in timm, extent of the image, options
    ("resnet10t", 64, {}),
    ("resnetblur18", 64, {}),
    ("resnest14d", 64, {}),
    ("skresnet18", 64, {}),
    ("seresnet18", 64, {}),
    ("ecaresnet26t", 64, {}),
    ("res2net50_26w_4s", 64, {"layers": (1, 1, 1, 1)}),
    ("resnext26ts", 64, {}),
    ("resnetv2_50d_gn", 64, {"layers": (1, 1, 1, 1)}),
    ("botnet26t_256", 64, {"img_size": 64}),
    ("halonet26t", 256, {"img_size": 256}),
    ("lambda_resnet26t", 64, {"img_size": 64}),
    ("regnety_002", 64, {}),
    ("nf_regnet_b0", 64, {}),
    ("test_nfnet", 64, {}),
    ("densenet121", 64, {"growth_rate": 16, "block_config": (2, 2, 2, 2)}),
    ("dla46_c", 64, {}),
    ("hrnet_w18_small", 64, {}),
    ("dpn48b", 64, {"k_sec": (1, 1, 1, 1)}),
    ("cspresnet50", 64, {}),
    ("ese_vovnet19b_dw", 64, {}),
    ("selecsls42", 64, {}),
    ("xception41", 96, {}),
    ("inception_v3", 96, {}),
    ("vgg11_bn", 64, {}),
    ("repvgg_a0", 64, {}),
    ("mobileone_s0", 64, {}),
    ("hgnetv2_b0", 64, {}),
    ("rexnet_100", 64, {}),
    ("ghostnet_050", 64, {}),
    ("ghostnetv2_100", 64, {}),
    ("repghostnet_050", 64, {}),
    ("lcnet_035", 64, {}),
    ("mobilenetv2_035", 64, {}),
    ("mobilenetv3_small_050", 64, {}),
    ("mobilenetv4_conv_small_035", 64, {}),
    ("mnasnet_small", 64, {}),
    ("fbnetc_100", 64, {}),
    ("mixnet_s", 64, {}),
    ("tinynet_e", 64, {}),
    ("hardcorenas_a", 64, {}),
    ("efficientnet_lite0", 64, {}),
    ("tf_efficientnetv2_b0", 64, {}),
    ("starnet_s050", 64, {}),
    ("repvit_m0_9", 64, {}),
    ("inception_next_atto", 64, {}),
    ("convnext_atto", 64, {}),
    ("convnextv2_atto", 64, {}),
    ("test_convnext", 64, {}),
    ("rdnet_tiny", 64, {"num_blocks_list": (1, 1, 1, 1, 1, 1, 1)}),
    ("mambaout_femto", 64, {"depths": (1, 1, 2, 1)}),
    ("edgenext_xx_small", 64, {}),
    ("fastvit_t8", 64, {}),
    ("mobilevit_xxs", 64, {}),
    ("mobilevitv2_050", 64, {}),
    ("efficientformerv2_s0", 64, {"img_size": 64}),
    ("efficientvit_b0", 64, {}),
    ("efficientvit_m0", 64, {"img_size": 64}),
    ("levit_128s", 64, {"img_size": 64}),
    ("tiny_vit_5m_224", 64, {"window_sizes": (4, 4, 4, 2)}),
    ("nextvit_small", 64, {}),
    ("poolformer_s12", 64, {}),
    ("caformer_s18", 64, {}),
    ("pvt_v2_b0", 64, {}),
    ("twins_svt_small", 64, {"depths": (1, 1, 2, 1)}),
    ("davit_tiny", 64, {"depths": (1, 1, 1, 1), "embed_dims": (32, 64, 96, 128), "num_heads": (2, 2, 4, 4)}),
    ("focalnet_tiny_srf", 64, {}),
    ("gcvit_xxtiny", 64, {"img_size": 64, "window_ratio": (8, 16, 16, 32)}),
    ("coat_lite_tiny", 64, {"img_size": 64}),
    ("coatnet_pico_rw_224", 64, {"img_size": 64}),
    ("maxvit_rmlp_pico_rw_256", 64, {"img_size": 64}),
    ("nest_tiny", 64, {"img_size": 64}),
    ("hiera_tiny_224", 64, {"img_size": (64, 64), "stages": (1, 1, 2, 1)}),
    ("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "window_size": 4, "depths": (2, 2), "num_heads": (2, 4),
                                         "embed_dim": 32}),
    ("swinv2_tiny_window8_256", 64, {"img_size": 64, "window_size": 4, "depths": (2, 2), "num_heads": (2, 4),
                                    "embed_dim": 32}),
    ("vit_tiny_patch16_224", 64, {"img_size": 64, "depth": 3}),
    ("deit_tiny_distilled_patch16_224", 64, {"img_size": 64, "depth": 3}),
    ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 3}),
    ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 2}),
    ("cait_xxs24_224", 64, {"img_size": 64, "depth": 2}),
    ("crossvit_tiny_240", 240, {"depth": ((1, 2, 0), (1, 2, 0))}),
    ("xcit_nano_12_p16_224", 64, {"img_size": 64, "depth": 2}),
    ("visformer_tiny", 64, {"img_size": 64}),
    ("convit_tiny", 64, {"img_size": 64, "depth": 3, "local_up_to_layer": 2}),
    ("mixer_s32_224", 64, {"img_size": 64}),
    ("resmlp_12_224", 64, {"img_size": 64}),
    ("gmlp_ti16_224", 64, {"img_size": 64}),
    ("sequencer2d_s", 64, {"img_size": 64}),
)  # fmt: skip


def _module(name: str, options: dict[str, Any]) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10, **options)


ARCHITECTURES = tuple(
    Architecture(name, "timm", "classifier", lambda n=name, o=options: _module(n, o), image("x", size))
    for name, size, options in _MODELS
)
