"""Train the network: `python examples/mixed_precision/train.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from data import evaluation, sounds
from model import WEIGHTS, ToneNet

SEED = 0
STEPS = 400

_BATCH = 64
_PEAK_RATE = 3e-3

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def train(
    model: nn.Module, *, steps: int, peak_rate: float, seed: int = SEED, loss: Loss | None = None
) -> None:
    """Train on sounds that are made anew for every step.

    Args:
        model: Maps [N,1,1024] float32 to scores [N,10] float32; it is trained in training mode.
        steps: Number of batches.
        peak_rate: The learning rate that the schedule rises to and falls from.
        seed: Of the sounds.
        loss: Of scores [N,10], labels [N] and waveforms [N,1,1024]; cross entropy by default.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, steps)
    began = time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        waves, labels = (torch.from_numpy(array) for array in sounds(_BATCH, seed * 100_000 + step))
        scores = model(waves)
        value = cross_entropy(scores, labels) if loss is None else loss(scores, labels, waves)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(
                f"step {step}/{steps}, {time.monotonic() - began:.0f} s: loss {value.item():.3f}", flush=True
            )
    model.eval()


def accuracy(model: nn.Module) -> float:
    """Return the share of the evaluation's labels that the largest score names, 0..1."""
    with torch.inference_mode():
        right = [
            (model(torch.from_numpy(waves)).numpy().argmax(1) == labels).mean()
            for waves, labels in evaluation()
        ]
    return float(sum(right) / len(right))


def main() -> None:
    """Train, and write tones.safetensors beside model.py."""
    torch.manual_seed(SEED)
    model = ToneNet()
    train(model, steps=STEPS, peak_rate=_PEAK_RATE)
    print(f"accuracy {accuracy(model):.2%}")
    temporary = WEIGHTS.with_name(WEIGHTS.name + ".tmp")
    save_file(model.state_dict(), temporary)
    os.replace(temporary, WEIGHTS)  # Atomic: an interruption leaves the old file whole.


if __name__ == "__main__":
    main()
