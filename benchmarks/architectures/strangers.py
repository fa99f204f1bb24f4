"""What users of other libraries write around a model to deploy it: tensors in, tensors out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Wrapped(nn.Module):
    """A module with another in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Windows(Wrapped):
    """A model of neuralforecast without exogenous variables."""

    def forward(self, insample_y: Tensor) -> Any:
        exogenous = dict.fromkeys(("hist_exog", "futr_exog", "stat_exog"))
        mask = torch.ones_like(insample_y)
        return self.model({"insample_y": insample_y, "insample_mask": mask, **exogenous})


class Deterministic(Wrapped):
    """A policy of stable-baselines3, as its guide exports it."""

    def forward(self, observation: Tensor) -> Any:
        return self.model(observation, deterministic=True)


class Logits(Wrapped):
    """An actor-critic of stable-baselines3 that chooses among actions."""

    def forward(self, observation: Tensor) -> Any:
        return self.model.get_distribution(observation).distribution.logits


class Energies(Wrapped):
    """A potential of torchani."""

    def forward(self, species: Tensor, coordinates: Tensor) -> Any:
        return self.model((species, coordinates)).energies


class Recognizer(Wrapped):
    """The recognition network of easyocr, which takes a text that it does not read."""

    def forward(self, image: Tensor) -> Any:
        return self.model(image, None)


class SentenceEncoder(Wrapped):
    """A network of transformers with the modules that sentence-transformers puts behind it."""

    def __init__(self, model: nn.Module, modules: list[nn.Module]) -> None:
        super().__init__(model)
        self.behind = nn.ModuleList(modules)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        tokens = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        features = {"token_embeddings": tokens, "attention_mask": attention_mask}
        for module in self.behind:
            features = module(features)
        return features["sentence_embedding"]


class SpikingNet(nn.Module):
    """The network of snntorch's tutorials: potentials and spikes [steps, batch, classes]."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        import snntorch

        super().__init__()
        self.fc1, self.lif1 = nn.Linear(features, hidden), snntorch.Leaky(beta=0.95)
        self.fc2, self.lif2 = nn.Linear(hidden, classes), snntorch.Leaky(beta=0.95)

    def forward(self, x: Tensor) -> Any:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, potentials = [], []
        for step in range(x.shape[0]):
            spike1, mem1 = self.lif1(self.fc1(x[step]), mem1)
            spike2, mem2 = self.lif2(self.fc2(spike1), mem2)
            spikes.append(spike2)
            potentials.append(mem2)
        return torch.stack(potentials), torch.stack(spikes)
