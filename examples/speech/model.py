"""A recognizer of digit strings: waveform, spectrum, two convolutions, a GRU, CTC scores."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_name("recognizer.safetensors")
VOCABULARY = ("", *"0123456789")
"""The character of each class; class 0 is CTC's blank."""

_RATE_HZ = 8000
_WINDOW = 320  # 40 ms
_STEP = 160  # 20 ms
_BANDS = 64
_LOWEST_HZ, _HIGHEST_HZ = 100.0, 3600.0
_WIDTH = 64
_MEAN, _SPREAD = 6.5, 1.5  # about those of the logarithms


class Recognizer(nn.Module):
    """Scores of 11 characters for every 20 ms of a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", _filters(), persistent=False)
        self.convolutions = nn.Sequential(
            nn.Conv1d(_BANDS, _WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.gru = nn.GRU(_WIDTH, _WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * _WIDTH, len(VOCABULARY))

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        """Map recordings [N,samples] float32 at 8 kHz to scores [N,frames,11] float32."""
        waves = nn.functional.conv1d(waveform[:, None, :], self.filters, stride=_STEP)
        cosine, sine = waves.chunk(2, dim=1)
        spectrum = (torch.log(cosine * cosine + sine * sine + 1e-4) + _MEAN) / _SPREAD
        states, _ = self.gru(self.convolutions(spectrum).transpose(1, 2))
        scores: torch.Tensor = self.head(states)
        return scores


def _filters() -> torch.Tensor:
    """Windowed cosines and sines [128,1,320] of 64 frequencies: a short-time Fourier transform as weights."""
    time_s = torch.arange(_WINDOW, dtype=torch.float64) / _RATE_HZ
    bands_hz = torch.linspace(_LOWEST_HZ, _HIGHEST_HZ, _BANDS, dtype=torch.float64)
    angles = 2 * math.pi * bands_hz[:, None] * time_s
    window = torch.hann_window(_WINDOW, periodic=False, dtype=torch.float64) / math.sqrt(_WINDOW)
    return (torch.cat([torch.cos(angles), torch.sin(angles)]) * window)[:, None, :].float()


def build() -> nn.Module:
    """Return the trained recognizer in evaluation mode."""
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python examples/speech/train.py first")
    model = Recognizer()
    # The file holds float16, which halves it; the model computes in float32.
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(WEIGHTS).items()})
    return model.eval()
