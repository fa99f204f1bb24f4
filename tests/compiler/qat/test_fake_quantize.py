"""Ranges follow what is seen, and grids hold what ranges promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qcompile.compiler.qat.fake_quantize import SIGNED, UNSIGNED, FakeQuantize, FakeQuantizeWeight, Grid


@given(low=st.floats(-1e4, 1e4, width=32), span=st.floats(0, 1e4, width=32))
def test_a_grid_holds_zero_and_reaches_both_ends(low: float, span: float) -> None:
    for grid in (UNSIGNED, SIGNED, Grid(-128, 127, symmetric=False)):
        scale, zero_point = grid.choose(torch.tensor(low), torch.tensor(low + span))
        assert grid.qmin <= int(zero_point) <= grid.qmax
        assert float(scale) > 0
        ends = [(q - int(zero_point)) * float(scale) for q in (grid.qmin, grid.qmax)]
        slack = float(scale) * 0.501 + 1e-30
        assert ends[0] <= min(low, 0.0) + slack
        assert ends[1] >= max(low + span, 0.0) - slack


def test_a_range_is_the_mean_of_the_first_batches_and_then_moves_slowly() -> None:
    fake = FakeQuantize("onnxruntime", "vnni", torch.device("cpu"))
    assert torch.equal(fake.eval()(torch.tensor([0.3])), torch.tensor([0.3]))
    fake.train()
    for high in (1.0, 2.0, 6.0):
        fake(torch.tensor([-high, high]))
    assert (float(fake.low), float(fake.high)) == pytest.approx((-3.0, 3.0))
    fake.batches += 1000
    fake(torch.tensor([0.0, 103.0]))
    assert float(fake.high) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("target", "processor", "low", "expected"),
    [
        ("onnxruntime", "vnni", -1.0, Grid(0, 255, symmetric=False)),
        ("onnxruntime", "arm", 0.0, Grid(-128, 127, symmetric=False)),
        ("openvino", "vnni", 0.0, Grid(0, 255, symmetric=False)),
        ("openvino", "arm", -1.0, Grid(0, 255, symmetric=False)),
        ("tensorrt", "vnni", 0.0, Grid(-128, 127, symmetric=True)),
    ],
)
def test_each_target_has_its_grid(target: str, processor: str, low: float, expected: Grid) -> None:
    fake = FakeQuantize(target, processor, torch.device("cpu"))  # type: ignore[arg-type]
    fake(torch.tensor([low, 2.0]))
    assert fake.grid() == expected


def test_a_weight_is_its_integers_times_its_scales_and_gradients_pass() -> None:
    weight = torch.randn(3, 4, 2, 2, requires_grad=True)
    weight.data[1] = 0
    fake = FakeQuantizeWeight(axis=0, qmax=63)
    integers, scales = fake.integers(weight)
    torch.testing.assert_close(integers * scales.view(3, 1, 1, 1), fake(weight))
    assert integers.dtype == torch.int8
    assert [int(row.abs().max()) for row in integers] == [63, 0, 63]
    fake(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.min() == weight.grad.max() == 1
