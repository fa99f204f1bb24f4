"""Ranges follow what is seen, and grids hold what ranges promise."""

from __future__ import annotations

import pytest
import torch
from onnx import helper

from qcompile.calibration.qparams import ASYMMETRIC_INT8, INT8, UINT8, Scheme
from qcompile.compiler.quantize.int8.pair_limits import pair_limits
from qcompile.compiler.quantize.qat.fake_quantize import FakeQuantize, FakeQuantizeWeight
from qcompile.model.saturating_kernels import RECORDED


def test_a_range_is_the_mean_of_the_first_batches_and_then_moves_slowly() -> None:
    fake = FakeQuantize("onnxruntime", "avx512-vnni", torch.device("cpu"))
    assert torch.equal(fake.eval()(torch.tensor([0.3])), torch.tensor([0.3]))
    fake.train()
    for high in (1.0, 2.0, 6.0):
        fake(torch.tensor([-high, high]))
    assert (float(fake.low), float(fake.high)) == pytest.approx((-3.0, 3.0))
    fake.batches += 1000
    fake(torch.tensor([0.0, 103.0]))
    assert float(fake.high) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("target", "isa", "low", "expected"),
    [
        ("onnxruntime", "avx512-vnni", -1.0, UINT8),
        ("onnxruntime", "neon", 0.0, ASYMMETRIC_INT8),
        ("openvino", "avx512-vnni", 0.0, UINT8),
        ("openvino", "neon", -1.0, UINT8),
        ("tensorrt", "avx512-vnni", 0.0, INT8),
    ],
)
def test_each_target_has_its_integers(target: str, isa: str, low: float, expected: Scheme) -> None:
    fake = FakeQuantize(target, isa, torch.device("cpu"))  # type: ignore[arg-type]
    fake(torch.tensor([low, 2.0]))
    assert fake.scheme() == expected


def test_a_weight_is_its_integers_times_its_scales_and_gradients_pass() -> None:
    weight = torch.randn(3, 4, 2, 2, requires_grad=True)
    weight.data[1] = 0
    fake = FakeQuantizeWeight(axis=0)
    integers, scales = fake.integers(weight)
    torch.testing.assert_close(integers * scales.view(3, 1, 1, 1), fake(weight))
    assert integers.dtype == torch.int8
    assert [int(row.abs().max()) for row in integers] == [127, 0, 127]
    fake(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.min() == weight.grad.max() == 1


def test_a_limited_weight_has_no_pair_that_overflows_and_learns_all_the_same() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 3, requires_grad=True)
    limits = pair_limits(helper.make_node("Conv", [], []), (6, 4, 3, 3), RECORDED["onnxruntime", "avx2"])
    assert limits is not None
    fake = FakeQuantizeWeight(0, limits)
    integers, scales = fake.integers(weight)
    assert limits.fits(integers.numpy())
    assert not limits.fits(FakeQuantizeWeight(0).integers(weight)[0].numpy())
    difference = (integers * scales.view(6, 1, 1, 1) - fake(weight)).abs() / scales.view(6, 1, 1, 1)
    assert difference.max() <= 1 + 1e-3  # a step, where rounding took a pair beyond its limit
    assert (difference > 0.5).float().mean() < 0.1
    fake(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.min() == weight.grad.max() == 1
