"""Eight architectures in plain PyTorch, small or as published, for tests of the whole road.

`COMPACT` has the layers and joins of the published networks, fewer and narrower; `FULL` as many and as wide.
Weights are random, after He et al. 2015, so that the signal reaches the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


def unit(
    inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1, act: nn.Module | None = None
) -> nn.Sequential:
    """Convolution, BatchNorm and an activation, if any."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([act] if act is not None else []))


class Residual(nn.Module):
    """What the body makes is added to what it read, or to the shortcut of that."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.after = body, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    """Channels weighted by what the mean of the image says (Hu et al. 2018)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(mean))))


def classifier(body: list[nn.Module], channels: int, classes: int) -> nn.Sequential:
    """A body, the mean over the image, and a Linear."""
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def resnet(width: int, depths: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet v1.5 of bottlenecks (He et al. 2016): x [n, 3, h, w]."""
    body: list[nn.Module] = [unit(3, width, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(depths):
        inner = width << stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            layers = [
                unit(channels, inner, act=nn.ReLU()),
                unit(inner, inner, 3, stride, act=nn.ReLU()),
                unit(inner, 4 * inner),
            ]
            shortcut = nn.Identity() if index else unit(channels, 4 * inner, 1, stride)
            body.append(Residual(nn.Sequential(*layers), shortcut, nn.ReLU()))
            channels = 4 * inner
    return classifier(body, channels, classes)


Stages = Sequence[tuple[int, ...]]


def inverted(stages: Stages, last: int, classes: int, act: type[nn.Module]) -> nn.Module:
    """Inverted bottlenecks: `times` as wide, one channel at a time, narrow again.

    A stage is (times, channels, depth, stride) of MobileNetV2 (Sandler et al. 2018), or has a window as well
    and squeezes and excites, as in EfficientNet (Tan and Le 2019).
    """
    body: list[nn.Module] = [unit(3, 32, 3, 2, act=act())]
    channels = 32
    for times, width, depth, first_stride, *window in stages:
        for stride in (first_stride, *[1] * (depth - 1)):
            inner = channels * times
            layers: list[nn.Module] = [unit(channels, inner, act=act())] if times != 1 else []
            layers.append(unit(inner, inner, *window or [3], stride, groups=inner, act=act()))
            layers += [SqueezeExcite(inner, max(1, channels // 4))] * len(window)
            block: nn.Module = nn.Sequential(*layers, unit(inner, width))
            if stride == 1 and channels == width:
                block = Residual(block, nn.Identity(), nn.Identity())
            body.append(block)
            channels = width
    return classifier([*body, unit(channels, last, act=act())], last, classes)


MOBILENET_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                (6, 320, 1, 1))  # fmt: skip
EFFICIENTNET_B0 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
                   (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip


def vgg(stages: tuple[tuple[int, ...], ...], places: int, hidden: int, classes: int) -> nn.Module:
    """VGG (Simonyan and Zisserman 2015); `places` is the extent of the last feature map, squared."""
    body: list[nn.Module] = []
    channels = 3
    for stage in stages:
        for width in stage:
            body += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        body.append(nn.MaxPool2d(2))
    head = [nn.Linear(channels * places, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(), *head, nn.Linear(hidden, classes))


class Attention(nn.Module):
    """Self-attention of several heads, with a bias for what must not be looked at."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A Transformer's layer: normalized in front of its parts (ViT) or behind them (BERT)."""

    def __init__(self, width: int, heads: int, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        first, second = self.norms
        if self.before:
            x = x + self.attention(first(x), hidden)
            return x + self.wide(second(x))  # type: ignore[no-any-return]
        x = first(x + self.attention(x, hidden))
        return second(x + self.wide(x))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """BERT's encoder (Devlin et al. 2019) with a pooled output."""

    def __init__(self, words: int, longest: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads, before=False) for _ in range(depth))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Take int64 [n, length] twice, return float32 [n, width]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        return torch.tanh(self.pool(x[:, 0]))


class Vit(nn.Module):
    """ViT (Dosovitskiy et al. 2021)."""

    def __init__(self, side: int, patch: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, before=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Take float32 [n, 3, side, side], return float32 [n, classes]."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])  # type: ignore[no-any-return]


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015): four levels down and up, joined; padded, with BatchNorm."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        pairs = [(2 * w, w) for w in reversed(widths[:-1])]
        self.down = nn.ModuleList(self._twice(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(self._twice(a, b) for a, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _twice(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            unit(inputs, outputs, 3, act=nn.ReLU()), unit(outputs, outputs, 3, act=nn.ReLU())
        )

    def forward(self, image: Tensor) -> Tensor:
        """Take float32 [n, 3, 16 k, 16 l], return float32 [n, classes, 16 k, 16 l]."""
        kept = [self.down[0](image)]
        for twice in self.down[1:]:
            kept.append(twice(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """A tagger of words: embedding, bidirectional LSTM, Linear (Huang et al. 2015, without the CRF)."""

    def __init__(self, words: int, width: int, depth: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        """Take int64 [n, length], return float32 [n, length, tags]."""
        return self.head(self.lstm(self.embed(tokens))[0])  # type: ignore[no-any-return]


def started(model: nn.Module) -> nn.Module:
    """Give convolutions and biases values with which the signal lives; return the model."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.05)
    return model.eval()


@dataclass(frozen=True)
class Recipe:
    """How to make a model, and what it takes.

    Attributes:
        make: Builds it.
        inputs: As `export` takes them; "batch" and "length" are dynamic.
        words: Integers of text are below this.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    words: int = 0


Recipes = dict[str, Recipe]

_SMALL_V2 = tuple((times, width, min(depth, 2), stride) for times, width, depth, stride in MOBILENET_V2)
_SMALL_B0 = tuple((t, min(width, 160), min(depth, 2), s, k) for t, width, depth, s, k in EFFICIENTNET_B0)
_SMALL_VGG = ((16, 16), (32, 32), (64, 64), (128, 128), (128, 128))
_VGG_16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def _recipes(
    make: dict[str, Callable[[], nn.Module]], sides: tuple[int, int], text: tuple[int, int]
) -> Recipes:
    """Recipes for images (U-Net's are larger) and for texts of a length and a vocabulary."""
    length, words = text
    found = {}
    for name, maker in make.items():
        image = sides[name == "unet"]
        inputs: tuple[str, ...] = (f"image:[batch,3,{image},{image}]",)
        if name == "lstm":
            inputs = (f"tokens:[batch,{length}]:int64",)
        elif name.startswith("bert"):
            axes = f"[batch,{'length' if name == 'bert-length' else length}]:int64"
            inputs = (f"tokens:{axes}", f"mask:{axes}")
        found[name] = Recipe(maker, inputs, 0 if "image" in inputs[0] else words)
    return found


COMPACT = _recipes(
    {
        "resnet": lambda: resnet(32, (1, 1, 2, 1), 100),
        "mobilenet": lambda: inverted(_SMALL_V2, 640, 100, nn.ReLU6),
        "efficientnet": lambda: inverted(_SMALL_B0, 640, 100, nn.SiLU),
        "vgg": lambda: vgg(_SMALL_VGG, 4, 1024, 100),
        "bert": lambda: Bert(2000, 64, 192, 4, 2),
        "bert-length": lambda: Bert(2000, 64, 192, 4, 2),
        "vit": lambda: Vit(64, 16, 192, 4, 2, 100),
        "unet": lambda: UNet(16, 2),
        "lstm": lambda: Tagger(2000, 128, 2, 20),
    },
    sides=(64, 64),
    text=(32, 2000),
)
FULL = _recipes(
    {
        "resnet": lambda: resnet(64, (3, 4, 6, 3), 1000),
        "mobilenet": lambda: inverted(MOBILENET_V2, 1280, 1000, nn.ReLU6),
        "efficientnet": lambda: inverted(EFFICIENTNET_B0, 1280, 1000, nn.SiLU),
        "vgg": lambda: vgg(_VGG_16, 49, 4096, 1000),
        "bert": lambda: Bert(30522, 512, 768, 12, 12),
        "bert-length": lambda: Bert(30522, 512, 768, 12, 12),
        "vit": lambda: Vit(224, 16, 768, 12, 12, 1000),
        "unet": lambda: UNet(64, 2),
        "lstm": lambda: Tagger(30522, 512, 2, 50),
    },
    sides=(224, 256),
    text=(128, 30522),
)
