"""A small Transformer encoder that classifies texts of any length, with an attention mask."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

WEIGHTS = Path(__file__).with_name("encoder.safetensors")
CLASSES = 4

_BUCKETS = 1024
_WIDTH = 64
_HEADS = 4
_INNER = 128
_LAYERS = 2
_LONGEST = 128


class Layer(nn.Module):
    """Self-attention and two linear maps, each behind a LayerNorm: [N,length,64] -> [N,length,64]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, _INNER), nn.Linear(_INNER, _WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Map states [N,length,64] float32 with an additive mask [N,1,1,length] float32."""
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, _WIDTH))
        changed: torch.Tensor = x + self.down(gelu(self.up(self.norm2(x))))
        return changed


class Encoder(nn.Module):
    """Embedding, positions, two layers, the mean of the unmasked states, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_BUCKETS, _WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, CLASSES)
        self.register_buffer("positions", _sinusoids(), persistent=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map token ids [N,length] int64 and a mask [N,length] int64 (1: token) to logits [N,4] float32."""
        kept = mask.float()
        bias = (1.0 - kept)[:, None, None, :] * -1e4  # in the range of float16, too
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, bias)
        weights = kept / kept.sum(1, keepdim=True)
        logits: torch.Tensor = self.head((self.norm(x) * weights[:, :, None]).sum(1))
        return logits


def _sinusoids() -> torch.Tensor:
    """Positions [128,64] as sines and cosines (Vaswani et al. 2017, section 3.5)."""
    place = torch.arange(_LONGEST)[:, None]
    rate = torch.exp(torch.arange(0, _WIDTH, 2) * (-math.log(10000.0) / _WIDTH))
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], dim=1)


def build() -> nn.Module:
    """Return the trained encoder in evaluation mode."""
    if not WEIGHTS.exists():
        raise FileNotFoundError(f"{WEIGHTS}: run python examples/text_encoder/train.py first")
    model = Encoder()
    # The file holds float16, which halves it; the model computes in float32.
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(WEIGHTS).items()})
    return model.eval()
