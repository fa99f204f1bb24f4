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
from qcompile.model.onnx_file import count_operators, load_onnx, opset


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


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(config, add_pooling_layer=False)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            found: Tensor = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
            return found

    return Hidden()


def _images(kind: str) -> nn.Module:
    import transformers

    settings = {
        "ViT": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
        "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "EfficientNet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 256},
    }[kind]
    sizes = {} if kind == "ResNet" else {"image_size": 32}

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = getattr(transformers, f"{kind}Config")(**settings, **sizes, num_labels=5)
            self.model = getattr(transformers, f"{kind}ForImageClassification")(config)

        def forward(self, image: Tensor) -> Tensor:
            found: Tensor = self.model(image).logits
            return found

    return Logits()


@pytest.mark.slow
@pytest.mark.parametrize("version", [18, 20, 23])
@pytest.mark.parametrize("name", ["Bert", "ViT", "ResNet", "EfficientNet"])
def test_an_architecture_of_transformers_computes_the_same_in_opset_17(
    name: str, version: int, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    module = _bert() if name == "Bert" else _images(name)
    inputs = ["tokens:[N,9]:int64", "mask:[N,9]:int64"] if name == "Bert" else ["image:[N,3,32,32]"]
    newer = export(module.eval(), tmp_path / "new.onnx", inputs=inputs, opset_version=version)
    older = fit_opset(newer.path, tmp_path / "old.onnx", 17)
    assert older.manifest.checks[-1].passed
    assert sum(count_operators(load_onnx(older.path)).values()) > 10
