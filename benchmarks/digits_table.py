"""Every kind of quantization on a trained network: the tables of docs/quantization.md.

    python benchmarks/digits_table.py digits       # ResNet-20; resnet18: after make resnet18

Latency is of the batch given, 2 threads, in one interleaved run; accuracy is counted on 500 images that
neither training nor calibration has seen, so one image is 0.2 points. FP16 is for GPUs: its graph is run by
ONNX Runtime for its accuracy alone. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

import qcompile
from qcompile.bench.results.render import speedup_text

ROOT = Path(__file__).resolve().parents[1]
QAT_EPOCHS = 1
SHAPE = ["image:[batch,3,32,32]"]


def load(path: Path) -> Any:
    """Import an example's file."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(path.parent))
    return module


def trained_again(example: Path) -> Any:
    """Fine-tune with fake quantization for one epoch, and return the converted module."""
    import torch

    torch.manual_seed(0)
    model = load(example / "model.py").build()
    model = model[0] if isinstance(model, tuple) else model
    images, labels = map(torch.from_numpy, load(example / "data.py").training())
    prepared = qcompile.qat.prepare(model, images[:2], target="openvino")
    # Batches of 32 know less of the data than the statistics of the whole training do.
    qcompile.qat.freeze(prepared, ranges=False)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-5, momentum=0.9)
    for _ in range(QAT_EPOCHS):
        for chosen in torch.randperm(len(labels)).split(32):
            loss = torch.nn.functional.cross_entropy(prepared(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return qcompile.qat.convert(prepared)


def make(example: Path, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Make every artifact; return title to file, and the titles that are for accuracy alone."""
    data = f"{example}/data.py:calibration"
    raw, model, ranges = folder / "raw.onnx", folder / "model.onnx", folder / "model.ranges"
    qcompile.export(f"{example}/model.py:build", raw, inputs=SHAPE)
    qcompile.simplify(raw, model)
    qcompile.calibrate(model, data, ranges)
    graphs: dict[str, tuple[Path, str, str]] = {
        "ONNX Runtime, FP32": (model, "onnxruntime", "fp32"),
        "OpenVINO, FP32": (model, "openvino", "fp32"),
        "OpenVINO, BF16": (model, "openvino", "bf16"),
    }

    def quantized(title: str, target: str, precision: str, **options: Any) -> None:
        path = folder / f"graph{len(graphs)}.onnx"
        qcompile.quantize(model, path, target=target, precision=precision, data=data, **options)  # type: ignore[arg-type]
        graphs[title] = (path, target, precision)

    quantized("FP16", "tensorrt", "fp16")
    quantized("dynamic INT8, ONNX Runtime", "onnxruntime", "int8", mode="dynamic")
    quantized("static INT8, ONNX Runtime", "onnxruntime", "int8", ranges=ranges)
    quantized("static INT8, OpenVINO", "openvino", "int8", ranges=ranges)
    for rounding in ("rtn", "gptq"):
        title = f"INT4 weights, {rounding.upper()}"
        quantized(title, "tensorrt", "int4", mode="weights", rounding=rounding)
    qat = folder / "qat.onnx"
    qcompile.export(trained_again(example), qat, inputs=SHAPE, target="openvino")
    graphs["QAT INT8, OpenVINO"] = (qat, "openvino", "int8")
    built: dict[str, Path] = {}
    for title, (graph, target, precision) in graphs.items():
        built[title] = graph
        if target != "tensorrt":
            built[title] = folder / f"{title.replace(' ', '-').replace(',', '')}.onnx"
            qcompile.build(graph, built[title], target=target, precision=precision)
    return built, [title for title, (_, target, _) in graphs.items() if target == "tensorrt"]


def main() -> None:
    """Make, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("example", choices=["digits", "resnet18"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-time", type=float, default=120.0)
    options = parser.parse_args()
    places = {"digits": "examples/digits", "resnet18": "benchmarks/digits_resnet18"}
    example, folder = ROOT / places[options.example], ROOT / "build/benchmarks" / options.example
    folder.mkdir(parents=True, exist_ok=True)
    built, alone = make(example, folder)
    evaluation = f"{example}/data.py:evaluation"
    eager = f"{example}/model.py:build"
    results = qcompile.benchmark(
        {"PyTorch eager, FP32": eager}
        | {title: str(path) for title, path in built.items() if title not in alone},
        baseline="PyTorch eager, FP32",
        batch_size=options.batch_size,
        threads=2,
        data=evaluation,
        evaluation=evaluation,
        max_time_s=options.max_time,
    )
    values = {row.name: row.accuracy for row in results.rows}
    base = values["PyTorch eager, FP32"]
    assert base is not None
    size = sum(
        tensor.numel() * tensor.element_size()
        for tensor in load(example / "model.py").build().state_dict().values()
    )
    print(f"{options.example}, batch {options.batch_size}, 2 threads, FP32 {base.value:.2%}")
    print("| method | latency, ms | speed-up | MB | reduction | accuracy | drop, points |")
    print("|---|---|---|---|---|---|---|")
    for row in results.rows:
        assert row.latency is not None
        assert row.accuracy is not None
        assert row.accuracy.drop is not None
        ratio = " ".join(speedup_text(row.speedup)) if row.speedup else "1.00×"
        bytes_ = row.size_bytes or size
        print(
            f"| {row.name} | {row.latency.median_ms:.2f} | {ratio} | {bytes_ / 1e6:.2f} | "
            f"{size / bytes_:.1f}x | {row.accuracy.value:.2%} | {row.accuracy.drop.value:+.1f} |"
        )
    for title in alone:
        value = accuracy(built[title], evaluation)
        bytes_ = built[title].stat().st_size
        print(
            f"| {title} | | | {bytes_ / 1e6:.2f} | {size / bytes_:.1f}x | {value:.2%} | "
            f"{(base.value - value) * 100:+.1f} |"
        )


def accuracy(path: Path, evaluation: str) -> float:
    """Return the share of right answers of a graph as it is written: nothing is fused."""
    from qcompile.data.batches import Data
    from qcompile.model.onnx_file import read_weightless
    from qcompile.model.session import make_session, session_options

    session = make_session(path, session_options(2, optimize=False))
    right, total = 0, 0
    for batch in Data(evaluation, read_weightless(path).io.inputs):
        assert batch.labels is not None
        right += int((session.run(None, dict(batch.feeds))[0].argmax(1) == batch.labels).sum())
        total += len(np.asarray(batch.labels))
    return right / total


if __name__ == "__main__":
    main()
