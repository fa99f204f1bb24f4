"""Train the encoder: `python examples/text_encoder/train.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from data import evaluation, padded, texts
from model import WEIGHTS, Encoder

SEED = 0
STEPS = 900
BATCH = 32


def train(path: Path, *, steps: int) -> float:
    """Train from scratch, write the weights to `path`, and return the accuracy on held-out files.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    model = Encoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    samples, random = texts()[0], np.random.default_rng(SEED)
    for step in range(1, steps + 1):
        chosen = [samples[index] for index in random.integers(0, len(samples), BATCH)]
        ids, mask, labels = map(torch.from_numpy, padded(chosen))
        ids = torch.where(torch.rand(ids.shape) < 0.1, 0, ids)  # lost words: fewer texts are learnt by heart
        loss = cross_entropy(model(ids, mask), labels, label_smoothing=0.05)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{steps}: loss {loss.item():.4f}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.
    return accuracy(model.eval())


def accuracy(model: torch.nn.Module) -> float:
    """Return the share of held-out texts whose package is named, in 0..1."""
    right = total = 0
    with torch.inference_mode():
        for ids, mask, labels in evaluation():
            guessed = model(torch.from_numpy(ids), torch.from_numpy(mask)).argmax(1).numpy()
            right += int((guessed == labels).sum())
            total += len(labels)
    return right / total


def main() -> None:
    """Train and write encoder.safetensors beside model.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    held_out = train(given.output, steps=given.steps)
    print(f"{given.output.name}: {given.output.stat().st_size / 1e3:.0f} kB, held-out {held_out:.2%}")


if __name__ == "__main__":
    main()
