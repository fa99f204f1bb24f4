"""Networks as people write them by hand: images, points, graphs, tables, and what is unusual in a graph."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from architecture import Architecture, Input, free_image, image, integers, normal, unit
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


class PointNet(nn.Module):
    """Qi et al. 2017, with its input transform."""

    def __init__(self) -> None:
        super().__init__()
        self.pose = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1))
        self.transform = nn.Linear(64, 9)
        self.features = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 128, 1), nn.BatchNorm1d(128)
        )
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, points: Tensor) -> Tensor:
        """Take float32 [n, 3, points], return class logits [n, 10]."""
        matrix = self.transform(self.pose(points).amax(-1)).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.features(torch.bmm(matrix, points)).amax(-1))


class GraphConvolution(nn.Module):
    """Kipf and Welling 2017: two rounds of messages along edges, by index_select and index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        """Take float32 [nodes, 8] and int64 [2, edges], return node classes [nodes, 4]."""
        source, sink = edge_index[0], edge_index[1]
        degree = torch.ones(nodes.shape[0]).index_add(0, sink, torch.ones_like(sink, dtype=torch.float32))
        weight = (degree[source] * degree[sink]).rsqrt()[:, None]

        def spread(x: Tensor) -> Tensor:
            return (x / degree[:, None]).index_add(0, sink, x[source] * weight)

        return spread(self.second(spread(self.first(nodes)).relu()))


class GraphAttention(nn.Module):
    """Velickovic et al. 2018, one head on a dense adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.left, self.right = nn.Linear(8, 32), nn.Linear(32, 1), nn.Linear(32, 1)
        self.head = nn.Linear(32, 5)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Take float32 [n, 16, 8] and bool [n, 16, 16], return class logits of the graph [n, 5]."""
        x = self.embed(nodes)
        scores = functional.leaky_relu(self.left(x) + self.right(x).transpose(1, 2), 0.2)
        weights = scores.masked_fill(~adjacency, -1e9).softmax(-1)
        return self.head((weights @ x).relu().mean(1))


class NestedInput(nn.Module):
    """Image and table in one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.table, self.head = backbone(), nn.Linear(6, 32), nn.Linear(64, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Take {"image": [n, 3, 32, 32], "table": [n, 6]}, return class logits [n, 4]."""
        seen = self.image(batch["image"]).mean((2, 3))
        return self.head(torch.cat([seen, self.table(batch["table"]).relu()], -1))


class Branches(nn.Module):
    """`torch.cond`: bright images are judged by another head than dark ones."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.bright = backbone(), nn.Linear(32, 4)
        self.dark = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, 32, 32], return class logits [n, 4]."""
        seen = self.features(x).mean((2, 3))
        return torch.cond(x.mean() > 0, lambda y: self.bright(y), lambda y: self.dark(y), (seen,))


class Spectrum(nn.Module):
    """FNet's mixing in one axis and a spectrogram's magnitude: `torch.fft.rfft`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(33, 64), nn.Linear(64, 6)

    def forward(self, signal: Tensor) -> Tensor:
        """Take float32 [n, 64], return class logits [n, 6]."""
        return self.second(self.first(torch.fft.rfft(signal).abs()).relu())


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


class Radiance(nn.Module):
    """NeRF's network: positional encoding, a skip, density and colour."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 64), nn.Linear(88, 64)
        self.density, self.colour = nn.Linear(64, 1), nn.Linear(64, 3)
        self.register_buffer("bands", 2.0 ** torch.arange(4.0))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Take float32 [points, 3], return density [points, 1] and colour [points, 3]."""
        angles = (points[..., None] * self.bands).flatten(-2)
        encoded = torch.cat([angles.sin(), angles.cos()], -1)
        x = self.second(torch.cat([self.first(encoded).relu(), encoded], -1)).relu()
        return self.density(x).relu(), self.colour(x).sigmoid()


class Embedding(nn.Module):
    """A face embedding: unit vectors to be compared by cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.out = backbone(), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 3, 32, 32], return unit vectors [n, 64]."""
        return functional.normalize(self.out(self.features(x).mean((2, 3))))


class Recommender(nn.Module):
    """DLRM (Naumov et al. 2019): tables of embeddings, a network on numbers, products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.triu_indices(5, 5, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Take float32 [n, 6] and int64 [n, 4], return the probability of a click [n, 1]."""
        x = self.bottom(numbers)
        found = [x, *(table(categories[:, index]) for index, table in enumerate(self.tables))]
        stacked = torch.stack(found, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], -1)).sigmoid()


class Experts(nn.Module):
    """A mixture of four experts of which two answer: top-k, gather, weighted sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(16, 4), nn.Linear(32, 5)
        self.weights = nn.Parameter(torch.randn(4, 16, 32) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Take float32 [n, 16], return class logits [n, 5]."""
        scores, chosen = self.gate(x).softmax(-1).topk(2, -1)
        answers = torch.einsum("ni,eio->neo", x, self.weights).relu()
        picked = answers.gather(1, chosen[..., None].expand(-1, -1, 32))
        return self.head((picked * scores[..., None]).sum(1))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)
    )


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 10),
    )  # fmt: skip


def _case(name: str, task: str, module: Any, *inputs: Input, **more: Any) -> Architecture:
    return Architecture(name, "hand", task, module, inputs, **more)


def _adjacent(generator: Any, shape: tuple[int, ...]) -> Any:
    return (generator.random(shape) < 0.3) | (torch.eye(shape[-1]).numpy() > 0)


def _edges(generator: Any, shape: tuple[int, ...]) -> Any:
    return generator.integers(0, 12, shape)  # the least number of nodes


_WIDE = {"height": (32, 64, 96), "width": (32, 64, 96)}

ARCHITECTURES = (
    _case("mlp", "classifier", _mlp, Input("input", ("batch", 20), normal)),
    _case("lenet", "classifier", _lenet, *image("input", 28, 1)),
    _case("unet", "segmentation", UNet, *free_image("x"), axes=_WIDE),
    _case("yolo", "detection", Yolo, *free_image("x"), axes=_WIDE),
    _case("pointnet", "classifier", PointNet, Input("points", ("batch", 3, "points"), normal)),
    _case("graph_convolution", "node classification", GraphConvolution, Input("nodes", ("nodes", 8), normal),
          Input("edge_index", (2, "edges"), _edges)),
    _case("graph_attention", "classifier", GraphAttention, Input("nodes", ("batch", 16, 8), normal),
          Input("adjacency", ("batch", 16, 16), _adjacent)),
    _case("dict_input", "classifier", NestedInput, Input("batch.image", ("batch", 3, 32, 32), normal),
          Input("batch.table", ("batch", 6), normal),
          wrap=lambda tensors: ({name.removeprefix("batch."): tensor for name, tensor in tensors.items()},)),
    _case("control_flow", "classifier", Branches, *image("x", 32)),
    _case("fft", "classifier", Spectrum, Input("signal", ("batch", 64), normal)),
    _case("spatial_transformer", "classifier", SpatialTransformer, *image("x", 32)),
    _case("vae_decoder", "image generation", Decoder, Input("latent", ("batch", 4, 8, 8), normal)),
    _case("super_resolution", "super-resolution", SuperResolution, *free_image("x"), axes=_WIDE),
    _case("dcgan", "image generation", Generator, Input("noise", ("batch", 16), normal)),
    _case("nerf", "rendering", Radiance, Input("points", ("points", 3), unit)),
    _case("face_embedding", "embedding", Embedding, *image("x", 32)),
    _case("dlrm", "recommendation", Recommender, Input("numbers", ("batch", 6), normal),
          Input("categories", ("batch", 4), integers(50))),
    _case("mixture_of_experts", "classifier", Experts, Input("x", ("batch", 16), normal)),
)  # fmt: skip
