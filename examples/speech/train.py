"""Train the recognizer: `python examples/speech/train.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import ctc_loss

from data import MOST_DIGITS, utterances
from model import VOCABULARY, WEIGHTS, Recognizer

SEED = 0
STEPS = 800
BATCH = 16
FIRST_SEED = 1000  # of the training recordings; the evaluation's seeds are below


def train(path: Path, *, steps: int) -> None:
    """Train from scratch and write the weights to `path`.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    model = Recognizer().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    lengths = np.random.default_rng(SEED)
    for step in range(1, steps + 1):
        # Short strings first: CTC finds out soonest there where a digit is.
        longest = min(MOST_DIGITS, 1 + 8 * step // steps)
        digits = int(lengths.integers(1, longest + 1))
        waves, texts = utterances(BATCH, digits, seed=FIRST_SEED + step)
        targets = torch.tensor([[VOCABULARY.index(character) for character in text] for text in texts])
        scores = model(torch.from_numpy(waves)).log_softmax(-1).transpose(0, 1)  # [frames,N,11]
        frames = torch.full((BATCH,), len(scores))
        loss = ctc_loss(scores, targets, frames, torch.full((BATCH,), digits))
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


def main() -> None:
    """Train and write recognizer.safetensors beside model.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    train(given.output, steps=given.steps)
    print(f"{given.output.name}: {given.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
