"""Networks as people write them by hand: images and what is made of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from architecture import Architecture, Input, free_image, image, normal
from torch import Tensor, nn
from torch.nn import functional


def conv(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


def backbone(width: int = 16) -> nn.Sequential:
    """Three stages that halve the image."""
    return nn.Sequential(conv(3, width, 3, 2), conv(width, 2 * width, 3, 2), conv(2 * width, 2 * width, 3, 2))


class UNet(nn.Module):
    """Ronneberger et al. 2015, two levels: transposed convolutions and concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = conv(3, 16), conv(16, 32), conv(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1, self.out = conv(64, 32), conv(32, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, h, w], h and w multiples of 4, return [n, 4, h, w]."""
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        x = self.up2(self.bottom(functional.max_pool2d(second, 2)))
        x = self.up1(self.join2(torch.cat([x, second], 1)))
        return self.out(self.join1(torch.cat([x, first], 1)))


class Yolo(nn.Module):
    """A one-stage detector whose head decodes boxes on its grid, as YOLOv3 and v5 do."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.backbone, self.head = backbone(), nn.Conv2d(32, 3 * (5 + classes), 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]))

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, h, w], return boxes, objectness and classes [n, 3 * h/8 * w/8, 8]."""
        found = self.head(self.backbone(x))
        n, _, height, width = found.shape
        found = found.view(n, 3, 8, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([columns, rows], -1).to(found.dtype)
        centers = (found[..., :2] * 2 - 0.5 + grid) * 8
        sizes = (found[..., 2:4] * 2) ** 2 * self.anchors[None, :, None, None]
        return torch.cat([centers, sizes, found[..., 4:]], -1).reshape(n, -1, 8)


class SpatialTransformer(nn.Module):
    """Jaderberg et al. 2015: `affine_grid` and `grid_sample`."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.pose = backbone(8), nn.Linear(16, 6)
        self.features, self.head = backbone(), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, 32, 32], return class logits [n, 10]."""
        pose = self.pose(self.look(x).mean((2, 3))).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        x = functional.grid_sample(x, functional.affine_grid(pose, x.shape, False), align_corners=False)
        return self.head(self.features(x).mean((2, 3)))


class Decoder(nn.Module):
    """The decoder of a variational autoencoder for images: GroupNorm, SiLU, attention, nearest upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.qkv = nn.Conv2d(4, 32, 3, 1, 1), nn.GroupNorm(8, 32), nn.Conv2d(32, 96, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, 32) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Conv2d(32, 32, 3, 1, 1) for _ in range(2))
        self.out = nn.Conv2d(32, 3, 3, 1, 1)

    def forward(self, latent: Tensor) -> Tensor:
        """Take float32 [n, 4, 8, 8], return images [n, 3, 32, 32]."""
        x = self.enter(latent)
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = functional.interpolate(x + block(functional.silu(norm(x))), scale_factor=2.0)
        return self.out(x).tanh()


class SuperResolution(nn.Module):
    """EDSR with sub-pixel convolution (Shi et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1)) for _ in range(3)
        )
        self.out = nn.Sequential(nn.Conv2d(16, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, h, w], return [n, 3, 2h, 2w]."""
        x = self.enter(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.out(x)


class Generator(nn.Module):
    """DCGAN's generator."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 32, 16)
        self.enter = nn.Linear(16, widths[0] * 16)
        self.up = nn.Sequential(*(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        ))  # fmt: skip
        self.out = nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1)

    def forward(self, noise: Tensor) -> Tensor:
        """Take float32 [n, 16], return images [n, 3, 32, 32]."""
        return self.out(self.up(self.enter(noise).view(-1, 64, 4, 4))).tanh()


class Embedding(nn.Module):
    """A face embedding: unit vectors to be compared by cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.out = backbone(), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, 32, 32], return unit vectors [n, 64]."""
        return functional.normalize(self.out(self.features(x).mean((2, 3))))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)
    )


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 10),
    )  # fmt: skip


def case(name: str, task: str, module: Any, *inputs: Input, **more: Any) -> Architecture:
    """One architecture written here."""
    return Architecture(name, "hand", task, module, inputs, **more)


_WIDE = {"height": (32, 64, 96), "width": (32, 64, 96)}

ARCHITECTURES = (
    case("mlp", "classifier", _mlp, Input("input", ("batch", 20), normal)),
    case("lenet", "classifier", _lenet, *image("input", 28, 1)),
    case("unet", "segmentation", UNet, *free_image("x"), axes=_WIDE),
    case("yolo", "detection", Yolo, *free_image("x"), axes=_WIDE),
    case("spatial_transformer", "classifier", SpatialTransformer, *image("x", 32)),
    case("vae_decoder", "image generation", Decoder, Input("latent", ("batch", 4, 8, 8), normal)),
    case("super_resolution", "super-resolution", SuperResolution, *free_image("x"), axes=_WIDE),
    case("dcgan", "image generation", Generator, Input("noise", ("batch", 16), normal)),
    case("face_embedding", "embedding", Embedding, *image("x", 32)),
)  # fmt: skip
