"""Q/DQ for TensorRT: the product's placement beside others, in engines and in accuracy.

    pip install 'qcompile[benchmarks,tensorrt-rtx]' && make resnet18
    python benchmarks/tensorrt_placement.py [MODEL...] [--no-engines]

| placement    | what it is                                                                        |
|--------------|-----------------------------------------------------------------------------------|
| product      | qcompile's: Q/DQ on the residual operand of an add behind a convolution            |
| both         | Q/DQ on both operands of such an add                                              |
| neither      | no Q/DQ at adds                                                                   |
| product too  | Q/DQ on the operand of an add that a matrix product makes                         |
| every layer  | layers without a good INT8 kernel too                                             |
| no Mul       | squeeze and excite in float                                                       |
| own scales   | a scale for each operand of Concat, MaxPool and Resize                            |

Engines are TensorRT-RTX's for sm86, INT8 with FP16 between, batch 1 to 32 (opt 8). Accuracy is that of the
graph, INT8 with FP32 between, in ONNX Runtime: same scales and rounding, other kernels. Models with random
weights have no accuracy. What is exported stays in build/benchmarks.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

import qcompile
from qcompile.compiler.quantize import calibrate, methods
from qcompile.compiler.quantize.int8 import static
from qcompile.compiler.quantize.int8.placement import Placement
from qcompile.compiler.quantize.int8.tensorrt import Between, TensorRTKernels
from qcompile.data.batches import Data
from qcompile.model.graph import constant_names, producers, weighted_nodes
from qcompile.model.judgement import output_error
from qcompile.model.onnx_file import read_weightless

HERE = Path(__file__).resolve().parent
EXPORTED = HERE.parent / "build/benchmarks"
DIGITS = HERE.parent / "examples/digits"
CALIBRATED_ON, JUDGED_ON = 16, 16
Change = Callable[[onnx.ModelProto, Placement], Placement]


@dataclass(frozen=True)
class Case:
    """A model: its source, samples for calibration and evaluation, extents of an image."""

    source: str
    calibration: str = f"{HERE}/samples.py:images"
    evaluation: str = f"{HERE}/samples.py:images"
    size: int = 224
    trained: bool = False


def _digits(source: str) -> Case:
    return Case(source, f"{DIGITS}/data.py:calibration", f"{DIGITS}/data.py:evaluation", 32, trained=True)


CASES = {
    "ResNet-20, digits": _digits(f"{DIGITS}/model.py:build"),
    "ResNet-18, digits": _digits(f"{HERE}/digits_resnet18/model.py:build"),
    **{
        name: Case(f"{HERE}/models.py:{name}")
        for name in ("resnet50", "mobilenetv2", "efficientnet_b0", "vit_b16")
    },
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
    nodes = {*placement.nodes, *residuals}
    ordered = tuple(node.name for node in model.graph.node if node.name in nodes)
    return replace(placement, nodes=ordered, fused=residuals)


def _of_product(name: str, made_by: dict[str, onnx.NodeProto], constants: set[str]) -> bool:
    """Whether a product makes a tensor, through its bias and another shape."""
    node = made_by.get(name)
    while node is not None and (
        node.op_type == "Reshape" or (node.op_type == "Add" and set(node.input) & constants)
    ):
        node = next((made_by[operand] for operand in node.input if operand in made_by), None)
    return node is not None and node.op_type in ("MatMul", "Gemm")


def _planned(change: Change) -> list[Any]:
    """Patches with which `calibrate` and `quantize` use a changed placement."""
    planned = methods.plan

    def plan(model: onnx.ModelProto, *args: Any, **options: Any) -> Placement:
        return change(model, planned(model, *args, **options))

    return [mock.patch.object(module, "plan", plan) for module in (methods, calibrate)]


def _without(operator: str) -> list[Any]:
    quantizes = Between.quantizes

    def decide(self: Between, node: onnx.NodeProto, planned: Any) -> bool:
        return node.op_type != operator and quantizes(self, node, planned)

    return [mock.patch.object(Between, "quantizes", decide)]


PLACEMENTS: dict[str, Callable[[], list[Any]]] = {
    "product": list,
    "both": lambda: _planned(_both),
    "neither": lambda: _planned(_neither),
    "product too": lambda: _planned(_product_too),
    "every layer": lambda: [mock.patch.object(TensorRTKernels, "unfit", return_value=None)],
    "no Mul": lambda: _without("Mul"),
    "own scales": lambda: [mock.patch.object(static, "share_scales")],
}


def measured(name: str, case: Case, *, engines: bool) -> Iterator[list[str]]:
    """Yield a row for each placement of a model that differs from those before it."""
    model = _exported(name, case)
    expected, labels = _outputs(case, model)
    graphs_seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        ranges = Path(folder) / "ranges"
        with _patched("product too"):  # which scales most tensors
            qcompile.calibrate(
                model, _data(case, case.calibration, model, CALIBRATED_ON), ranges, targets=["tensorrt"]
            )
        for placement in PLACEMENTS:
            with _patched(placement):
                whole, half = (
                    _quantized(model, Path(folder) / f"{kind}.onnx", ranges, kind)
                    for kind in ("fp32", "fp16")
                )
            if whole.read_bytes() in graphs_seen:
                continue
            graphs_seen.append(whole.read_bytes())
            outputs, _ = _outputs(case, whole)
            counts = {kind: len(nodes) for kind, nodes in weighted_nodes(onnx.load(half)).items()}
            pairs = sum(node.op_type == "QuantizeLinear" for node in onnx.load(half).graph.node)
            cells = [name, placement, str(counts["int8"]), str(counts["fp16"]), str(pairs)]
            cells.append(f"{output_error(expected, outputs).snr_db:.1f}")
            cells.append(f"{(outputs.argmax(-1) == labels).mean():.1%}" if case.trained else "")
            yield [*cells, *(_engine(half, case) if engines else ())]


def _patched(placement: str) -> ExitStack:
    stack = ExitStack()
    for patch in PLACEMENTS[placement]():
        stack.enter_context(patch)
    return stack


def _quantized(model: Path, output: Path, ranges: Path, kind: Any) -> Path:
    return qcompile.quantize(
        model, output, ranges=ranges, target="tensorrt", allow_loss=True, float_precision=kind
    ).path


def _engine(graph: Path, case: Case) -> tuple[str, str]:
    """Size in MB, and generated programs, of the engine for sm86."""
    shapes = {
        f"{kind}_shapes": {"image": (rows, 3, case.size, case.size)}
        for kind, rows in (("min", 1), ("opt", 8), ("max", 32))
    }
    built = qcompile.build(
        graph, graph.with_suffix(".engine"), target="tensorrt-rtx", precision="int8", gpus=["sm86"],
        **shapes,  # type: ignore[arg-type]
    )  # fmt: skip
    content = built.path.read_bytes()
    return f"{len(content) / 1e6:.2f}", str(len(re.findall(rb"[\t\n\r\x20-\x7e]{60000,}", content)))


def _exported(name: str, case: Case) -> Path:
    raw, path = (
        EXPORTED / "placement.raw.onnx",
        EXPORTED / f"placement-{re.sub('[^A-Za-z0-9]+', '-', name)}.onnx",
    )
    if not path.exists():
        qcompile.export(case.source, raw, inputs=[f"image:[batch,3,{case.size},{case.size}]"])
        qcompile.simplify(raw, path)
    return path


def _data(case: Case, source: str, model: Path, stop: int) -> Data:
    """Samples; of generated ones the first calibrate, and the next are judged on."""
    limit = None if case.trained else stop
    return Data(source, read_weightless(model).io.inputs, batch_size=None if case.trained else 1, limit=limit)


def _outputs(case: Case, model: Path) -> tuple[np.ndarray[Any, Any], Any]:
    """The first output for all samples of the evaluation, and their labels."""
    outputs, labels = [], []
    samples = _data(case, case.evaluation, model, CALIBRATED_ON + JUDGED_ON)
    with qcompile.load(model) as runner:
        for batch in islice(samples, 0 if case.trained else CALIBRATED_ON, None):
            outputs.append(next(iter(runner.infer(batch.feeds).values())))
            labels.append(batch.labels)
    return np.concatenate(outputs), np.concatenate(labels) if case.trained else None  # type: ignore[arg-type]


def main() -> None:
    """Measure the models that are named, and print each row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="; ".join(CASES))
    parser.add_argument("--no-engines", action="store_true", help="accuracy alone")
    options = parser.parse_args()
    head = ["model", "placement", "int8", "fp16", "quantize", "dB", "accuracy"]
    head += [] if options.no_engines else ["engine, MB", "generated programs"]
    EXPORTED.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name in options.models or CASES:
        for cells in measured(name, CASES[name], engines=not options.no_engines):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
