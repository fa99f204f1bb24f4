"""The claim "static INT8 is at least 6x PyTorch eager and 3x ONNX FP32" for ResNet-18, 32x32, batch 128.

    make resnet18 && .venv/bin/python benchmarks/cpu_int8.py

Measures the artifacts of `benchmarks/digits_resnet18/out` in one interleaved run, on 2 threads, and prints
every ratio with its 99% interval. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import qcompile
from qcompile.bench.statistics import speedup

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "benchmarks/digits_resnet18"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=EXAMPLE / "out", help="folder with the artifacts")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-time", type=float, default=180.0, help="seconds")
    options = parser.parse_args()
    names = {"onnx-fp32": "onnx-fp32.onnx", "onnx-int8-static": "onnx-int8-static.onnx"}
    missing = [name for name in names.values() if not (options.out / name).is_file()]
    if missing:
        sys.exit(f"{options.out / missing[0]} is missing: run make resnet18 first")
    results = qcompile.benchmark(
        {"eager": f"{EXAMPLE}/model.py:build"}
        | {name: str(options.out / file) for name, file in names.items()},
        baseline="eager",
        data=f"{EXAMPLE}/data.py:calibration",
        batch_size=options.batch_size,
        threads=options.threads,
        max_time_s=options.max_time,
        progress=lambda text, *_: print(f"\r{text:60}", end="", file=sys.stderr),
    )
    print(f"\n{results.environment['processor']}, {options.threads} threads, batch {options.batch_size}")
    for row in results.rows:
        assert row.latency is not None
        print(f"{row.name:18} {row.latency.median_ms:8.2f} ms")
    int8 = results.row("onnx-int8-static").launches_ms
    for name, goal in (("eager", 6.0), ("onnx-fp32", 3.0)):
        ratio = speedup(results.row(name).launches_ms, int8)
        judged = "met" if ratio.value >= goal else "missed"
        print(
            f"INT8 against {name:10} {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] "
            f"over {ratio.rounds} rounds in {ratio.launches} launches; goal {goal:g}x: {judged}"
        )


if __name__ == "__main__":
    main()
