"""Accuracy of INT8 by calibration method, on the digits examples: the table of docs/calibration.md.

    .venv/bin/python benchmarks/calibration_methods.py            # ResNet-20, 500 images never seen
    .venv/bin/python benchmarks/calibration_methods.py resnet18   # after make resnet18

The graphs for TensorRT are run by ONNX Runtime: same scales, same rounding, other kernels.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import qcompile
from qcompile.data.batches import Data
from qcompile.model.judgement import output_error
from qcompile.model.onnx_file import read_weightless

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("minmax", "percentile:99.9", "percentile:99.99", "entropy", "mse", "auto")


def outputs(model: Path, data: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return logits and labels of all samples."""
    logits, labels = [], []
    with qcompile.load(model) as runner:
        for batch in Data(data, read_weightless(model).io.inputs):
            logits.append(next(iter(runner.infer(batch.feeds).values())))
            labels.append(batch.labels)
    return np.concatenate(logits), np.concatenate(labels)


def main() -> None:
    """Calibrate once, quantize by every method for every target, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("example", nargs="?", default="digits", choices=["digits", "resnet18"])
    name = parser.parse_args().example
    example = ROOT / ("examples/digits" if name == "digits" else "benchmarks/digits_resnet18")
    evaluation = f"{example}/data.py:evaluation"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, model, ranges = folder / "raw.onnx", folder / "model.onnx", folder / "model.ranges"
        qcompile.export(f"{example}/model.py:build", raw, inputs=["image:[batch,3,32,32]"])
        qcompile.simplify(raw, model)
        qcompile.calibrate(model, f"{example}/data.py:calibration", ranges)
        reference, labels = outputs(model, evaluation)
        accuracy = (reference.argmax(1) == labels).mean()
        print(f"{example.name}: FP32 {accuracy:.2%} of {len(labels)} images")
        print(
            "| method | "
            + " | ".join(f"{t}: accuracy | output SNR" for t in ("onnxruntime", "tensorrt"))
            + " |"
        )
        print("|---|---|---|---|---|")
        for method in METHODS:
            cells = []
            for target in ("onnxruntime", "tensorrt"):
                path = folder / f"{target}.onnx"
                qcompile.quantize(model, path, ranges=ranges, target=target, method=method)
                found, _ = outputs(path, evaluation)
                snr_db = output_error(reference, found).snr_db
                cells += [f"{(found.argmax(1) == labels).mean():.2%}", f"{snr_db:.1f} dB"]
            print(f"| `{method}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
