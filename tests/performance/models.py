"""The models of the benchmarks: real architectures with random weights, so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Logits(nn.Module):
    """A classifier of transformers whose output is the logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 224, 224], return float32 [n, 1000]."""
        return self.model(image).logits


class Hidden(nn.Module):
    """A text encoder whose output is the last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        """Take int64 [n, length] twice, return float32 [n, length, 768]."""
        return self.model(input_ids=tokens, attention_mask=mask).last_hidden_state


def resnet50() -> nn.Module:
    """ResNet-50 v1.5."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=1000)))


def bert() -> nn.Module:
    """BERT-base: 12 layers, 768 wide; biases are not zero, as they never are in a trained model."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(), add_pooling_layer=False)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.05)
    return Hidden(model)
