"""A multi-scale deformable attention, as PyTorch exports it, is found and written without GridSample."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from two_opsets import operators, run

from qcompile.compiler.opset.cures import FAULTY_GRAPHS
from qcompile.model.onnx_file import copy_model
from qcompile.model.output_error import output_error

LEVELS = ((8, 8), (4, 4), (2, 2))
HEADS, POINTS, WIDTH = 2, 3, 16


class Attention(nn.Module):
    """Cross attention of Deformable DETR and its kin: samples of each level, weighed and added."""

    def __init__(self) -> None:
        super().__init__()
        count = HEADS * len(LEVELS) * POINTS
        self.offsets, self.weights = nn.Linear(WIDTH, 2 * count), nn.Linear(WIDTH, count)
        self.value, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, query: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        batch, length, _ = query.shape
        shape = (batch, length, HEADS, len(LEVELS), POINTS)
        grids = self.offsets(query).view(*shape, 2).tanh()
        weights = self.weights(query).view(batch, length, HEADS, -1).softmax(-1)
        values = self.value(memory).view(batch, -1, HEADS, WIDTH // HEADS)
        sampled = []
        for level, value in enumerate(values.split([height * width for height, width in LEVELS], dim=1)):
            image = value.flatten(2).transpose(1, 2).reshape(batch * HEADS, -1, *LEVELS[level])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(
                nn.functional.grid_sample(
                    image, grid, mode="bilinear", padding_mode="zeros", align_corners=False
                )
            )
        flat = weights.transpose(1, 2).reshape(batch * HEADS, 1, length, -1)
        mixed = (torch.stack(sampled, dim=-2).flatten(-2) * flat).sum(-1)
        return self.output(mixed.view(batch, WIDTH, length).transpose(1, 2))


@pytest.fixture(scope="module", params=[18, 20])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    inputs = torch.randn(2, 5, WIDTH), torch.randn(2, sum(h * w for h, w in LEVELS), WIDTH)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's exporter warns of itself
        program = torch.onnx.export(
            Attention().eval(), inputs, dynamo=True, opset_version=request.param, verbose=False
        )
    path = tmp_path_factory.mktemp("attention") / "m.onnx"
    assert program is not None
    program.save(path)
    return path


def test_the_levels_are_found_and_gathered(exported: Path) -> None:
    before = onnx.load(exported)
    faulty = FAULTY_GRAPHS["deformable-attention"]
    assert len(faulty.find(before)) == len(LEVELS)
    after = copy_model(before)
    assert faulty.cure is not None
    faulty.cure(after)
    assert faulty.find(after) == []
    assert "GridSample" not in operators(after)
    assert FAULTY_GRAPHS["grid-sample-mode"].find(after) == []
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(
            "f4"
        )
        for value in before.graph.input
    }
    (expected,), (found,) = run(before, feeds), run(after, feeds)
    assert output_error(expected, found).snr_db >= 80
