"""A model trained with fake quantization runs in integers, with the scales it was trained with."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from rtx_builds import rtx_build
from torch import nn
from torch.nn.functional import cross_entropy, hardswish, relu_
from written_models import outputs_of, stored

from qcompile import qat
from qcompile.compiler.quantize.int8.pair_limits import pair_limits
from qcompile.compiler.quantize.qat.finish_qdq import finish_qdq
from qcompile.compiler.quantize.qat.quantizer import OPERATOR, TargetQuantizer, capture
from qcompile.core.processor import isa_here
from qcompile.core.progress import quiet
from qcompile.errors import ExportError, InvalidOption, QuantizationError
from qcompile.model.graph.graph import weighted_nodes
from qcompile.model.graph.saturating_kernels import saturating_kernels
from qcompile.model.outputs.judgement import output_error

TARGETS = ["onnxruntime", "openvino", "tensorrt"]


class Residual(nn.Module):
    """Two convolutions with BatchNorm around a residual add, pooling, dropout, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding="same")
        self.norm2 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.Conv2d(8, 16, 1, stride=2, groups=2)
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = relu_(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm2(self.conv(x)))
        x = nn.functional.relu6(self.down(self.pool(x))).mean((2, 3))
        tokens = hardswish(self.hidden(self.drop(x)))[:, None].expand(-1, 3, -1)
        return self.head(tokens).mean(1)  # type: ignore[no-any-return]


def trained(target: str, model: nn.Module | None = None, *, steps: int = 8) -> Any:
    torch.manual_seed(0)
    prepared = qat.prepare(model or Residual(), torch.randn(1, 3, 16, 16), target)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        images = torch.randn(16, 3, 16, 16)
        loss = cross_entropy(prepared(images), (images.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return prepared.eval()


def to_onnx(model: Any, *shape: int) -> onnx.ModelProto:
    shapes = ({0: torch.export.Dim("batch")},)
    with quiet():
        program = torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=shapes)
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, dynamic_shapes=shapes, input_names=["x"],
            output_names=["y"], opset_version=20,
        )  # fmt: skip
    proto: onnx.ModelProto = exported.model_proto
    return proto


@pytest.fixture(scope="module")
def ready() -> dict[str, tuple[Any, onnx.ModelProto]]:
    """Target to the trained model and the finished ONNX graph."""
    models = {target: trained(target) for target in TARGETS}
    return {
        target: (model, finish_qdq(to_onnx(qat.convert(model), 3, 16, 16), target))  # type: ignore[arg-type]
        for target, model in models.items()
    }


@pytest.mark.parametrize("target", TARGETS)
def test_onnx_runtime_computes_what_was_trained(
    target: str, ready: dict[str, tuple[Any, onnx.ModelProto]]
) -> None:
    model, graph = ready[target]
    x = torch.randn(7, 3, 16, 16)
    with torch.no_grad():
        expected = model(x).numpy()
    assert output_error(expected, outputs_of(graph, x.numpy(), optimize=True)[0]).snr_db > 30
    nodes = weighted_nodes(graph)
    assert Counter(node.op_type for node in nodes["int8"]) == {"Conv": 3, "Gemm": 1, "MatMul": 1}
    assert not nodes["fp32"]
    if target == "tensorrt":
        assert list(rtx_build(graph, "SM86")[0]) == ["int8"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_file_holds_exactly_the_trained_scales(
    target: str, ready: dict[str, tuple[Any, onnx.ModelProto]]
) -> None:
    model, graph = ready[target]
    wanted = set()
    for module in model.modules():
        if type(module).__name__ == "ActivationFakeQuantize":
            observer: Any = module.activation_post_process
            low, high = min(float(observer.min_val), 0.0), max(float(observer.max_val), 0.0)
            unsigned = target != "tensorrt"
            scale = (high - low) / 255 if unsigned else max(-low, high) / 127.5
            wanted.add((np.float32(scale), round(-low / scale) if unsigned else 0))
    values = stored(graph)
    found = {
        (values[node.input[1]].item(), values[node.input[2]].item())
        for node in graph.graph.node
        if node.op_type == "QuantizeLinear" and values[node.input[1]].size == 1
    }
    np.testing.assert_allclose(sorted(found), sorted(wanted), rtol=1e-6)

    weight, norm = model.stem.weight.detach().numpy(), model.norm
    gain = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach().numpy()
    conv = helper.make_node("Conv", [], [])
    limits = pair_limits(conv, weight.shape, saturating_kernels(target, isa_here()))  # type: ignore[arg-type]
    scales = np.abs(weight).max((1, 2, 3)) / 127
    if limits is not None:
        scales = np.maximum(scales, limits.min_scales(weight) * 128 / 127)  # room for rounding
    conv = next(node for node in graph.graph.node if node.op_type == "Conv")
    behind = {node.output[0]: node for node in graph.graph.node}
    dequantize = behind[conv.input[1]]
    np.testing.assert_allclose(values[dequantize.input[1]], scales * np.abs(gain), rtol=1e-5)
    if target != "tensorrt":  # its weights are float behind a pair
        steps = weight / scales[:, None, None, None]
        integers = np.rint(steps)
        signed = integers * np.sign(gain)[:, None, None, None]
        assert np.abs(values[dequantize.input[0]] - signed).max() == 0


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("dead", [False, True])
def test_folding_batch_normalization_changes_nothing(kind: type[nn.Module], dead: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(3, 4, 3), nn.BatchNorm2d(4))
    norm: Any = model[1]
    with torch.no_grad():
        norm.weight.copy_(torch.randn(4))  # of both signs
        norm.weight[0] *= not dead
        norm.bias.copy_(torch.randn(4))
        norm.running_mean.copy_(torch.randn(4))
        norm.running_var.copy_(torch.rand(4) + 0.1)
    prepared = qat.prepare(model, torch.randn(2, 3, 6, 6), "tensorrt")
    qat.freeze(prepared, ranges=False)
    x = torch.randn(5, 3, 6, 6)
    prepared(x)
    prepared.eval()
    torch.testing.assert_close(qat.convert(prepared)(x), prepared(x), rtol=1e-4, atol=1e-4)


def test_training_and_evaluation_are_as_in_every_module() -> None:
    model = Residual()
    prepared = qat.prepare(model, torch.randn(2, 3, 16, 16))
    assert set(model.state_dict()) <= set(prepared.state_dict())
    x = torch.randn(4, 3, 16, 16)
    assert prepared.training
    assert not torch.equal(prepared(x), prepared(x))  # dropout
    prepared.eval()
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    assert torch.equal(prepared(x), prepared(x))
    prepared.train()
    qat.freeze(prepared)
    prepared(100 * x)
    assert all(torch.equal(before[name], value) for name, value in prepared.state_dict().items())
    prepared.train()
    prepared(100 * x)
    assert not torch.equal(before["norm.running_var"], prepared.state_dict()["norm.running_var"])
    assert type(model.stem.weight) is nn.Parameter  # the caller's is as it was
    assert not any("fake" in name for name, _ in model.named_modules())


class Mutating(nn.Module):
    """Changes tensors where they are, in the ways that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.norm = nn.BatchNorm2d(3, eps=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        relu_(y)
        z = self.second(y)
        z[:, 0] += 1.0
        z += y
        return self.third(z) + y.mul_(2.0)  # type: ignore[no-any-return]


def test_before_training_only_rounding_is_added() -> None:
    torch.manual_seed(0)
    model, x = Mutating().eval(), torch.randn(4, 3, 5, 5)
    expected = model(x).detach().numpy()
    for target in TARGETS:
        prepared = qat.prepare(model, x, target)  # type: ignore[arg-type]
        for observed in (False, True):
            prepared.train(observed)
            qat.freeze(prepared, ranges=False)
            assert 30 < output_error(expected, prepared(x).detach().numpy()).snr_db < 70, target


def test_excluded_layers_stay_in_float() -> None:
    prepared = qat.prepare(Residual(), torch.randn(2, 3, 16, 16), exclude=["stem", "hid*"])
    prepared(torch.randn(4, 3, 16, 16))
    graph = finish_qdq(to_onnx(qat.convert(prepared), 3, 16, 16), "onnxruntime")
    nodes = weighted_nodes(graph)
    assert [len(nodes["int8"]), len(nodes["fp32"])] == [3, 2]
    with pytest.raises(InvalidOption, match="exclude 'steam'"):
        qat.prepare(Residual(), torch.randn(2, 3, 16, 16), exclude=["steam"])


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    x = torch.randn(2, 3, 16, 16)
    with pytest.raises(InvalidOption, match="`target` 'cpu': one of onnxruntime"):
        qat.prepare(Residual(), x, "cpu")  # type: ignore[arg-type]
    with pytest.raises(QuantizationError, match="nothing to quantize"):
        qat.prepare(nn.ReLU(), x)
    with pytest.raises(ExportError, match="cannot capture"):
        qat.prepare(Residual(), torch.randn(2, 4, 16, 16))
    with pytest.raises(InvalidOption, match=r"not a model from qcompile\.qat\.prepare"):
        qat.convert(Residual())
    prepared = qat.prepare(Residual(), x)
    with pytest.raises(QuantizationError, match="never observed"):
        qat.convert(prepared)
    with pytest.raises(QuantizationError, match="not finite"):
        prepared(x * float("inf"))


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, qcompile; qcompile.qat; assert not {'torch', 'onnx', 'torchao'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


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
    captured = capture(Branches(kind), torch.randn(2, 4, 4, 4), None)
    TargetQuantizer("tensorrt", "auto", []).annotate(captured)
    (total,) = (node for node in captured.graph.nodes if node.name.startswith("add"))
    annotation = total.meta.get("quantization_annotation")
    rounded = annotation.input_qspec_map if annotation is not None else {}
    assert sorted(node.meta.get(OPERATOR, node.name) for node in rounded) == sorted(quantized)


def test_what_moves_values_keeps_the_scale_of_what_it_reads() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1))
    captured = capture(model, torch.randn(2, 4, 4, 4), None)
    TargetQuantizer("openvino", "auto", []).annotate(captured)
    nodes = {node.name: node for node in captured.graph.nodes}
    assert nodes["max_pool2d"].meta["quantization_annotation"].output_qspec.edge_or_node is nodes["conv2d"]
