"""Train the line readers: `python examples/recurrent/train.py`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from data import MOST_DIGITS, evaluation, lines
from model import GRU_WEIGHTS, WEIGHTS, LineReader

SEED = 0
BATCH = 32


def train(path: Path, *, steps: int, cell: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> float:
    """Train from scratch, write the weights to `path`, and return the held-out accuracy of columns.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    model = LineReader(cell).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    lengths = np.random.default_rng(SEED)
    for step in range(1, steps + 1):
        digits = int(lengths.integers(1, MOST_DIGITS + 1))
        columns, labels = lines(BATCH, digits, held_out=False, seed=1000 + step)
        loss = cross_entropy(model(torch.from_numpy(columns)), torch.from_numpy(labels))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{steps}: loss {loss.item():.4f}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.
    return accuracy(model.eval())


def accuracy(model: torch.nn.Module) -> float:
    """Return the share of held-out columns whose class is right, in 0..1."""
    right = total = 0
    with torch.inference_mode():
        for columns, labels in evaluation():
            right += int((model(torch.from_numpy(columns)).argmax(1).numpy() == labels).sum())
            total += labels.size
    return right / total


def main() -> None:
    """Train and write lstm.safetensors and gru.safetensors beside model.py."""
    for path, cell, steps in ((WEIGHTS, nn.LSTM, 800), (GRU_WEIGHTS, nn.GRU, 300)):
        held_out = train(path, steps=steps, cell=cell)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB, held-out {held_out:.2%}")


if __name__ == "__main__":
    main()
