"""A bidirectional LSTM or GRU that names the digit of each column of a handwritten line."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_name("lstm.safetensors")
GRU_WEIGHTS = Path(__file__).with_name("gru.safetensors")
CLASSES = 11

_ROWS = 8
_PROJECTED = 64
_HIDDEN = 96


class LineReader(nn.Module):
    """Projection, one bidirectional LSTM or GRU, classifier: [N,length,8] -> [N,11,length]."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.project = nn.Linear(_ROWS, _PROJECTED)
        self.recurrent = cell(_PROJECTED, _HIDDEN, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * _HIDDEN, CLASSES)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Map columns [N,length,8] float32 to scores [N,11,length] float32, classes before positions."""
        states, _ = self.recurrent(torch.relu(self.project(columns)))
        scores: torch.Tensor = self.head(states).transpose(1, 2)
        return scores


def build() -> nn.Module:
    """Return the trained LSTM in evaluation mode."""
    return _loaded(LineReader(nn.LSTM), WEIGHTS)


def build_gru() -> nn.Module:
    """Return the trained GRU in evaluation mode."""
    return _loaded(LineReader(nn.GRU), GRU_WEIGHTS)


def int8_dynamic() -> nn.Module:
    """Return what torch.ao's dynamic quantization makes of the LSTM and the linear layers."""
    return _dynamic(build())


def gru_int8_dynamic() -> nn.Module:
    """Return what it makes of the GRU."""
    return _dynamic(build_gru())


def _dynamic(model: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    kinds = {nn.Linear, nn.LSTM, nn.GRU}
    return quantize_dynamic(model, kinds, dtype=torch.qint8)  # type: ignore[no-any-return]


def _loaded(model: nn.Module, weights: Path) -> nn.Module:
    # The file holds float16, which halves it; the model computes in float32.
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()})
    return model.eval()
