"""What named models say of images is what their packages do, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_models import PAIR, VIT
from PIL import Image

from qcompile.data.images import as_input
from qcompile.model.named.load import describe_named
from qcompile.model.named.torchvision_import import declare_torchvision_operators
from qcompile.model.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    preprocessing_of,
)
from qcompile.model.source import parse_source
from qcompile.progress import quiet

SIZES = [(100, 75), (300, 400)]


def picture(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(random).resize((width, height), Image.Resampling.BICUBIC)


def said_of(spec: str, name: str = "") -> Any:
    inputs = describe_named(parse_source(spec)).inputs
    return preprocessing_of([one for one in inputs if name in (one.name, "")])


@pytest.mark.parametrize(
    "name", ["resnet18", "convnext_tiny", "vit_tiny_patch16_224", "inception_v3", "mobilenetv3_small_050"]
)
def test_timm(name: str) -> None:
    said = said_of(f"timm:{name}")
    from timm import get_pretrained_cfg
    from timm.data import create_transform, resolve_data_config

    theirs = create_transform(**resolve_data_config({}, pretrained_cfg=get_pretrained_cfg(name).to_dict()))
    for size in SIZES:
        np.testing.assert_array_equal(as_input(picture(*size), said), theirs(picture(*size)).numpy())
    assert said.classes[0] == "n01440764"


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "efficientnet_b0", "inception_v3"])
def test_torchvision(name: str) -> None:
    said = said_of(f"torchvision:{name}")
    from torchvision.models import get_model_weights

    weights: Any = get_model_weights(name)
    theirs = weights.DEFAULT.transforms()
    for size in SIZES:
        np.testing.assert_array_equal(as_input(picture(*size), said), theirs(picture(*size)).numpy())
    assert said.classes[0] == "tench"


@pytest.mark.parametrize(
    ("family", "head", "options", "processor"),
    [
        ("ViT", "ForImageClassification", VIT, {}),
        ("DeiT", "ForImageClassification", VIT, {"crop_size": {"height": 32, "width": 32}, "size": 40}),
        ("ConvNext", "ForImageClassification", {"hidden_sizes": [8], "depths": [1]},
         {"size": {"shortest_edge": 224}}),
        ("ConvNext", "ForImageClassification", {"hidden_sizes": [8], "depths": [1]}, {}),
        ("MobileNetV2", "ForImageClassification", {}, {}),
        ("EfficientNet", "ForImageClassification", {}, {}),
        ("Levit", "ForImageClassification", {}, {}),
        ("Segformer", "ForSemanticSegmentation", {}, {}),
        ("CLIP", "Model", PAIR, {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}),
    ],
)  # fmt: skip
def test_transformers(
    family: str, head: str, options: dict[str, Any], processor: dict[str, Any], tmp_path: Path
) -> None:
    declare_torchvision_operators()
    import transformers

    with quiet():
        config = getattr(transformers, f"{family}Config")(**options)
        config.architectures = [f"{family}{head}"]
        config.save_pretrained(tmp_path)
        getattr(transformers, f"{family}ImageProcessor")(**processor).save_pretrained(tmp_path)
        theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    said = said_of(f"hf:{tmp_path}", "pixel_values")
    assert isinstance(said, ImagePreprocessing)
    for size in SIZES:
        expected = theirs(picture(*size), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(as_input(picture(*size), said), expected, atol=2e-6)


def test_what_cannot_be_told_is_a_note(tmp_path: Path) -> None:
    declare_torchvision_operators()
    import transformers

    config = transformers.MobileViTConfig()
    config.architectures = ["MobileViTForImageClassification"]
    config.save_pretrained(tmp_path)
    transformers.MobileViTImageProcessor().save_pretrained(tmp_path)
    described = describe_named(parse_source(f"hf:{tmp_path}"))
    assert preprocessing_of(described.inputs) is None
    assert "do_flip_channel_order" in described.notes[0]


def test_texts_and_sounds(folder_of: Any) -> None:
    text = said_of(f"hf:{folder_of('bert')}")
    assert isinstance(text, TextPreprocessing)
    assert text.inputs == ("input_ids", "token_type_ids", "attention_mask")
    assert (text.max_length, text.task) == (32, "text-classification"), (
        "the tokenizer's 32, not the model's 40"
    )
    sound = said_of(f"hf:{folder_of('speech')}")
    assert isinstance(sound, AudioPreprocessing)
    assert (sound.inputs, sound.rate_hz, sound.blank) == (("input_values",), 16000, 0)
    assert sound.vocabulary == ("", "", "", "", " ", "a", "b", "c")


def test_ranges_and_values_suit_the_model(folder_of: Any) -> None:
    described = describe_named(parse_source(f"hf:{folder_of('roberta')}"))
    ids = described.inputs[0]
    assert [(one.axis, one.minimum, one.maximum) for one in ids.extents] == [(1, 1, 38)], (
        "40 less padding's 2"
    )
    feeds = described.example()
    assert feeds["input_ids"].max() < 64
    assert not np.isin(feeds["input_ids"], [1, 2, 3]).any(), "padding, begin and end are no words"
    assert feeds["attention_mask"].tolist() == [[1] * 16, [1] * 12 + [0] * 4]


def test_another_size_keeps_the_share_of_the_image() -> None:
    said = said_of("torchvision:resnet50?size=112")
    assert (said.height, said.width, said.resize) == (112, 112, (116,)), "232 of 224, as 116 of 112"
