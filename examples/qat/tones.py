"""A network that hears which of ten quiet tones sounds beside a loud hum."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

TONES = 10
SAMPLES = 1024
WEIGHTS = Path(__file__).with_name("tones.safetensors")

_WINDOW, _HOP = 128, 64
_BANDS = _WINDOW // 2 + 1
_CHANNELS = 32
_FLOOR = 1e-4  # of the power, before the logarithm


class ToneNet(nn.Module):
    """Waveform to scores: [N,1,1024] -> [N,10].

    The spectrum is a convolution whose weights are a windowed Fourier transform; they are not trained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 2 * _BANDS, _WINDOW, stride=_HOP, bias=False)
        self.spectrum.weight = nn.Parameter(_fourier(), requires_grad=False)
        self.conv1 = nn.Conv1d(_BANDS, _CHANNELS, 3, bias=False)
        self.norm1 = nn.BatchNorm1d(_CHANNELS)
        self.conv2 = nn.Conv1d(_CHANNELS, _CHANNELS, 3, bias=False)
        self.norm2 = nn.BatchNorm1d(_CHANNELS)
        self.relu = nn.ReLU()
        self.head = nn.Linear(_CHANNELS, TONES)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Map waveforms [N,1,1024] float32 to scores [N,10] float32."""
        parts = self.spectrum(wave)
        real, imaginary = parts[:, :_BANDS], parts[:, _BANDS:]
        level = torch.log(real * real + imaginary * imaginary + _FLOOR)
        features = self.relu(self.norm1(self.conv1(level)))
        features = self.relu(self.norm2(self.conv2(features)))
        scores: torch.Tensor = self.head(features.mean(2))
        return scores


def _fourier() -> torch.Tensor:
    """Return cosines and sines below a Blackman window, [130,1,128]."""
    times = torch.arange(_WINDOW) * (2 * math.pi / _WINDOW)
    angles = torch.arange(_BANDS)[:, None] * times
    window = torch.blackman_window(_WINDOW)
    return (torch.cat([angles.cos(), angles.sin()]) * window)[:, None]


def build() -> nn.Module:
    """Return the trained network in evaluation mode: [N,1,1024] float32 -> [N,10] float32."""
    model = ToneNet()
    model.load_state_dict(load_file(WEIGHTS))
    return model.eval()
