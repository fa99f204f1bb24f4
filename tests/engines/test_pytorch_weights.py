"""The weights of a module, also of what torch.ao and torchao have quantized."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from qcompile.engines.pytorch.weights import weights_of_module

VALUES = 3 * 8 * 9 + 8 + 8 * 5 + 5


class Net(nn.Module):
    """A convolution with bias and a Linear: [N,3,8,8] to [N,5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool what the convolution finds, and classify it."""
        y: torch.Tensor = self.fc(self.relu(self.conv(x)).mean((2, 3)))
        return y


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(autouse=True)
def quiet() -> object:
    """torch.ao says that it is deprecated; that is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_a_float_module_holds_its_parameters(net: nn.Module) -> None:
    held = weights_of_module(torch, net)
    assert (held.parameters, held.bytes, held.precision) == (VALUES, 4 * VALUES, "")
    half = weights_of_module(torch, copy.deepcopy(net).half())
    assert (half.parameters, half.bytes, half.precision) == (VALUES, 2 * VALUES, "fp16")


def test_running_statistics_are_bytes_but_no_parameters() -> None:
    held = weights_of_module(torch, nn.BatchNorm2d(4).eval())
    assert (held.parameters, held.bytes) == (8, 4 * 4 * 4 + 8)


def test_packed_weights_are_counted_and_parameters_alone_would_miss_them(net: nn.Module) -> None:
    dynamic = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    assert sum(p.numel() for p in dynamic.parameters()) == 3 * 8 * 9 + 8
    held = weights_of_module(torch, dynamic)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes < 4 * VALUES


def test_fx_and_fake_quantized_modules_hold_as_many_values(net: nn.Module) -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx

    x = torch.randn(4, 3, 8, 8)
    prepared = prepare_fx(copy.deepcopy(net), get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    static = weights_of_module(torch, convert_fx(prepared))
    assert (static.parameters, static.precision) == (VALUES, "int8")
    assert static.bytes < 2 * VALUES
    simulated = prepare_qat_fx(copy.deepcopy(net).train(), get_default_qat_qconfig_mapping("x86"), (x,))
    held = weights_of_module(torch, simulated)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes >= 4 * VALUES


def test_what_pt2e_folds_is_counted_once_compiled_or_not(net: nn.Module) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    x = torch.randn(4, 3, 8, 8)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    held = weights_of_module(torch, converted)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes < 3 * VALUES
    assert weights_of_module(torch, torch.compile(converted)) == held


def test_a_frozen_trace_holds_its_weights_as_constants(net: nn.Module) -> None:
    traced = torch.jit.trace(net, torch.randn(2, 3, 8, 8))
    assert weights_of_module(torch, traced).parameters == VALUES
    assert weights_of_module(torch, torch.jit.freeze(traced)).parameters == VALUES
