"""A small Transformer that predicts the next character: two layers, 96 channels, windows of 64."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

CHARACTERS = 97  # the printable ASCII characters, the end of line, and one for everything else
WINDOW = 64
CHANNELS = 96
HEADS = 4
LAYERS = 2
WEIGHTS = Path(__file__).with_name("transformer.safetensors")


class Layer(nn.Module):
    """Attention to earlier characters, and two linear layers: [N,T,C] -> [N,T,C]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(CHANNELS)
        self.query_key_value = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.projection = nn.Linear(CHANNELS, CHANNELS)
        self.norm2 = nn.LayerNorm(CHANNELS)
        self.up = nn.Linear(CHANNELS, 4 * CHANNELS)
        self.down = nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map values [N,T,C] float32 to [N,T,C] float32."""
        shape = (*values.shape[:2], HEADS, CHANNELS // HEADS)
        parts = self.query_key_value(self.norm1(values)).chunk(3, dim=-1)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.projection(mixed.transpose(1, 2).flatten(2))
        changed: torch.Tensor = values + self.down(nn.functional.gelu(self.up(self.norm2(values))))
        return changed


class Transformer(nn.Module):
    """Embeddings of characters and places, the layers, and the scores of the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, CHANNELS)
        self.places = nn.Parameter(torch.zeros(WINDOW, CHANNELS))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Map characters [N,64] int64 to scores of the next character [N,64,97] float32."""
        values = self.layers(self.characters(text) + self.places)
        scores: torch.Tensor = self.head(self.norm(values))
        return scores


def build() -> nn.Module:
    """Return the trained network in evaluation mode: [N,64] int64 -> [N,64,97] float32."""
    model = Transformer()
    # Stored as float16 to keep the repository small; the network computes in float32.
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(WEIGHTS).items()})
    return model.eval()
