"""What users of still other libraries write around a model to deploy it: tensors in, tensors out."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Wrapped(nn.Module):
    """A module with another in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class BottleneckNet(nn.Module):
    """A ResNet whose last stage is a BottleStack, as bottleneck-transformer-pytorch's README has it."""

    def __init__(self, stack: nn.Module, features: int, classes: int) -> None:
        from torchvision.models import resnet50

        super().__init__()
        stem = list(resnet50(weights=None).children())[:5]
        self.net = nn.Sequential(
            *stem, stack, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1), nn.Linear(features, classes)
        )

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Spiking(Wrapped):
    """A network of spikingjelly over time steps: reset, run, mean of the spikes."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        from spikingjelly.activation_based import functional

        super().__init__(model)
        self.steps, self.reset = steps, functional.reset_net

    def forward(self, x: Tensor) -> Any:
        self.reset(self.model)
        return torch.stack([self.model(x) for _ in range(self.steps)]).mean(0)


class Density(Wrapped):
    """Log densities of a flow of zuko."""

    def forward(self, x: Tensor) -> Any:
        return self.model().log_prob(x)


class LogProb(Wrapped):
    """Log densities of a flow of normflows or nflows."""

    def forward(self, x: Tensor) -> Any:
        return self.model.log_prob(x)


class OdeNet(nn.Module):
    """An ODE block between two layers, as in torchdiffeq's example of MNIST: odeint with its own solver."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(features, hidden), nn.Linear(hidden, classes)
        self.field = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden))

    def forward(self, x: Tensor) -> Any:
        from torchdiffeq import odeint

        times = torch.tensor([0.0, 1.0])
        state = odeint(lambda _, y: self.field(y), self.before(x), times, rtol=1e-3, atol=1e-3)
        return self.after(state[1])


class NeuralCde(nn.Module):
    """The classifier of torchcde's README: a controlled differential equation over Hermite splines."""

    def __init__(self, channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.initial, self.readout = nn.Linear(channels, hidden), nn.Linear(hidden, classes)
        self.field = nn.Sequential(
            nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, hidden * channels), nn.Tanh()
        )
        self.hidden, self.channels = hidden, channels

    def forward(self, coeffs: Tensor) -> Any:
        import torchcde

        path = torchcde.CubicSpline(coeffs)
        state = torchcde.cdeint(
            X=path,
            func=lambda _, z: self.field(z).view(*z.shape[:-1], self.hidden, self.channels),
            z0=self.initial(path.evaluate(path.interval[0])),
            t=path.interval,
            adjoint=False,
        )
        return self.readout(state[:, 1])


class Curated(Wrapped):
    """An encoder or a decoder of curated-transformers: the last hidden layer, or logits."""

    def forward(self, piece_ids: Tensor, attention_mask: Tensor) -> Any:
        from curated_transformers.layers import AttentionMask

        output = self.model(piece_ids, AttentionMask(attention_mask.bool()))
        return output.logits if hasattr(output, "logits") else output.last_hidden_layer_state


class ProteinLogits(Wrapped):
    """A network of fair-esm that predicts masked residues."""

    def forward(self, tokens: Tensor) -> Any:
        return self.model(tokens)["logits"]


class Chronos(Wrapped):
    """A Chronos-Bolt network: quantiles."""

    def forward(self, context: Tensor) -> Any:
        return self.model(context=context).quantile_preds


class Equivariant(Wrapped):
    """An SE3 transformer: features of type 0 and 1, as its README asks for."""

    def forward(self, feats: Tensor, coors: Tensor) -> Any:
        mask = torch.ones(feats.shape[:2], dtype=torch.bool)
        return self.model(feats, coors, mask, return_type=0)


class Ranking(Wrapped):
    """A ranker of allRank: scores of documents."""

    def forward(self, x: Tensor) -> Any:
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        positions = torch.arange(x.shape[1]).expand(x.shape[:2])
        return self.model.score(x, mask, positions)


class Kspace(Wrapped):
    """A VarNet of fastmri with one mask of sampled columns: every fourth and the centre."""

    def forward(self, masked_kspace: Tensor) -> Any:
        columns = torch.arange(masked_kspace.shape[3])
        centre = (columns - masked_kspace.shape[3] // 2).abs() < 4
        mask = ((columns % 4 == 0) | centre).view(1, 1, 1, -1, 1)
        return self.model(masked_kspace * mask, mask, num_low_frequencies=8)


class SpikingSequence(nn.Module):
    """The convolutional network of norse's README over time steps: the greatest potential of each class."""

    def __init__(self, steps: int, threshold: float, classes: int) -> None:
        import norse.torch as norse

        super().__init__()
        self.steps = steps
        spikes = norse.LIFParameters(v_th=torch.tensor(threshold))
        self.model = norse.SequentialState(
            nn.Conv2d(1, 20, 5, 1), norse.LIFCell(spikes), nn.MaxPool2d(2, 2),
            nn.Conv2d(20, 50, 5, 1), norse.LIFCell(spikes), nn.MaxPool2d(2, 2),
            nn.Flatten(), nn.Linear(800, classes), norse.LICell(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        state, potentials = None, []
        for _ in range(self.steps):
            potential, state = self.model(x, state)
            potentials.append(potential)
        return torch.stack(potentials).amax(0)


class TabularLogits(nn.Module):
    """A model of pytorch-tabular for a table of categories and numbers."""

    def __init__(self, config: Any, cardinality: list[int], numbers: int, classes: int) -> None:
        from omegaconf import OmegaConf
        from pytorch_tabular import models
        from pytorch_tabular.config import DataConfig, InferredConfig, OptimizerConfig, TrainerConfig

        super().__init__()
        random.seed(0)  # it draws from these two besides torch
        np.random.seed(0)
        names = [f"c{index}" for index in range(len(cardinality))]
        data = DataConfig(
            target=["y"],
            categorical_cols=names,
            continuous_cols=[f"n{index}" for index in range(numbers)],
        )
        inferred = InferredConfig(
            categorical_dim=len(names),
            continuous_dim=numbers,
            output_dim=classes,
            output_cardinality=[classes],
            categorical_cardinality=cardinality,
            embedding_dims=[(count, 8) for count in cardinality],
        )
        described = (data, config, TrainerConfig(), OptimizerConfig())
        parts = [OmegaConf.to_container(OmegaConf.structured(one)) for one in described]
        self.model = getattr(models, config._model_name)(
            OmegaConf.merge(*parts), inferred_config=OmegaConf.structured(inferred)
        )
        self.model.eval()
        with torch.no_grad():  # the first call sets thresholds from data
            self(torch.zeros(32, len(names), dtype=torch.long), torch.randn(32, numbers))

    def forward(self, categorical: Tensor, continuous: Tensor) -> Any:
        return self.model({"categorical": categorical, "continuous": continuous})["logits"]


class EnsembleProbabilities(Wrapped):
    """A TabM classifier: the mean of its members' probabilities, as its README predicts."""

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Any:
        return self.model(x_num, x_cat).softmax(-1).mean(1)


class Part(Wrapped):
    """One part of what a Q function or a policy of pfrl returns: `q_values`, `logits` or `mean`."""

    def __init__(self, model: nn.Module, part: str) -> None:
        super().__init__(model)
        self.part = part

    def forward(self, x: Tensor) -> Any:
        return getattr(self.model(x), self.part)


class SpacePolicy(nn.Module):
    """A policy that skrl makes of a description, for an observation space and an action space."""

    def __init__(self, kind: str, observations: int, actions: int, layers: list[int]) -> None:
        import gymnasium
        from skrl.utils.model_instantiators.torch import categorical_model, gaussian_model

        super().__init__()
        self.observations = observations
        make = categorical_model if kind == "categorical" else gaussian_model
        box = gymnasium.spaces.Box(-1, 1, (actions,))
        self.model = make(
            observation_space=gymnasium.spaces.Box(-10, 10, (observations,)),
            action_space=gymnasium.spaces.Discrete(actions) if kind == "categorical" else box,
            device="cpu",
            network=[{"name": "net", "input": "OBSERVATIONS", "layers": layers, "activations": "elu"}],
            output="ACTIONS",
        )

    def forward(self, observations: Tensor) -> Any:
        return self.model.compute({"observations": observations}, "policy")[0]


class Initialized(nn.Module):
    """A module of lazy layers after its first call."""

    def __init__(self, model: nn.Module, shape: list[int]) -> None:
        super().__init__()
        model(torch.zeros(shape))
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Encoded(Wrapped):
    """An encoder of torchscale."""

    def forward(self, src_tokens: Tensor) -> Any:
        return self.model(src_tokens)["encoder_out"]


class Decoded(Wrapped):
    """A decoder of torchscale: logits."""

    def forward(self, prev_output_tokens: Tensor) -> Any:
        return self.model(prev_output_tokens)[0]


class Triples(Wrapped):
    """A knowledge graph embedding of torchkge: scores of triples."""

    def forward(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Any:
        return self.model.scoring_function(heads, tails, relations)


class InvertibleNet(nn.Module):
    """The network of FrEIA's README: latents and the log determinant."""

    def __init__(self, features: int, hidden: int, blocks: int) -> None:
        from FrEIA.framework import SequenceINN
        from FrEIA.modules import AllInOneBlock

        def subnet(before: int, after: int) -> nn.Module:
            return nn.Sequential(nn.Linear(before, hidden), nn.ReLU(), nn.Linear(hidden, after))

        super().__init__()
        np.random.seed(0)
        self.model = SequenceINN(features)
        for _ in range(blocks):
            self.model.append(AllInOneBlock, subnet_constructor=subnet, permute_soft=True)

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class GaussianProcess(nn.Module):
    """The exact regression of gpytorch's README: mean and variance of predictions."""

    def __init__(self, points: int) -> None:
        import gpytorch

        class Exact(gpytorch.models.ExactGP):
            def __init__(self, *data: Any) -> None:
                super().__init__(*data)
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

            def forward(self, x: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        super().__init__()
        times = torch.linspace(0, 1, points)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.model = Exact(times, torch.sin(times * 6.28), self.likelihood)

    def forward(self, x: Tensor) -> Any:
        prediction = self.likelihood(self.model(x))
        return prediction.mean, prediction.variance


class Physics(nn.Module):
    """A network of deepxde, whose backend is PyTorch."""

    def __init__(self, name: str, *sizes: Any) -> None:
        import os

        os.environ.setdefault("DDE_BACKEND", "pytorch")
        import deepxde

        super().__init__()
        self.model = getattr(deepxde.nn, name)(*sizes, "tanh", "Glorot normal")

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Operator(Physics):
    """A DeepONet of deepxde: a function's samples and the places where its image is wanted."""

    def forward(self, branch: Tensor, trunk: Tensor) -> Any:
        return self.model((branch, trunk))


class SeriesOutput(Part):
    """A MOMENT network: one part of its output."""

    def forward(self, x_enc: Tensor) -> Any:
        return getattr(self.model(x_enc=x_enc), self.part)


class Segmentation(nn.Module):
    """An encoder and a decoder of pytorch-toolbelt."""

    def __init__(self, encoder: nn.Module, channels: list[int], classes: int) -> None:
        from pytorch_toolbelt.modules import UNetDecoder

        super().__init__()
        self.encoder = encoder
        self.decoder = UNetDecoder(encoder.get_output_spec(), channels)
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.decoder(self.encoder(x))[0])


class Atoms(Wrapped):
    """A network of e3nn over one molecule: positions, features of the atoms."""

    def forward(self, pos: Tensor, x: Tensor) -> Any:
        return self.model({"pos": pos, "x": x, "batch": pos.new_zeros(pos.shape[0], dtype=torch.long)})


class Contrastive(nn.Module):
    """SimCLR as lightly's examples build it: a backbone and a projection head."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*list(backbone.children())[:-1], nn.AdaptiveAvgPool2d(1))
        self.head = head

    def forward(self, x: Tensor) -> Any:
        return self.head(self.backbone(x).flatten(1))


class Speech(Wrapped):
    """A Whisper network; the positions of its decoder, unset without weights, are drawn."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        nn.init.normal_(model.decoder.positional_embedding, std=0.1)

    def forward(self, mel: Tensor, tokens: Tensor) -> Any:
        return self.model(mel, tokens)
