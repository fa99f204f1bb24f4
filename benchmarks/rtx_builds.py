"""Graphs for TensorRT, built by TensorRT-RTX for sm86 without a GPU: the table of docs/quantization.md.

    pip install 'qcompile[benchmarks,tensorrt-rtx]'
    python benchmarks/rtx_builds.py [MODEL...] [--gpu sm86]

For each model FP32, FP16 and INT8: size of the engine, build time, and what the parsed network computes in.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import qcompile
from qcompile.errors import QCompileError

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "build/benchmarks/rtx"
IMAGE = "image:[batch,3,224,224]"
TEXT = ["tokens:[batch,128]:int64", "mask:[batch,128]:int64"]
MODELS = ("resnet50", "mobilenetv2", "efficientnet_b0", "vgg16", "bert", "vit_b16")


def main() -> None:
    """Build and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--gpu", default="sm86")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    print("| model | precision | ONNX, MB | engine, MB | build, s | layers |")
    print("|---|---|---|---|---|---|")
    for name in options.models or MODELS:
        text = name == "bert"
        data = f"{HERE}/samples.py:{'tokens' if text else 'images'}"
        model, ranges = FOLDER / f"{name}.onnx", FOLDER / f"{name}.ranges"
        if not model.is_file():
            raw = FOLDER / f"{name}.raw.onnx"
            qcompile.export(f"{HERE}/models.py:{name}", raw, inputs=TEXT if text else [IMAGE])
            qcompile.simplify(raw, model)
        if not ranges.is_file():
            qcompile.calibrate(model, data, ranges, samples=8, targets=["tensorrt"])
        for precision in ("fp32", "fp16", "int8"):
            graph = model
            try:
                if precision != "fp32":
                    graph = FOLDER / f"{name}.{precision}.onnx"
                    qcompile.quantize(
                        model, graph, target="tensorrt", precision=precision,  # type: ignore[arg-type]
                        ranges=ranges if precision == "int8" else None,
                    )  # fmt: skip
                start = time.perf_counter()
                built = qcompile.build(
                    graph, FOLDER / f"{name}.{precision}.engine", target="tensorrt-rtx",
                    precision=precision, gpus=[options.gpu],
                )  # fmt: skip
            except QCompileError as error:
                print(f"| {name} | {precision} | | | | refused: {error.message} |", flush=True)
                continue
            seconds = time.perf_counter() - start
            layers = built.manifest.proof["layers_by_precision"]
            assert isinstance(layers, dict)
            found = ", ".join(f"{sum(kinds.values())} {kind}" for kind, kinds in layers.items() if kinds)
            sizes = [path.stat().st_size / 1e6 for path in (graph, built.path)]
            row = f"| {name} | {precision} | {sizes[0]:.1f} | {sizes[1]:.1f} | {seconds:.1f} | {found} |"
            print(row, flush=True)
    print(f"TensorRT-RTX for {options.gpu}, not run on a GPU", file=sys.stderr)


if __name__ == "__main__":
    main()
