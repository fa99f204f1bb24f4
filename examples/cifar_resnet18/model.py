"""ResNet-18 of 11,181,642 parameters on 32x32 images, and PyTorch's own ways to quantize it.

The network is torchvision's with ten classes, as published comparisons on CIFAR-10 use it: its stem halves
32x32 twice. Each function returns a module to be measured, quantized as PyTorch's documentation does it.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

CLASSES = 10
WIDTH = 64
WEIGHTS = Path(__file__).with_name("resnet18.safetensors")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: [N,Cin,H,W] -> [N,Cout,H/stride,W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        # One ReLU module for each place: torchao's PT2E quantizer refuses one that is called twice.
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [N,Cin,H,W] float32 to [N,Cout,H/stride,W/stride] float32."""
        residual = self.relu1(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        activated: torch.Tensor = self.relu2(residual + self.shortcut(features))
        return activated


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average pooling, classifier.

    Args:
        width: Channels of the first stage; 64 is ResNet-18, less is for tests.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages, inputs = [], width
        for index in range(4):
            outputs = width << index
            first = BasicBlock(inputs, outputs, 1 if index == 0 else 2)
            stages.append(nn.Sequential(first, BasicBlock(outputs, outputs, 1)))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map normalized images [N,3,32,32] float32 to logits [N,10] float32."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        logits: torch.Tensor = self.fc(self.pool(self.stages(features)).flatten(1))
        return logits


def about() -> dict[str, str]:
    """Return what train.py wrote beside the weights: the data set, the epochs, the held-out accuracy.

    Raises:
        FileNotFoundError: The weights, 45 MB and so not in the repository, are not there yet.
    """
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python examples/cifar_resnet18/train.py first")
    with safe_open(WEIGHTS, "pt") as file:
        noted: dict[str, str] = json.loads(file.metadata()["about"])
    return noted


def build() -> nn.Module:
    """Return the trained network in evaluation mode: [N,3,32,32] float32 -> [N,10] float32."""
    about()
    with safe_open(WEIGHTS, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    model = ResNet18(len(state["conv1.weight"]))
    model.load_state_dict(state)
    return model.eval()


def int8_dynamic() -> nn.Module:
    """Return what torch.ao's dynamic quantization makes of it: the one Linear in INT8, no convolution."""
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(build(), {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-any-return]


def int8_dynamic_torchao() -> nn.Module:
    """Return what torchao's dynamic quantization makes of it: the Linear again."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = build()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model


def int8_static() -> nn.Module:
    """Return what torch.ao's FX graph mode makes of it: INT8 kernels of the x86 backend."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    images = _calibration()
    torch.backends.quantized.engine = "x86"
    prepared = prepare_fx(build(), get_default_qconfig_mapping("x86"), (images[0],))
    _observe(prepared, images)
    return convert_fx(prepared)  # type: ignore[no-any-return]


def fake_quantize() -> nn.Module:
    """Return the network with torch.ao's FakeQuantize modules: INT8 rounding simulated in float32."""
    from torch.ao.quantization import disable_observer, get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    images = _calibration()
    prepared = prepare_qat_fx(build().train(), get_default_qat_qconfig_mapping("x86"), (images[0],)).eval()
    _observe(prepared, images)
    prepared.apply(disable_observer)
    return prepared  # type: ignore[no-any-return]


def int8_pt2e() -> nn.Module:
    """Return what torchao's PT2E makes of it, run as it is: each operator dequantizes and rounds again."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    images = _calibration()
    batch = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(build(), (images[0],), dynamic_shapes=({0: batch},))
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program.module(), quantizer)
    _observe(prepared, images)
    return convert_pt2e(prepared)  # type: ignore[no-any-return]


def int8_pt2e_compiled() -> nn.Module:
    """Return the same compiled by Inductor, which fuses each pattern into an INT8 kernel of oneDNN."""
    import torch._inductor.config

    torch._inductor.config.freezing = True  # without it the weights are quantized at every call
    compiled: Any = torch.compile(int8_pt2e(), dynamic=False)
    return compiled  # type: ignore[no-any-return]


def _calibration() -> list[torch.Tensor]:
    """The calibration images of the set that the network was trained on, [32,3,32,32] each."""
    data = importlib.import_module(about()["data"])
    return [torch.from_numpy(images) for images, _ in data.calibration()]


def _observe(prepared: nn.Module, batches: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for images in batches:
            prepared(images)
