"""The network of tones.py: in float, and trained with fake quantization by train.py."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tones import build
from torch import nn

from data import sounds
from qcompile import qat

TARGET = "tensorrt"
FOLDER = Path(__file__).parent


def prepared() -> torch.fx.GraphModule:
    """Return the float network with fake quantization, in training mode, ready for the training loop."""
    model = build()
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # the spectrum, too: its rounded weights leak the hum
    example = torch.from_numpy(sounds(2, 0)[0])
    return qat.prepare(model, example, target=TARGET)


def with_labels() -> nn.Module:
    """Return the network that was trained on the labels, for `qcompile export`."""
    return _converted("labels")


def with_teacher() -> nn.Module:
    """Return the network that was trained on the scores of the float network, for `qcompile export`."""
    return _converted("teacher")


def _converted(name: str) -> nn.Module:
    model = prepared()
    model.load_state_dict(load_file(FOLDER / f"{name}.safetensors"))
    return qat.convert(model)
