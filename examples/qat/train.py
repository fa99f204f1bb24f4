"""Quantization-aware training in a plain training loop: `python examples/qat/train.py`.

Twice from the same float network: on the labels, and on the scores of the float network as the teacher.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from data import evaluation, sounds
from model import FOLDER, build, prepared
from qcompile import qat

STEPS = 300

_BATCH = 64
_PEAK_RATE = 1e-3
_FROZEN = 0.9  # of the steps; ranges and statistics stay as they are from there on

# Scores [N,10], labels [N] and waveforms [N,1,1024] to a number.
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def on_labels(scores: torch.Tensor, labels: torch.Tensor, _waves: torch.Tensor) -> torch.Tensor:
    """Cross entropy."""
    return cross_entropy(scores, labels)


def on_teacher(teacher: nn.Module) -> Loss:
    """Return the divergence from the teacher's distribution; labels are not looked at."""

    def loss(scores: torch.Tensor, _labels: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            expected = teacher(waves).log_softmax(1)
        return kl_div(scores.log_softmax(1), expected, log_target=True, reduction="batchmean")

    return loss


def train(model: nn.Module, loss: Loss, *, steps: int) -> None:
    """Train on sounds that are made anew for every step. Only `qat.freeze` is not in every training loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, steps)
    began = time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        waves, labels = (torch.from_numpy(array) for array in sounds(_BATCH, 5_000_000 + step))
        value = loss(model(waves), labels, waves)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        schedule.step()
        if step == int(_FROZEN * steps):
            qat.freeze(model)
        if step % 100 == 0:
            print(
                f"step {step}/{steps}, {time.monotonic() - began:.0f} s: loss {value.item():.3f}", flush=True
            )


def accuracy(model: nn.Module) -> float:
    """Return the share of the evaluation's labels that the largest score names, 0..1."""
    with torch.inference_mode():
        right = [
            (model(torch.from_numpy(waves)).numpy().argmax(1) == labels).mean()
            for waves, labels in evaluation()
        ]
    return float(sum(right) / len(right))


def main() -> None:
    """Train both, and write labels.safetensors and teacher.safetensors beside model.py."""
    steps = int(sys.argv[1]) if sys.argv[1:] else STEPS
    for name, loss in (("labels", on_labels), ("teacher", on_teacher(build()))):
        model = prepared()
        train(model, loss, steps=steps)
        converted = qat.convert(model)
        print(f"{name}: accuracy of the converted network in PyTorch {accuracy(converted):.1%}", flush=True)
        path = FOLDER / f"{name}.safetensors"
        temporary = path.with_name(path.name + ".tmp")
        save_file(model.state_dict(), temporary)
        os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.


if __name__ == "__main__":
    main()
