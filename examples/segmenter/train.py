"""Train the UNet: `python examples/segmenter/train.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from data import scenes
from model import CLASSES, WEIGHTS, UNet

SEED = 0
STEPS = 700
BATCH = 16

_GROUND = 0.3  # weight of the ground's pixels, which are nine in ten


def train(path: Path, *, steps: int) -> None:
    """Train from scratch and write the weights to `path`.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    model = UNet().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    weight = torch.ones(CLASSES)
    weight[0] = _GROUND
    for step in range(1, steps + 1):
        images, maps = scenes(BATCH, held_out=False, seed=1000 + step)
        loss = cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(maps), weight)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{steps}: loss {loss.item():.4f}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: _float16(tensor) for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.


def _float16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def main() -> None:
    """Train and write unet.safetensors beside model.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    train(given.output, steps=given.steps)
    print(f"{given.output.name}: {given.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
