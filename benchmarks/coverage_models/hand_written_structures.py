"""Networks as people write them by hand: points, graphs, tables, nested inputs, control flow."""

from __future__ import annotations

from typing import Any

import torch
from architecture import Input, image, integers, normal, unit
from hand_written import backbone, case
from torch import Tensor, nn
from torch.nn import functional


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


def _adjacent(generator: Any, shape: tuple[int, ...]) -> Any:
    return (generator.random(shape) < 0.3) | (torch.eye(shape[-1]).numpy() > 0)


def _edges(generator: Any, shape: tuple[int, ...]) -> Any:
    return generator.integers(0, 12, shape)  # the least number of nodes


ARCHITECTURES = (
    case("pointnet", "classifier", PointNet, Input("points", ("batch", 3, "points"), normal)),
    case("graph_convolution", "node classification", GraphConvolution, Input("nodes", ("nodes", 8), normal),
          Input("edge_index", (2, "edges"), _edges)),
    case("graph_attention", "classifier", GraphAttention, Input("nodes", ("batch", 16, 8), normal),
          Input("adjacency", ("batch", 16, 16), _adjacent)),
    case("dict_input", "classifier", NestedInput, Input("batch.image", ("batch", 3, 32, 32), normal),
          Input("batch.table", ("batch", 6), normal),
          wrap=lambda tensors: ({name.removeprefix("batch."): tensor for name, tensor in tensors.items()},)),
    case("control_flow", "classifier", Branches, *image("x", 32)),
    case("fft", "classifier", Spectrum, Input("signal", ("batch", 64), normal)),
    case("nerf", "rendering", Radiance, Input("points", ("points", 3), unit)),
    case("dlrm", "recommendation", Recommender, Input("numbers", ("batch", 6), normal),
          Input("categories", ("batch", 4), integers(50))),
    case("mixture_of_experts", "classifier", Experts, Input("x", ("batch", 16), normal)),
)  # fmt: skip
