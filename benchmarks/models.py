"""The models of the benchmarks: real architectures with random weights, so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Logits(nn.Module):
    """A classifier of transformers whose output is the logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 224, 224], return float32 [n, 1000]."""
        return self.model(image).logits


class Hidden(nn.Module):
    """A text encoder whose output is the last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        """Take int64 [n, length] twice, return float32 [n, length, 768]."""
        return self.model(input_ids=tokens, attention_mask=mask).last_hidden_state


def resnet50() -> nn.Module:
    """ResNet-50 v1.5."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=1000)))


def lively(model: nn.Module) -> nn.Module:
    """Give convolutions weights after He et al. 2015, and BatchNorm the statistics of images.

    As their packages initialize some models, the signal fades to 1e-21, which no 8 or 16 bits can hold.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.3)
            nn.init.normal_(module.bias, 0.0, 0.3)
            module.momentum = None  # the mean of all batches
    model.train()
    with torch.inference_mode():
        model(torch.randn(16, 3, 224, 224))
    return model.eval()


def mobilenetv2() -> nn.Module:
    """MobileNetV2 1.0."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(0)
    return lively(Logits(MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))))


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    torch.manual_seed(0)
    config = EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280, num_labels=1000
    )
    return lively(Logits(EfficientNetForImageClassification(config)))


def vgg16() -> nn.Module:
    """VGG-16 (Simonyan and Zisserman 2015, configuration D)."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for stage in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(True), nn.Linear(4096, 4096), nn.ReLU(True)]
    model = nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(4096, 1000))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


def vit_b16() -> nn.Module:
    """ViT-B/16."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    return Logits(ViTForImageClassification(ViTConfig(num_labels=1000)))


def bert() -> nn.Module:
    """BERT-base: 12 layers, 768 wide; biases are not zero, as they never are in a trained model."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(), add_pooling_layer=False)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.05)
    return Hidden(model)


class _Twice(nn.Sequential):
    """Convolution, BatchNorm and ReLU, twice."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015: four levels down by pools, four up by transposed convolutions, joined.

    Convolutions are padded, so that the mask is as large as the image, and followed by BatchNorm, as in
    most implementations since.
    """

    def __init__(self, width: int = 64, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(_Twice(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = [(2 * w, w) for w in reversed(widths[:-1])]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(_Twice(a, b) for a, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Take float32 [n, 3, 16 k, 16 l], return float32 [n, classes, 16 k, 16 l]."""
        kept: list[torch.Tensor] = []
        x = image
        for level, twice in enumerate(self.down):
            x = twice(x if level == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)  # type: ignore[no-any-return]


def unet() -> nn.Module:
    """U-Net of 31 million parameters, with weights after He et al. 2015."""
    torch.manual_seed(0)
    model = UNet()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


class Tagger(nn.Module):
    """A tagger of words (Huang et al. 2015, without the CRF): embedding, bidirectional LSTM, Linear."""

    def __init__(self, words: int = 30522, width: int = 512, layers: int = 2, tags: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Take int64 [n, length], return float32 [n, length, tags]."""
        return self.head(self.lstm(self.embed(tokens))[0])  # type: ignore[no-any-return]


def lstm() -> nn.Module:
    """Two bidirectional layers of 512, 30,522 words: 26 million parameters."""
    torch.manual_seed(0)
    return Tagger()


class _Unit(nn.Module):
    """Convolution, BatchNorm, SiLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(self.conv(x)))


class _Split(nn.Module):
    """Half goes through residual blocks, every step is kept, all are joined."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first = _Unit(inputs, outputs, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(_Unit(half, half), _Unit(half, half)) for _ in range(blocks)
        )
        self.last = _Unit(outputs + blocks * half, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))  # type: ignore[no-any-return]


class Detector(nn.Module):
    """A one-stage detector: a backbone of split blocks, upsampling and joins, a head on each scale."""

    def __init__(self, width: int = 32, classes: int = 80) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(_Unit(3, w, 3, 2), _Unit(w, 2 * w, 3, 2), _Split(2 * w, 2 * w, 1))
        self.third = nn.Sequential(_Unit(2 * w, 4 * w, 3, 2), _Split(4 * w, 4 * w, 2))
        self.fourth = nn.Sequential(_Unit(4 * w, 8 * w, 3, 2), _Split(8 * w, 8 * w, 2))
        self.fifth = nn.Sequential(_Unit(8 * w, 16 * w, 3, 2), _Split(16 * w, 16 * w, 1))
        self.up4, self.up3 = _Split(24 * w, 8 * w, 1), _Split(12 * w, 4 * w, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(_Unit(c, c), nn.Conv2d(c, 64 + classes, 1)) for c in (4 * w, 8 * w, 16 * w)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Take float32 [n, 3, 224, 224], return boxes and classes, float32 [n, 64 + classes, places]."""
        p3 = self.third(self.stem(image))
        p4 = self.fourth(p3)
        p5 = self.fifth(p4)
        n4 = self.up4(torch.cat([nn.functional.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = self.up3(torch.cat([nn.functional.interpolate(n4, scale_factor=2.0), p3], 1))
        found = [head(x).flatten(2) for head, x in zip(self.heads, (n3, n4, p5), strict=True)]
        return torch.cat(found, 2)


def detector() -> nn.Module:
    """A detector in the manner of YOLO; weights after He et al. 2015, so that the signal does not fade."""
    torch.manual_seed(0)
    model = Detector()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model
