"""The models of `gpu.py`, in plain PyTorch: what a GPU host has without further packages."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from road_models import FULL, Residual, started, unit


def resnet18() -> nn.Module:
    """ResNet-18 (He et al. 2016): x [n, 3, 224, 224]."""
    torch.manual_seed(0)
    body: list[nn.Module] = [unit(3, 64, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    for stage, width in enumerate((64, 128, 256, 512)):
        for index in range(2):
            stride = 2 if stage and not index else 1
            inputs = width // 2 if stage and not index else width
            inner = nn.Sequential(unit(inputs, width, 3, stride, act=nn.ReLU()), unit(width, width, 3))
            shortcut = nn.Identity() if inputs == width else unit(inputs, width, 1, stride)
            body.append(Residual(inner, shortcut, nn.ReLU()))
    return started(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)))


def _full(name: str) -> nn.Module:
    torch.manual_seed(0)
    return started(FULL[name].make())


def resnet50() -> nn.Module:
    """ResNet-50."""
    return _full("resnet")


def mobilenetv2() -> nn.Module:
    """MobileNetV2 1.0."""
    return _full("mobilenet")


def bert() -> nn.Module:
    """BERT-base, 128 tokens."""
    return _full("bert")
