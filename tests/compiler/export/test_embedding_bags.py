"""Bags of one length are exported without a loop, so that every runtime takes them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import qcompile

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag, self.head = torch.nn.EmbeddingBag(50, 16, mode=mode), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.head(self.bag(x))
def build():
    torch.manual_seed(0)
    return Net("MODE")
"""


@pytest.mark.parametrize(("mode", "reduction"), [("mean", "ReduceMean"), ("sum", "ReduceSum")])
def test_bags_of_one_length_are_a_lookup_and_a_reduction(mode: str, reduction: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("MODE", mode))
    artifact = qcompile.export(
        f"{tmp_path / 'net.py'}:build", tmp_path / "m.onnx", inputs=["x:[batch,7]:int64"]
    )  # it compares with PyTorch at several batches
    operators = [node.op_type for node in onnx.load(artifact.path).graph.node]
    assert reduction in operators
    assert not {"Loop", "SequenceEmpty"} & set(operators)
    shapes = {"min_shapes": {"x": (1, 7)}, "opt_shapes": {"x": (2, 7)}, "max_shapes": {"x": (4, 7)}}
    built = qcompile.build(
        artifact.path, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"], **shapes
    )
    assert built.manifest.proof["layers_by_precision"] == {"fp32": {"MATRIX_MULTIPLY": 1}}


def test_bags_of_several_lengths_stay_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    from qcompile.compiler.export.write import bags_without_loops

    bag = torch.nn.EmbeddingBag(50, 16, padding_idx=3)
    indices, offsets = torch.arange(10), torch.tensor([0, 2, 7])
    expected = bag(indices, offsets), bag(indices.reshape(2, 5)), torch.nn.functional.embedding_bag
    with bags_without_loops():
        torch.testing.assert_close(bag(indices, offsets), expected[0])
        torch.testing.assert_close(bag(indices.reshape(2, 5)), expected[1])
    assert torch.nn.functional.embedding_bag is expected[2]


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_bags_of_one_length_are_what_pytorch_computes(mode: str) -> None:
    torch = pytest.importorskip("torch")
    from qcompile.compiler.export.write import bags_without_loops

    bag, indices = torch.nn.EmbeddingBag(50, 16, mode=mode), torch.arange(21).reshape(3, 7)
    weights = torch.rand(3, 7) if mode == "sum" else None
    expected = bag(indices, per_sample_weights=weights)
    with bags_without_loops():
        torch.testing.assert_close(bag(indices, per_sample_weights=weights), expected)
