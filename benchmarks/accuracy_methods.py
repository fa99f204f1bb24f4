"""What equalization, smoothing and bias correction bring to the accuracy of static INT8.

    .venv/bin/python benchmarks/accuracy_methods.py                      # all that can be made here
    .venv/bin/python benchmarks/accuracy_methods.py digits rescaled      # two of the models

| model       | what it is                                                                                |
|-------------|-------------------------------------------------------------------------------------------|
| digits      | examples/digits: ResNet-20                                                                |
| resnet18    | benchmarks/digits_resnet18, after make resnet18                                           |
| mobile      | depthwise separable convolutions with ReLU, trained here on the digits                    |
| rescaled    | the same function, channels multiplied by 2^u, u uniform in -4 to 4, and divided again     |
| transformer | a pre-norm Transformer, trained here on the digits                                        |
| outliers    | the same function, three channels of every LayerNorm 32 times as large                    |
| mobilenetv2 | random weights, BatchNorm's statistics measured (needs transformers)                      |
| bert        | BERT-base, random weights (needs transformers)                                            |

Weights that are trained here, and exported files, are kept in build/benchmarks. The graphs for TensorRT
are run by ONNX Runtime: same scales, same rounding, other kernels. SNR is that of the outputs against the
float model; accuracy is counted on 500 images never seen. Models with random weights have none: their
column says how often the largest output is the float model's.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import qcompile
from qcompile.compiler.quantize.activations import channel_amax
from qcompile.compiler.quantize.balance.equalize import equalizable, equalize
from qcompile.compiler.quantize.balance.rows import Rows, observe_rows
from qcompile.compiler.quantize.balance.smooth import smooth, smoothable
from qcompile.compiler.quantize.int8.bias_correction import correct_biases
from qcompile.data.batches import Data
from qcompile.model.onnx_file import load_onnx, save_onnx
from qcompile.model.output_error import output_error
from qcompile.model.weightless import read_weightless

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build/benchmarks"
DIGITS = ROOT / "examples/digits"
RESNET18 = ROOT / "benchmarks/digits_resnet18"
TARGETS = ("onnxruntime", "tensorrt")
SAMPLES = 64
UNTRAINED_SAMPLES = 16
EPOCHS = 30

Arrays = np.ndarray[Any, Any]


class Seen:
    """What calibration's samples hold at the tensors that can be balanced."""

    def __init__(self, model: onnx.ModelProto, path: Path, data: Data) -> None:
        self.amax: dict[str, Arrays] = channel_amax(path, equalizable(model), data, SAMPLES)
        self.rows: dict[str, Rows] = observe_rows(model, path, smoothable(model), data, SAMPLES)


# --- models that are trained here


class Transformer(nn.Module):
    """Pre-norm encoder on the 16 patches of one channel: [n, 3, 32, 32] to logits [n, 10]."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.position = nn.Parameter(torch.randn(16, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 32, 32], return float32 [n, 10]."""
        patches = image[:, 0].reshape(-1, 4, 8, 4, 8).transpose(2, 3).reshape(-1, 16, 64)
        tokens = self.embed(patches) + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(self.norm(tokens)).mean(1)


class EncoderLayer(nn.Module):
    """Attention with 4 heads and a GELU network, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Take and return float32 [n, 16, width]."""
        normal = self.norm1(tokens)
        heads = [m(normal).reshape(-1, 16, 4, 16).transpose(1, 2) for m in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(-1, 16, 64))
        hidden: torch.Tensor = tokens + self.down(nn.functional.gelu(self.up(self.norm2(tokens))))
        return hidden

    def groups(self) -> list[tuple[nn.LayerNorm, list[nn.Linear]]]:
        """The LayerNorms and who reads them."""
        return [(self.norm1, [self.query, self.key, self.value]), (self.norm2, [self.up])]


def _mobile() -> nn.Sequential:
    """MobileNet (Howard et al. 2017) for 32x32 images, in small: [n, 3, 32, 32] to logits [n, 10]."""
    layers: list[nn.Module] = [*_convolution(3, 16, 3, stride=2)]
    for inputs, outputs, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += _convolution(inputs, inputs, 3, stride=stride, groups=inputs)
        layers += _convolution(inputs, outputs, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def _convolution(
    inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def mobile() -> nn.Module:
    """The trained MobileNet."""
    return _trained(_mobile, "mobile-digits", rate=3e-3)


def rescaled() -> nn.Module:
    """The same function; each channel between two convolutions is multiplied and divided again."""
    model = mobile()
    generator = torch.Generator().manual_seed(0)
    stages = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    with torch.no_grad():
        for norm, behind in zip(stages[1:-1:2], stages[2::2], strict=True):
            assert isinstance(norm, nn.BatchNorm2d)
            assert isinstance(behind, nn.Conv2d)
            factors = torch.exp2(torch.rand(norm.num_features, generator=generator) * 8 - 4)
            norm.weight *= factors
            norm.bias *= factors
            behind.weight /= factors.reshape((-1, 1, 1, 1) if behind.groups > 1 else (1, -1, 1, 1))
    return model


def transformer() -> nn.Module:
    """The trained Transformer."""
    return _trained(Transformer, "transformer-digits", rate=2e-3)


def outliers() -> nn.Module:
    """The same function; three channels of each LayerNorm are 32 times as large."""
    model = transformer()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm, readers in [g for layer in model.layers for g in layer.groups()]:  # type: ignore[union-attr]
            chosen = torch.randperm(64, generator=generator)[:3]
            norm.weight[chosen] *= 32
            norm.bias[chosen] *= 32
            for reader in readers:
                reader.weight[:, chosen] /= 32
    return model


def mobilenetv2() -> nn.Module:
    """MobileNetV2 of benchmarks/models.py."""
    model: nn.Module = _load(Path(__file__).with_name("models.py")).mobilenetv2()
    return model


def bert() -> nn.Module:
    """BERT-base of benchmarks/models.py."""
    model: nn.Module = _load(Path(__file__).with_name("models.py")).bert()
    return model


def _trained(make: Callable[[], nn.Module], name: str, *, rate: float) -> nn.Module:
    """The model with the weights in build/benchmarks, which are trained first where they are not there."""
    path = KEPT / f"{name}.safetensors"
    torch.manual_seed(0)
    model = make()
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        images, labels = map(torch.from_numpy, _load(DIGITS / "data.py").training())
        _train(model, images, labels, rate)
        save_file(model.state_dict(), path)
    model.load_state_dict(load_file(path))
    return model.eval()


def _train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float) -> None:
    steps = EPOCHS * (len(labels) // 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(labels), (32,))
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"accuracy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- samples of the models with random weights


def images() -> Iterator[dict[str, Arrays]]:
    """Yield smooth images, float32 [1, 3, 224, 224]: noise in 8x8 blocks and finer noise over it."""
    generator = np.random.default_rng(0)
    for _ in range(2 * UNTRAINED_SAMPLES):
        coarse = generator.standard_normal((1, 3, 28, 28)).repeat(8, 2).repeat(8, 3)
        yield {"image": (coarse + 0.3 * generator.standard_normal(coarse.shape)).astype(np.float32)}


def tokens() -> Iterator[dict[str, Arrays]]:
    """Yield 128 tokens of BERT's vocabulary, all attended to."""
    generator = np.random.default_rng(0)
    for _ in range(2 * UNTRAINED_SAMPLES):
        yield {"tokens": generator.integers(0, 30000, (1, 128)), "mask": np.ones((1, 128), np.int64)}


# --- methods: what is done to the float model, and whether biases are corrected afterwards


def _equalize_by_activations(model: onnx.ModelProto, seen: Seen) -> str:
    return f"{equalize(model, seen.amax)} pairs"


def _smooth(model: onnx.ModelProto, seen: Seen) -> str:
    return f"{len(smooth(model, seen.rows).places)} places"


def _smooth_and_equalize(model: onnx.ModelProto, seen: Seen) -> str:
    return f"{_smooth(model, seen)}, {_equalize_by_activations(model, seen)}"


METHODS: dict[str, tuple[Callable[[onnx.ModelProto, Seen], str] | None, bool]] = {
    "none": (None, False),
    "bias correction": (None, True),
    "equalize, by activations": (_equalize_by_activations, False),
    "smooth": (_smooth, False),
    "smooth, equalize by activations": (_smooth_and_equalize, False),
    "all three": (_smooth_and_equalize, True),
}


class Subject:
    """A model with its samples."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trained = name not in ("mobilenetv2", "bert")
        here = Path(__file__).resolve()
        example = {"digits": DIGITS, "resnet18": RESNET18}.get(name)
        self.source = f"{example}/model.py:build" if example else f"{here}:{name}"
        self.calibration = self.evaluation = f"{here}:{'tokens' if name == 'bert' else 'images'}"
        if self.trained:
            self.calibration, self.evaluation = (
                f"{DIGITS}/data.py:{n}" for n in ("calibration", "evaluation")
            )
            self.inputs = ["image:[batch,3,32,32]"]
        else:
            self.inputs = ["image:1x3x224x224"]
            if name == "bert":
                self.inputs = ["tokens:1x128:int64:max=29999", "mask:1x128:int64:max=1"]

    def exported(self) -> Path:
        """The simplified float file, kept where it takes long to make."""
        raw, path = KEPT / f"accuracy-{self.name}.raw.onnx", KEPT / f"accuracy-{self.name}.onnx"
        if self.name == "bert":
            path = KEPT / "bert.onnx"  # the one that the other benchmarks keep
        if self.trained or not path.exists():
            qcompile.export(self.source, raw, inputs=self.inputs)
            qcompile.simplify(raw, path)
        return path

    def outputs(self, model: Path) -> tuple[Arrays, Arrays | None]:
        """The first output for all samples of the evaluation, and their labels."""
        found, labels = [], []
        data = Data(self.evaluation, read_weightless(model).io.inputs)
        with qcompile.load(model) as runner:
            for number, batch in enumerate(data):
                if self.trained or number >= UNTRAINED_SAMPLES:  # the first half calibrates
                    found.append(next(iter(runner.infer(batch.feeds).values())))
                    labels.append(batch.labels)
        return np.concatenate(found), np.concatenate(labels) if self.trained else None

    def data(self, model: Path) -> Data:
        """The samples of the calibration."""
        limit = None if self.trained else UNTRAINED_SAMPLES
        return Data(self.calibration, read_weightless(model).io.inputs, batch_size=1, limit=limit)


def measure(subject: Subject, calibration: str) -> None:
    """Print the table of one model."""
    model = subject.exported()
    reference, labels = subject.outputs(model)
    right = reference.argmax(-1) if labels is None else labels
    kind = "argmax as FP32" if labels is None else "accuracy"
    print(f"\n{subject.name}: FP32 {(reference.argmax(-1) == right).mean():.2%}, calibrated by {calibration}")
    print(f"| method | {' | '.join(f'{t}: {kind} | SNR' for t in TARGETS)} | done | seconds |")
    print("|---|" + "---|" * (2 * len(TARGETS) + 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for method, (transform, correct) in METHODS.items():
            started = time.perf_counter()
            proto = load_onnx(model)
            said = ""
            if transform is not None:
                said = transform(proto, Seen(proto, model, subject.data(model)))
                if not re.search("[1-9]", said):
                    print(f"| {method} |{' |' * 2 * len(TARGETS)} {said}: nothing changes | |", flush=True)
                    continue
            changed, ranges = folder / "changed.onnx", folder / "changed.ranges"
            save_onnx(proto, changed)
            took_s = time.perf_counter() - started
            qcompile.calibrate(changed, subject.data(changed), ranges, method=calibration)
            cells, biases = [], ""
            for target in TARGETS:
                path = folder / f"{target}.onnx"
                qcompile.quantize(changed, path, ranges=ranges, target=target)  # type: ignore[arg-type]
                if correct:
                    started = time.perf_counter()
                    better, count = correct_biases(changed, load_onnx(path), subject.data(changed), SAMPLES)
                    took_s += time.perf_counter() - started
                    biases = f"{count} biases"
                    path = folder / f"{target}.corrected.onnx"
                    save_onnx(better, path)
                found, _ = subject.outputs(path)
                same = (found.argmax(-1) == right).mean()
                cells += [f"{same:.2%}", f"{output_error(reference, found).snr_db:.2f} dB"]
            done = ", ".join(filter(None, (said, biases)))
            print(f"| {method} | {' | '.join(cells)} | {done} | {took_s:.1f} |", flush=True)


def main() -> None:
    """Measure the models asked for."""
    names = ["digits", "resnet18", "mobile", "rescaled", "transformer", "outliers", "mobilenetv2", "bert"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(names))
    parser.add_argument("--method", default="auto", help="of the calibration")
    options = parser.parse_args()
    unknown = set(options.models) - set(names)
    if unknown:
        sys.exit(f"{min(unknown)}: known are {', '.join(names)}")
    asked = options.models or names
    for name in asked:
        if name == "resnet18" and not (RESNET18 / "resnet18.safetensors").exists():
            print("\nresnet18: left out; make resnet18 trains it")
        elif name in ("mobilenetv2", "bert") and importlib.util.find_spec("transformers") is None:
            print(f"\n{name}: left out; pip install transformers")
        else:
            measure(Subject(name), options.method)


if __name__ == "__main__":
    main()
