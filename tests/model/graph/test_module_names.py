"""Tensors of an exported graph get the names of PyTorch's modules, also after simplification."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from torch import nn

import qcompile
from qcompile.model.graph.module_names import module_names


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages, self.head = nn.Sequential(Block(), Block()), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.stages(x).mean((2, 3))
        return self.head(features)


def test_a_tensor_is_named_for_its_module_or_for_the_one_before_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    exported = qcompile.export(Net().eval(), tmp_path / "m.onnx", inputs=["x:[batch,3,8,8]"])
    simple = qcompile.simplify(exported.path, tmp_path / "s.onnx")
    for path in (exported.path, simple.path):
        model = onnx.load(path)
        names = module_names(model)
        by_operator = [(node.op_type, names[node.output[0]]) for node in model.graph.node]
        assert [name for kind, name in by_operator if kind == "Conv"] == ["stages.0.conv", "stages.1.conv"]
        assert [name for kind, name in by_operator if kind == "Relu"] == [
            "stages.0.conv → Relu", "stages.1.conv → Relu",
        ]  # fmt: skip
        assert by_operator[-1] == ("Gemm", "head")


def test_a_graph_without_paths_has_no_names() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[2] x) => (float[2] y) <float[2] w = {1, 2}>'
    assert module_names(onnx.parser.parse_model(text + " { y = Add(x, w) }")) == {}
