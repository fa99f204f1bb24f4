"""What PyTorch's exporter writes in newer opsets, brought to 17: real layers, dynamic axes, equal outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qcompile.compiler.export import export
from qcompile.compiler.opset.fit import fit_opset
from qcompile.errors import ExportError
from qcompile.model.onnx_file import load_onnx, opset


class UNet(nn.Module):
    """Down, GroupNorm and GELU, and up again by bilinear interpolation, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.GELU())
        self.down = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Mish()
        )
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.last = nn.Sequential(nn.Conv2d(24, 4, 3, padding=1), nn.GELU(approximate="tanh"))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        deep = self.up(self.down(skip))
        left, right = torch.cat([skip, deep], 1).chunk(2, 1)
        mixed = nn.functional.pad(torch.cat([right, left], 1), (1, 0, 0, 0), mode="reflect")
        found = self.last(mixed)
        return found - found.amax(1, keepdim=True)


class Recurrent(nn.Module):
    """An LSTM whose states are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0].mean(1)


class Encoder(nn.Module):
    """Attention, LayerNorm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True)
        self.norm = nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mean(1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "U-Net": (UNet, "x:[N,3,16,16]"),
    "LSTM": (Recurrent, "x:2x5x6"),
    "encoder": (Encoder, "x:[N,7,16]"),
}


@pytest.mark.parametrize(
    ("name", "version"), [("U-Net", 18), ("U-Net", 20), ("U-Net", 23), ("LSTM", 20), ("encoder", 23)]
)
def test_a_network_computes_the_same_in_opset_17(name: str, version: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    newer = export(build().eval(), tmp_path / "new.onnx", inputs=[shape], opset_version=version)
    older = fit_opset(newer.path, tmp_path / "old.onnx", 17)
    assert opset(load_onnx(older.path)) == 17
    assert older.manifest.checks[-1].passed
    assert older.manifest.io == newer.manifest.io


@pytest.mark.parametrize(("name", "version"), [("U-Net", 13), ("U-Net", 17), ("LSTM", 13), ("encoder", 15)])
def test_export_writes_older_opsets_than_pytorchs_exporter(name: str, version: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    artifact = export(build().eval(), tmp_path / "m.onnx", inputs=[shape], opset_version=version)
    assert opset(load_onnx(artifact.path)) == version == artifact.manifest.options["opset"]
    assert all(check.passed for check in artifact.manifest.checks)


def test_export_names_the_node_that_an_older_opset_lacks(tmp_path: Path) -> None:
    class Bits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bitwise_and(x, 3)

    with pytest.raises(ExportError, match=r"opset 17 was asked for; .* reached 18: BitwiseAnd") as caught:
        export(Bits(), tmp_path / "m.onnx", inputs=["x:4:int32"], opset_version=17)
    assert "`opset` 18" in caught.value.hint
