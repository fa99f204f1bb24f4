"""Train the network: `python examples/cifar_resnet18/train.py`, six epochs, minutes on two cores.

CIFAR-10 where its binary files are, the synthetic stand-in otherwise. Six epochs are few: the accuracy is
what such a network has after it, not what it could have.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time

import torch
from images import Pixels, cifar10_folder, normalized
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from model import WEIGHTS, WIDTH, ResNet18

SEED = 0
EPOCHS = 6

_BATCH = 64
_PEAK_RATE = 2e-3
_LARGEST_SHIFT = 3


def data_name() -> str:
    """Return the module of the data there is: "cifar10", or "stand_in"."""
    return "stand_in" if cifar10_folder() is None else "cifar10"


def train(*, width: int = WIDTH, epochs: int = EPOCHS, samples: int = 6000) -> dict[str, str]:
    """Train, write resnet18.safetensors beside model.py, and return what is noted in it.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    name = data_name()
    data = importlib.import_module(name)
    pixels, labels = data.training(samples)
    model = ResNet18(width)
    steps = len(labels) // _BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, total_steps=epochs * steps)
    began = time.monotonic()
    for epoch in range(1, epochs + 1):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(labels))[: steps * _BATCH].view(steps, _BATCH):
            loss = cross_entropy(model(_images(pixels, chosen)), torch.from_numpy(labels[chosen.numpy()]))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.monotonic() - began
        print(f"epoch {epoch}/{epochs}, {seconds:.0f} s: loss {total / steps:.3f}", flush=True)
    share = accuracy(model, data)
    noted = {
        "data": name, "title": data.TITLE, "width": str(width), "epochs": str(epochs),
        "samples": str(len(labels)), "accuracy": f"{share:.4f}",
    }  # fmt: skip
    temporary = WEIGHTS.with_name(WEIGHTS.name + ".tmp")
    save_file(model.state_dict(), temporary, metadata={"about": json.dumps(noted)})
    os.replace(temporary, WEIGHTS)
    print(f"{data.TITLE}: {share:.2%} of 512 held-out images; {WEIGHTS.stat().st_size / 1e6:.1f} MB")
    return noted


def accuracy(model: ResNet18, data: object) -> float:
    """Return the share of the evaluation images that the network names rightly."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in data.evaluation():  # type: ignore[attr-defined]
            right += int((model(torch.from_numpy(images)).argmax(1).numpy() == labels).sum())
            total += len(labels)
    return right / total


def _images(pixels: Pixels, chosen: torch.Tensor) -> torch.Tensor:
    """Normalized images, all moved by the same few pixels; the edges come in at the other side."""
    shift = torch.randint(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, (2,)).tolist()
    images = torch.from_numpy(normalized(pixels[chosen.numpy()]))
    return images.roll(shift, (2, 3))


def main() -> None:
    """Train with the settings of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--samples", type=int, default=6000, help="training images")
    options = parser.parse_args()
    train(width=options.width, epochs=options.epochs, samples=options.samples)


if __name__ == "__main__":
    main()
