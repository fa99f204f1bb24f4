"""Train the narrow MobileNetV2: `python examples/edge/train.py`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from data import evaluation, training
from model import WEIGHTS, mobilenet_v2

SEED = 0
EPOCHS = 60

_BATCH = 64
_PEAK_RATE = 0.01


def train(model: nn.Module, path: Path, *, epochs: int, steps: int = 0) -> float:
    """Train the model, write its weights to `path` as float16, and return the held-out accuracy, 0..1.

    The held-out samples never choose: the last epoch is kept, not the best. `steps` is per epoch; 0 takes
    all samples.
    """
    steps = steps or len(training(0)[1]) // _BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, epochs * steps)
    began, held_out = time.monotonic(), 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        images, labels = (torch.from_numpy(array) for array in training(epoch))
        total = 0.0
        for chosen in torch.randperm(len(labels))[: steps * _BATCH].view(steps, _BATCH):
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 5 == 0 or epoch == epochs:
            held_out = accuracy(model)
            progress = f"epoch {epoch}/{epochs}, {time.monotonic() - began:.0f} s"
            print(f"{progress}: loss {total / steps:.4f}, held-out {held_out:.2%}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: _half(tensor) for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.
    return held_out


def accuracy(model: nn.Module) -> float:
    """Return the share of the held-out labels that the logits' largest entry names, 0..1."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in evaluation():
            right += int((model(torch.from_numpy(images)).numpy().argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def main() -> None:
    """Train, and write mobilenetv2.safetensors beside model.py."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    train(mobilenet_v2(), WEIGHTS, epochs=EPOCHS)
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
