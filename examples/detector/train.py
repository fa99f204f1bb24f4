"""Train the detector: `python examples/detector/train.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from scenes import compose
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss

from model import CLASSES, STRIDE, WEIGHTS, Detector

SEED = 0
STEPS = 1000
BATCH = 24

_SPREAD = 0.8  # of the heat around a centre, in cells
_NEAR = 0.4  # cells of this heat and more learn the box, too


def targets(boxes: npt.NDArray[np.float32], cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a grid of cells x cells shall give for boxes [N,4,5].

    Returns:
        Heat [N,10,cells,cells] in 0..1, distances [N,4,cells,cells] in cells, and whether a cell learns its
        distances [N,cells,cells].
    """
    count = len(boxes)
    heat = np.zeros((count, CLASSES, cells, cells), np.float32)
    distances = np.zeros((count, 4, cells, cells), np.float32)
    learns = np.zeros((count, cells, cells), bool)
    y, x = np.mgrid[0:cells, 0:cells] + 0.5
    for scene, row in zip(*np.nonzero(boxes[:, :, 0] >= 0), strict=True):
        label, *corners = boxes[scene, row]
        x1, y1, x2, y2 = np.array(corners) / STRIDE
        column, line = np.floor((x1 + x2) / 2) + 0.5, np.floor((y1 + y2) / 2) + 0.5
        warm = np.exp(-((x - column) ** 2 + (y - line) ** 2) / (2 * _SPREAD**2))
        heat[scene, int(label)] = np.maximum(heat[scene, int(label)], warm)
        near = warm >= _NEAR
        learns[scene] |= near
        distances[scene][:, near] = np.stack([x - x1, y - y1, x2 - x, y2 - y])[:, near]
    return torch.from_numpy(heat), torch.from_numpy(distances), torch.from_numpy(learns)


def loss_of(model: Detector, images: npt.NDArray[np.float32], boxes: npt.NDArray[np.float32]) -> torch.Tensor:
    """Return the loss of a batch: focal loss of the heat, mean error of the distances in cells."""
    logits, found = model.raw(torch.from_numpy(images))
    heat, distances, learns = targets(boxes, logits.shape[-1])
    entropy = binary_cross_entropy_with_logits(logits, heat, reduction="none")
    focal = (entropy * (torch.sigmoid(logits) - heat).abs().square()).sum() / len(images)
    chosen = learns[:, None].expand_as(found)
    return focal + l1_loss(found[chosen], distances[chosen])


def train(path: Path, *, steps: int) -> None:
    """Train from scratch and write the weights to `path`.

    Weights repeat bit by bit only on the same processor type, thread count and torch version.
    """
    torch.manual_seed(SEED)
    model = Detector().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(1, steps + 1):
        scenes = compose(BATCH, held_out=False, seed=1000 + step)
        loss = loss_of(model, scenes.images, scenes.boxes)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}/{steps}: loss {loss.item():.3f}", flush=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: _float16(tensor) for name, tensor in model.state_dict().items()}, temporary)
    os.replace(temporary, path)  # Atomic: an interruption leaves the old file whole.


def _float16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def main() -> None:
    """Train and write detector.safetensors beside model.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    train(given.output, steps=given.steps)
    print(f"{given.output.name}: {given.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
