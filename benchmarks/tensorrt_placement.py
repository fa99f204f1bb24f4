"""What TensorRT gets in INT8 beside residual adds: the product's placement, and the same without each rule.

    pip install --no-deps rapidocr-onnxruntime==1.4.4; pip install 'qcompile[real,tensorrt-rtx]'
    python benchmarks/tensorrt_placement.py [MODEL...]

| placement     | what it is                                                                         |
|---------------|------------------------------------------------------------------------------------|
| product       | qcompile's                                                                         |
| every layer   | layers without a good INT8 kernel too                                              |
| no Mul        | squeeze and excite in float                                                        |
| no Resize     | Resize in float                                                                    |
| own scales    | a scale for each operand of Concat, MaxPool and Resize                             |
| all sums      | a convolution that is the residual of ConvNeXt gets pairs on both operands          |
| before        | all of these                                                                       |

Engines are TensorRT-RTX's for sm86, with FP16 between; accuracy is that of the graph with FP32 between, in
ONNX Runtime. The networks for digits are trained here, and kept in build/benchmarks.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import accuracy_methods
import onnx
import torch
from accuracy_methods import KEPT, _trained
from real_networks import NETWORKS, pinned
from residual_adds import (
    CALIBRATED_ON,
    Case,
    _digits,
    asked,
    exported,
    outputs,
    parsed_layers,
    print_table,
    shapes,
)
from residual_adds import CASES as RESIDUAL
from torch import nn

import qcompile
from qcompile.compiler.quantize.int8 import static
from qcompile.compiler.quantize.int8.between import Between
from qcompile.compiler.quantize.int8.residuals import ResidualAdds
from qcompile.compiler.quantize.int8.tensorrt_kernels import TensorRTKernels
from qcompile.model.graph import weighted_nodes
from qcompile.model.output_error import output_error

HERE = Path(__file__).resolve().parent
accuracy_methods.EPOCHS = 8
PLACEMENTS = ("product", "every layer", "no Mul", "no Resize", "own scales", "all sums", "before")


def unit(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution with BatchNorm and SiLU."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Excited(nn.Module):
    """EfficientNet's block: depthwise convolution, squeeze and excite, projection, residual add."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = 4 * inputs
        self.first = nn.Sequential(unit(inputs, width, 1), unit(width, width, 3, stride, width))
        self.squeeze, self.excite = nn.Conv2d(width, inputs, 1), nn.Conv2d(inputs, width, 1)
        self.last = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds = inputs == outputs and stride == 1

    def forward(self, x: torch.Tensor) -> Any:
        """Take float32 [n, inputs, h, w], return float32 [n, outputs, h / stride, w / stride]."""
        y = self.first(x)
        gate = torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.last(y * gate) if self.adds else self.last(y * gate)


class Split(nn.Module):
    """YOLOv8's block: halves, residual blocks on one of them, concatenation of all."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first, self.last = unit(inputs, outputs, 1), unit(4 * half, outputs, 1)
        self.blocks = nn.ModuleList(nn.Sequential(unit(half, half), unit(half, half)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        """Take float32 [n, inputs, h, w], return float32 [n, outputs, h, w]."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """A detector's backbone and neck (C2f, SPPF, a Resize) with a classifier: [n, 3, 32, 32] to [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(unit(3, 32, 3, 2), unit(32, 64), Split(64, 64))
        self.coarse = nn.Sequential(unit(64, 96, 3, 2), Split(96, 96), unit(96, 128, 3, 2), Split(128, 64))
        self.pools, self.merged, self.head = unit(256, 128, 1), Split(128 + 64, 96), nn.Linear(96 + 128, 10)

    def forward(self, image: torch.Tensor) -> Any:
        """Take float32 [n, 3, 32, 32], return float32 [n, 10]."""
        fine = self.fine(image)
        parts = [self.coarse(fine)]
        for _ in range(3):
            parts.append(nn.functional.max_pool2d(parts[-1], 5, 1, 2))
        coarse = self.pools(torch.cat(parts, 1))
        fine = self.merged(torch.cat([nn.functional.interpolate(coarse, scale_factor=4.0), fine], 1))
        return self.head(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1))


class Next(nn.Module):
    """ConvNeXt's block behind its downsampling: [n, inputs, h, w] to [n, width, h / 2, w / 2]."""

    def __init__(self, inputs: int, width: int, size: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(inputs, width, size, size)
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.LayerNorm(width)
        self.up, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> Any:
        """Take and return float32 images."""
        x = self.down(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.out(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)


def _headed(width: int, *layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def excited() -> nn.Module:
    """A small EfficientNet, trained."""
    sizes = ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 2), (96, 96, 1))
    blocks = [Excited(*size) for size in sizes]
    return _trained(lambda: _headed(192, unit(3, 32, 3, 2), *blocks, unit(96, 192, 1)), "excited", rate=2e-3)


def pyramid() -> nn.Module:
    """`Pyramid`, trained."""
    return _trained(Pyramid, "pyramid", rate=2e-3)


def convnext() -> nn.Module:
    """A small ConvNeXt, trained."""
    return _trained(
        lambda: _headed(128, Next(3, 32, 4), Next(32, 64, 2), Next(64, 128, 2)), "next", rate=1e-3
    )


CASES = {
    **{name: RESIDUAL[name] for name in ("ResNet-20, digits", "Transformer, digits")},
    **{f"{name.__name__}, digits": _digits(f"{HERE}/tensorrt_placement.py:{name.__name__}")
       for name in (excited, pyramid, convnext)},
    "text detector": Case("detector", ("x:[batch,3,480,480]",), *[f"{HERE}/real_networks.py:pages"] * 2),
}  # fmt: skip

_quantizes, _closes = Between.quantizes, ResidualAdds.closes


def _without(operator: str) -> Any:
    def quantizes(self: Between, node: onnx.NodeProto, planned: Any) -> bool:
        return node.op_type != operator and _quantizes(self, node, planned)

    return mock.patch.object(Between, "quantizes", quantizes)


def _all_sums(self: ResidualAdds, node: onnx.NodeProto, planned: Any) -> bool:
    with mock.patch.object(ResidualAdds, "_branch", return_value=set()):
        return _closes(self, node, planned)


def _patched(placement: str) -> ExitStack:
    """The product without one rule, or for "before" without any."""
    every = {
        "every layer": mock.patch.object(TensorRTKernels, "unfit", return_value=None),
        "no Mul": _without("Mul"),
        "no Resize": _without("Resize"),
        "own scales": mock.patch.object(static, "share_scales"),
        "all sums": mock.patch.object(ResidualAdds, "closes", _all_sums),
        "before": mock.patch.object(Between, "quantizes", return_value=False),
    }
    stack = ExitStack()
    for name in every if placement == "before" else every.keys() & {placement}:
        stack.enter_context(every[name])
    return stack


def measured(name: str, case: Case, *, engines: bool) -> Iterator[list[str]]:
    """Yield a row for each placement of a model that differs from those before it."""
    network = NETWORKS.get(case.source)
    model = KEPT / "placement-detector.onnx" if network else exported(name, case)
    if not model.exists():
        qcompile.simplify(pinned(case.source), model)
    expected, labels = outputs(case, model)
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        count = None if case.trained else CALIBRATED_ON
        with _patched("all sums"):  # which scales most tensors
            ranges = qcompile.calibrate(
                model, case.calibration, Path(folder) / "ranges", samples=count, targets=["tensorrt"]
            ).path
        for placement in PLACEMENTS:
            with _patched(placement):
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
            counts = {kind: len(nodes) for kind, nodes in weighted_nodes(onnx.load(graphs[1])).items()}
            if network:
                metric = network.metric(list(expected[:, None]), list(found[:, None])) / 100
            else:
                metric = (found.argmax(-1) == labels).mean()
            decibels, pairs = output_error(expected, found).snr_db, parsed_layers(graphs[1])["QUANTIZE"]
            cells = [name, placement, str(counts["int8"]), str(counts["fp16"]), str(pairs), f"{decibels:.1f}"]
            yield [*cells, f"{metric:.1%}", *(_engine(graphs[1], case) if engines else ())]


def _engine(graph: Path, case: Case) -> tuple[str, str]:
    """Size in MB, and programs, of the engine for sm86."""
    built = qcompile.build(
        graph, graph.with_suffix(".engine"), target="tensorrt-rtx", precision="int8", gpus=["sm86"],
        **shapes(case),
    )  # fmt: skip
    content = built.path.read_bytes()
    return f"{len(content) / 1e6:.2f}", str(len(re.findall(rb"[\t\n\r\x20-\x7e]{60000,}", content)))


def main() -> None:
    """Measure the models asked for, and print the table."""
    options = asked(str(__doc__), CASES)
    head = ["model", "placement", "int8", "fp16", "quantize", "dB", "accuracy"]
    head += [] if options.no_engines else ["engine, MB", "generated programs"]
    print_table(head, options, CASES, measured)


if __name__ == "__main__":
    main()
