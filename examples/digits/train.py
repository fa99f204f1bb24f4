"""Train the digits ResNet-20: `python examples/digits/train.py`, under a minute on two cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, pad

from data import evaluation, training
from model import WEIGHTS, resnet20

Samples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

SEED = 0
EPOCHS = 20

_BATCH = 32
_LARGEST_SHIFT = 4


def make_deterministic() -> None:
    """Fix every random choice; call it before the model is initialized.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)


def train(
    model: nn.Module,
    path: Path,
    training: Samples,
    evaluation: Callable[[], Iterator[Samples]],
    *,
    epochs: int,
    peak_rate: float,
) -> float:
    """Train the model, write its weights to `path`, and return the held-out accuracy.

    Args:
        model: Maps [N,3,32,32] float32 to logits [N,10] float32.
        path: The safetensors file; it is only replaced once training has finished.
        training: Images [T,3,32,32] float32 and labels [T] int64.
        evaluation: Gives the held-out batches anew at each call. They never choose: the last
            epoch is kept, not the best.
        epochs: Passes over the training samples.
        peak_rate: The learning rate that the cosine schedule falls from.
    """
    images, labels = (torch.from_numpy(array) for array in training)
    # The incomplete last batch is left out: a handful of samples would upset the batch norms'
    # running statistics, and the next epoch's order brings them back.
    steps = len(labels) // _BATCH
    optimizer = torch.optim.SGD(
        model.parameters(), lr=peak_rate, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    began = time.monotonic()
    held_out = 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(labels))[: steps * _BATCH].view(steps, _BATCH):
            loss = cross_entropy(model(_shifted(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        held_out = accuracy(model, evaluation())
        progress = f"epoch {epoch}/{epochs}, {time.monotonic() - began:.0f} s"
        print(f"{progress}: loss {total / steps:.4f}, held-out {held_out:.2%}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file(model.state_dict(), temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.
    return held_out


def accuracy(model: nn.Module, batches: Iterator[Samples]) -> float:
    """Return the share of labels [N] that the logits' largest entry names, in 0..1."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in batches:
            right += int((model(torch.from_numpy(images)).numpy().argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def _shifted(images: torch.Tensor) -> torch.Tensor:
    """Move each image [N,3,32,32] by up to four pixels, filling in the background."""
    size = images.shape[-1]
    padded = pad(images, [_LARGEST_SHIFT] * 4, value=float(images.min()))
    corners = torch.randint(0, 2 * _LARGEST_SHIFT + 1, (len(images), 2)).tolist()
    pairs = zip(padded, corners, strict=True)
    return torch.stack([image[:, y : y + size, x : x + size] for image, (y, x) in pairs])


def main() -> None:
    """Train ResNet-20 and write resnet20.safetensors beside model.py."""
    make_deterministic()
    train(resnet20(), WEIGHTS, training(), evaluation, epochs=EPOCHS, peak_rate=0.05)
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
