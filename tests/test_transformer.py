"""A Transformer's encoder down the whole road: integer inputs, attention, weights that layers share."""

from __future__ import annotations

from pathlib import Path

import pytest

import qcompile

SOURCE = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.place = nn.Parameter(torch.randn(1, 16, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # copies: equal weights
        self.head = nn.Linear(64, 7)

    def forward(self, ids, mask):
        x = self.layers(self.embed(ids) + self.place, src_key_padding_mask=mask == 0)
        return {"logits": self.head(x.mean(1))}


def build():
    torch.manual_seed(0)
    return Encoder()


def samples():
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        ids = torch.randint(0, 100, (4, 16), generator=generator)
        yield {"ids": ids, "mask": torch.ones(4, 16, dtype=torch.int64)}
"""


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exported, simplified and calibrated encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "encoder.py").write_text(SOURCE)
    data, inputs = f"{folder}/encoder.py:samples", ["ids:[batch,16]:int64", "mask:[batch,16]:int64"]
    qcompile.export(f"{folder}/encoder.py:build", folder / "m.onnx", inputs=inputs, data=data)
    simple = qcompile.simplify(folder / "m.onnx", folder / "s.onnx", data=data)
    assert simple.manifest.warnings == ()
    qcompile.calibrate(folder / "s.onnx", data, folder / "m.ranges")
    return folder


@pytest.mark.parametrize(
    ("name", "least_db", "options"),
    [
        ("static", 30, {"target": "onnxruntime"}),
        ("tensorrt", 30, {"target": "tensorrt"}),
        ("dynamic", 25, {"mode": "dynamic"}),
        ("half", 50, {"precision": "fp16"}),
    ],
)
def test_every_mode_keeps_the_signal(name: str, least_db: float, options: dict[str, str], road: Path) -> None:
    ranges = road / "m.ranges" if name in ("static", "tensorrt") else None
    data = f"{road}/encoder.py:samples"
    artifact = qcompile.quantize(road / "s.onnx", road / f"{name}.onnx", ranges=ranges, data=data, **options)  # type: ignore[arg-type]
    assert float(artifact.manifest.checks[0].detail.split(" dB")[0]) > least_db


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_tensorrt_rtx_builds_it_in_every_precision(precision: str, road: Path) -> None:
    built = qcompile.build(
        road / "s.onnx", road / f"{precision}.engine", target="tensorrt-rtx", precision=precision,
        ranges=road / "m.ranges", gpus=["sm86"], layers={"*": "int8"} if precision == "int8" else {},
    )  # fmt: skip
    assert built.manifest.proof["layers_by_precision"] == {precision: {"MATRIX_MULTIPLY": 13}}


def test_the_int8_model_agrees_with_pytorch(road: Path) -> None:
    qcompile.build(
        road / "s.onnx", road / "cpu.onnx", target="onnxruntime", precision="int8", ranges=road / "m.ranges"
    )
    source = f"{road}/encoder.py"
    assert qcompile.diff(f"{source}:build", str(road / "cpu.onnx"), data=f"{source}:samples")
