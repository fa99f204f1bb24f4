"""Train the Transformer: `python examples/int4/train.py`."""

from __future__ import annotations

import math
import os
import time

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from data import WINDOW, evaluation, training
from model import WEIGHTS, Transformer

SEED = 0
STEPS = 2000

_BATCH = 32
_PEAK_RATE = 3e-3


def train(model: nn.Module, steps: int) -> None:
    """Train on windows at random places of the text."""
    text = torch.from_numpy(training())
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, steps)
    began = time.monotonic()
    for step in range(1, steps + 1):
        places = torch.randint(0, len(text) - WINDOW - 1, (_BATCH, 1)) + torch.arange(WINDOW)
        loss = cross_entropy(model(text[places]).flatten(0, 1), text[places + 1].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            progress = f"step {step}/{steps}, {time.monotonic() - began:.0f} s"
            print(
                f"{progress}: loss {loss.item():.3f}, held-out perplexity {perplexity(model):.3f}", flush=True
            )


def perplexity(model: nn.Module) -> float:
    """Return the perplexity per character of the held-out text."""
    model.eval()
    with torch.inference_mode():
        losses = [
            float(cross_entropy(model(text)[:, :-1].flatten(0, 1), text[:, 1:].flatten()))
            for text in (torch.from_numpy(window) for window, _ in evaluation())
        ]
    model.train()
    return math.exp(sum(losses) / len(losses))


def main() -> None:
    """Train, and write transformer.safetensors beside model.py."""
    torch.manual_seed(SEED)
    model = Transformer()
    train(model, STEPS)
    temporary = WEIGHTS.with_name(WEIGHTS.name + ".tmp")
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, WEIGHTS)  # Atomic: an interruption leaves the old file whole.
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
