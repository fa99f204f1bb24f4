"""The networks of `gpu_day.py` in plain PyTorch: what a GPU host has without further packages.

Their weights are random, drawn from their names (`random_weights`). Folding a BatchNorm into its convolution
changes no weight: variance + epsilon is 1. So graphs that were made of them need not hold them.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu_day_harness"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))

from random_weights import draw
from road_models import COMPACT, FULL

# The baseline of the published figures: float32 without TF32.
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True

RECIPES = {
    "resnet50": FULL["resnet"], "bert_base": FULL["bert"], "mobilenetv2": FULL["mobilenet"],
    "resnet_small": COMPACT["resnet"], "bert_small": COMPACT["bert"],
}  # fmt: skip


def make(name: str) -> nn.Module:
    """Return a network."""
    model = RECIPES[name].make().eval()
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(1 - module.eps)
        elif isinstance(module, nn.Conv2d | nn.Linear | nn.Embedding):
            gain = 6 if isinstance(module, nn.Conv2d) else 3
            inputs = 3 if isinstance(module, nn.Embedding) else module.weight[0].numel()
            for part, bound in (("weight", math.sqrt(gain / inputs)), ("bias", 0.05)):
                parameter = getattr(module, part, None)
                if parameter is not None:
                    parameter.data = torch.from_numpy(draw(f"{path}.{part}", parameter.shape, bound))
    return model


globals().update({name: partial(make, name) for name in RECIPES})
