"""Q/DQ at residual adds for TensorRT: the product's placement beside others, in engines and in accuracy.

    pip install 'qcompile[benchmarks,tensorrt-rtx]' && make resnet18
    python benchmarks/residual_adds.py [MODEL...] [--no-engines]

| placement    | an Add behind a convolution                      | an Add behind a matrix product       |
|--------------|--------------------------------------------------|--------------------------------------|
| residual     | Q/DQ on its residual operand (the product)       | no Q/DQ (the product)                |
| both         | Q/DQ on both operands                            |                                      |
| neither      | no Q/DQ                                          |                                      |
| product too  |                                                  | Q/DQ on the operand that it makes    |

Engines are TensorRT-RTX's, INT8 with FP16 between, batch 1 to 32 (opt 8). Accuracy is that of the graph, INT8
with FP32 between, in ONNX Runtime: same scales and rounding, other kernels. What is exported and trained is
kept in build/benchmarks.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
from accuracy_methods import DIGITS, KEPT, ROOT
from models import lively
from torch import nn

import qcompile
from qcompile.compiler.quantize import methods
from qcompile.compiler.quantize.int8 import tensors_to_calibrate
from qcompile.compiler.quantize.int8.placement import Placement
from qcompile.data.batches import Data
from qcompile.model.graph import constant_names, producers
from qcompile.model.onnx_file import load_onnx
from qcompile.model.output_error import output_error
from qcompile.model.weightless import read_weightless

HERE = Path(__file__).resolve().parent
GPUS = ("sm80", "sm86", "sm89", "sm120")
LAYERS = ("CONVOLUTION", "MATRIX_MULTIPLY", "ELEMENTWISE", "QUANTIZE", "DEQUANTIZE")
CALIBRATED_ON, JUDGED_ON = 16, 16
Change = Callable[[onnx.ModelProto, Placement], Placement]


class Projections(nn.Module):
    """Blocks whose shortcut is a convolution each: [n, 3, 224, 224] to [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = unit(3, 32, 3, stride=4)
        widths = (32, 64, 128, 256)
        self.main = nn.ModuleList(
            nn.Sequential(unit(i, o, 3, stride=2), nn.ReLU(), unit(o, o, 3)) for i, o in pairwise(widths)
        )
        self.side = nn.ModuleList(unit(i, o, 1, stride=2) for i, o in pairwise(widths))
        self.head = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 224, 224], return float32 [n, 10]."""
        x = torch.relu(self.stem(image))
        for main, side in zip(self.main, self.side, strict=True):
            x = torch.relu(main(x) + side(x))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Layers that read all before them (Huang et al. 2017), which has no Add: [n, 3, 224, 224] to [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = unit(3, 32, 3, stride=4)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.ReLU(), unit(32 + 16 * n, 64, 1), nn.ReLU(), unit(64, 16, 3)) for n in range(8)
        )
        self.head = nn.Linear(32 + 16 * 8, 10)

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 224, 224], return float32 [n, 10]."""
        x = self.stem(image)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(torch.relu(x).mean((2, 3)))


def unit(inputs: int, outputs: int, size: int, *, stride: int = 1) -> nn.Sequential:
    """A convolution with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def projections() -> nn.Module:
    """`Projections` with random weights."""
    torch.manual_seed(0)
    return lively(Projections())


def dense() -> nn.Module:
    """`Dense` with random weights."""
    torch.manual_seed(0)
    return lively(Dense())


@dataclass(frozen=True)
class Case:
    """A model: what makes it, its input, samples for calibration and evaluation, whether it is trained."""

    source: str
    inputs: tuple[str, ...] = ("image:[batch,3,224,224]",)
    calibration: str = f"{HERE}/accuracy_methods.py:images"
    evaluation: str = f"{HERE}/accuracy_methods.py:images"
    trained: bool = False


def _digits(source: str) -> Case:
    data = f"{DIGITS}/data.py"
    return Case(source, ("image:[batch,3,32,32]",), f"{data}:calibration", f"{data}:evaluation", trained=True)


CASES = {
    "ResNet-20, digits": _digits(f"{DIGITS}/model.py:build"),
    "ResNet-18, digits": _digits(f"{ROOT}/benchmarks/digits_resnet18/model.py:build"),
    "ResNet-50": Case(f"{HERE}/models.py:resnet50"),
    "MobileNetV2": Case(f"{HERE}/models.py:mobilenetv2"),
    "projections": Case(f"{HERE}/residual_adds.py:projections"),
    "DenseNet, small": Case(f"{HERE}/residual_adds.py:dense"),
    "Transformer, digits": _digits(f"{HERE}/accuracy_methods.py:transformer"),
    "ViT-B/16": Case(f"{HERE}/models.py:vit_b16"),
}


def _both(_: onnx.ModelProto, placement: Placement) -> Placement:
    return replace(placement, fused={})


def _neither(model: onnx.ModelProto, placement: Placement) -> Placement:
    adds = {node.name for node in model.graph.node if node.op_type == "Add"}
    return replace(placement, nodes=tuple(name for name in placement.nodes if name not in adds), fused={})


def _product_too(model: onnx.ModelProto, placement: Placement) -> Placement:
    """As Model-Optimizer places it: the operand that a product makes is quantized, the other is not."""
    made_by, constants = producers(model.graph), constant_names(model)
    residuals = {}
    for node in model.graph.node:
        operands = [name for name in node.input if name not in constants]
        products = [name for name in operands if _of_product(name, made_by, constants)]
        if node.op_type == "Add" and len(operands) == 2 and len(products) == 1:
            residuals[node.name] = next(name for name in operands if name not in products)
    chosen = {*placement.nodes, *residuals}
    nodes = tuple(node.name for node in model.graph.node if node.name in chosen)
    return replace(placement, nodes=nodes, fused=residuals)


def _of_product(name: str, made_by: dict[str, onnx.NodeProto], constants: set[str]) -> bool:
    """Whether a product makes a tensor, through its bias and another shape."""
    node = made_by.get(name)
    while node is not None and (
        node.op_type == "Reshape" or (node.op_type == "Add" and set(node.input) & constants)
    ):
        node = next((made_by[operand] for operand in node.input if operand in made_by), None)
    return node is not None and node.op_type in ("MatMul", "Gemm")


PLACEMENTS: dict[str, Change] = {
    "residual": lambda _, placement: placement,
    "both": _both,
    "neither": _neither,
    "product too": _product_too,
}


@contextmanager
def placed(change: Change) -> Iterator[None]:
    """Let `calibrate` and `quantize` use a changed placement, which the product does not offer."""
    planned = methods.plan

    def plan(model: onnx.ModelProto, *args: Any, **options: Any) -> Placement:
        return change(model, planned(model, *args, **options))

    with mock.patch.object(methods, "plan", plan), mock.patch.object(tensors_to_calibrate, "plan", plan):
        yield


def main() -> None:
    """Measure the models asked for, and print the table."""
    options = asked(str(__doc__), CASES)
    engines = [] if options.no_engines else [f"engine, MB: {gpu}" for gpu in GPUS]
    head = ["model", "placement", "dB", "top-1", *map(str.lower, LAYERS), *engines, "generated programs"]
    print_table(head, options, CASES, measured)


def asked(about: str, cases: Collection[str]) -> argparse.Namespace:
    """Read the command line of a table with rows for models."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="; ".join(cases))
    parser.add_argument("--no-engines", action="store_true", help="accuracy alone")
    return parser.parse_args()


def print_table(
    head: Sequence[str],
    options: argparse.Namespace,
    cases: Mapping[str, Case],
    measured: Callable[..., Iterator[list[str]]],
) -> None:
    """Measure the models asked for, and print each row as soon as it is there."""
    KEPT.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name in options.models or cases:
        for cells in measured(name, cases[name], engines=not options.no_engines):
            print(f"| {' | '.join(cells)} |", flush=True)


def measured(name: str, case: Case, *, engines: bool) -> Iterator[list[str]]:
    """Yield a row for each placement of a model that differs from those before it."""
    model = exported(name, case)
    expected, labels = outputs(case, model)
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        ranges = Path(folder) / "ranges"
        samples = data(case, case.calibration, model, stop=CALIBRATED_ON)
        with placed(_product_too):  # which scales most tensors
            qcompile.calibrate(model, samples, ranges, targets=["tensorrt"])
        for placement, change in PLACEMENTS.items():
            with placed(change):
                graphs = [
                    qcompile.quantize(
                        model, Path(folder) / f"{kind}.onnx", ranges=ranges, target="tensorrt",
                        allow_loss=True, float_precision=kind,  # type: ignore[arg-type]
                    ).path
                    for kind in ("fp32", "fp16")
                ]  # fmt: skip
            if graphs[0].read_bytes() in seen:
                continue
            seen.append(graphs[0].read_bytes())
            found, _ = outputs(case, graphs[0])
            right = expected.argmax(-1) if labels is None else labels
            decibels = output_error(expected, found).snr_db
            accuracy = f"{(found.argmax(-1) == right).mean():.1%}"
            yield [name, placement, f"{decibels:.1f}", accuracy, *_built(graphs[1], case, engines=engines)]


def _built(graph: Path, case: Case, *, engines: bool) -> list[str]:
    """Cells: layers of the parsed network, sizes of engines in MB, programs in the engine for sm86."""
    counts, sizes, programs = parsed_layers(graph), [], ""
    for gpu in GPUS if engines else ():
        artifact = qcompile.build(
            graph,
            graph.with_suffix(".engine"),
            target="tensorrt-rtx",
            precision="int8",
            gpus=[gpu],
            **shapes(case),
        )  # type: ignore[arg-type]
        sizes.append(f"{artifact.path.stat().st_size / 1e6:.2f}")
        if gpu == "sm86":
            programs = str(len(re.findall(rb"[\t\n\r\x20-\x7e]{60000,}", artifact.path.read_bytes())))
        artifact.path.unlink()
    return [*(str(counts[kind]) for kind in LAYERS), *sizes, programs]


def shapes(case: Case) -> dict[str, Any]:
    """Least, usual and largest batch of a model's inputs, as `build` takes them."""
    extents = {}
    for spelled in case.inputs:
        name, shape, *_ = spelled.split(":")
        extents[name] = [int(extent) for extent in shape.strip("[]").split(",")[1:]]
    batches = (("min", 1), ("opt", 8), ("max", 32))
    return {f"{kind}_shapes": {name: (n, *rest) for name, rest in extents.items()} for kind, n in batches}


def parsed_layers(graph: Path) -> Counter[str]:
    """Count the layers of TensorRT-RTX's parsed network by type."""
    import tensorrt_rtx as trt

    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph)):
        sys.exit(f"{graph}: {parser.get_error(0).desc()}")
    return Counter(network.get_layer(n).type.name for n in range(network.num_layers))


def exported(name: str, case: Case) -> Path:
    raw, path = KEPT / "residuals.raw.onnx", KEPT / f"residuals-{re.sub('[^A-Za-z0-9]+', '-', name)}.onnx"
    if not path.exists():
        qcompile.export(case.source, raw, inputs=case.inputs)
        qcompile.simplify(raw, path)
    return path


def data(case: Case, source: str, model: Path, *, stop: int) -> Data:
    """Samples; of generated ones the first calibrate, and the next are judged on."""
    limit = None if case.trained else stop
    return Data(source, read_weightless(model).io.inputs, batch_size=None if case.trained else 1, limit=limit)


def outputs(case: Case, model: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """The first output for all samples of the evaluation, and their labels."""
    found, labels = [], []
    samples = data(case, case.evaluation, model, stop=CALIBRATED_ON + JUDGED_ON)
    graph = load_onnx(model)
    with qcompile.load(model) as runner:
        for number, batch in enumerate(samples):
            if case.trained or number >= CALIBRATED_ON:
                found.append(runner.infer(batch.feeds)[graph.graph.output[0].name])
                labels.append(batch.labels)
    return np.concatenate(found), np.concatenate(labels) if case.trained else None  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
