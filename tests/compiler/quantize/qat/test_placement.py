"""Fake quantization at residual adds lies where `int8.tensorrt` puts Q/DQ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qcompile.compiler.quantize.qat.placement import find_spots


class Branches(nn.Module):
    """Two branches of convolutions from one stem, and their sum."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem, self.one, self.two, self.three = (nn.Conv2d(4, 4, 1) for _ in range(4))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return float32 [n, 4, 4, 4]."""
        stem = torch.relu(self.stem(x))
        main = self.norm(self.two(torch.relu(self.one(stem))))
        if self.kind == "shortcut":
            return stem + main
        if self.kind == "projection":
            return main + self.three(stem)
        if self.kind == "projection first":
            return self.three(stem) + main
        if self.kind == "silu":
            return nn.functional.silu(main) + stem
        if self.kind == "read elsewhere":
            return torch.cat([main + torch.exp(x), main])
        return main + torch.exp(main)


@pytest.mark.parametrize(
    ("kind", "quantized"),
    [
        ("shortcut", ["relu"]),
        ("projection", ["conv2d_3"]),
        ("projection first", ["conv2d_3"]),
        ("silu", ["relu"]),
        ("read elsewhere", ["batch_norm", "exp"]),
        ("itself the residual", []),
    ],
)
def test_the_residual_branch_alone_is_rounded(kind: str, quantized: list[str]) -> None:
    graph = torch.export.export(Branches(kind).eval(), (torch.randn(2, 4, 4, 4),)).module().graph
    spots = find_spots(graph, "tensorrt", [])
    rounded = [value.name for reader, value in spots.operands if reader.name.startswith("add")]
    assert sorted(rounded) == sorted(quantized)
