"""What calibration costs against plain inference: the floor, qcompile, ONNX Runtime's methods, NNCF.

    pip install 'qcompile[benchmarks]'
    python benchmarks/calibration.py resnet50 --samples 128 512
    python benchmarks/calibration.py resnet50 --samples 128 --peers ort-minmax ort-percentile ort-entropy
    python benchmarks/calibration.py bert --samples 32 --peers quantize ort-quantize

The floor is one pass of the float model over the same samples, one by one, by ONNX Runtime. Every run is a
process of its own; its time begins before it imports anything and holds imports, session creation and the
choice of thresholds; its memory is the peak of the whole process. Runs are interleaved, and each ratio is
the median over rounds of a run against the floor of the same round. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qcompile

START = time.perf_counter()  # before anything heavy is imported
HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "build/benchmarks"
INPUTS = {
    "resnet50": ["image:[batch,3,224,224]"],
    "mobilenetv2": ["image:[batch,3,224,224]"],
    "bert": ["tokens:[batch,128]:int64", "mask:[batch,128]:int64"],
}
PEERS = (
    "ort-minmax",
    "ort-percentile",
    "ort-entropy",
    "nncf-onnx",
    "nncf-openvino",
    "quantize",
    "ort-quantize",
)


def data_function(model: str) -> str:
    """Return the spelling of a model's samples."""
    return f"{HERE / 'samples.py'}:{'tokens' if model == 'bert' else 'images'}"


def samples(model: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the samples without qcompile."""
    sys.path.insert(0, str(HERE))
    import samples as functions

    endless = functions.tokens() if model == "bert" else functions.images()
    return itertools.islice(endless, count)


def floor(model: str, count: int, path: Path) -> None:
    """Run the float model over the samples."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for feeds in samples(model, count):
        session.run(None, feeds)


def qcompile_calibrate(model: str, count: int, path: Path) -> None:
    """Calibrate."""

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "model.ranges"
        qcompile.calibrate(path, data_function(model), output, samples=count, threads=2)


def qcompile_quantize(model: str, count: int, path: Path) -> None:
    """Calibrate and quantize for ONNX Runtime."""

    with tempfile.TemporaryDirectory() as folder:
        ranges, output = Path(folder) / "model.ranges", Path(folder) / "int8.onnx"
        qcompile.calibrate(
            path, data_function(model), ranges, samples=count, threads=2, targets=["onnxruntime"]
        )
        qcompile.quantize(path, output, ranges=ranges)


def reader(model: str, count: int) -> Any:
    """Return the samples as ONNX Runtime's quantizer reads them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.iterator = samples(model, count)

        def get_next(self) -> Any:
            return next(self.iterator, None)

    return Reader()


def ort_calibrate(method: str, model: str, count: int, path: Path) -> None:
    """Calibrate by ONNX Runtime."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    kind = {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }[method]
    with tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            path, augmented_model_path=f"{folder}/augmented.onnx", calibrate_method=kind
        )
        calibrator.collect_data(reader(model, count))
        calibrator.compute_data()


def ort_quantize(model: str, count: int, path: Path) -> None:
    """Calibrate (min and max) and quantize by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        quantize_static(
            path,
            f"{folder}/int8.onnx",
            reader(model, count),
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
        )


def nncf_quantize(kind: str, model: str, count: int, path: Path) -> float:
    """Quantize by NNCF; return the seconds of its statistics, creation of sessions included."""
    import nncf
    from nncf.common.tensor_statistics.aggregator import StatisticsAggregator

    taken = 0.0
    original = StatisticsAggregator.collect_statistics

    def timed(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal taken
        start = time.perf_counter()
        try:
            return original(self, *arguments, **options)
        finally:
            taken += time.perf_counter() - start

    StatisticsAggregator.collect_statistics = timed
    loaded: Any
    if kind == "onnx":
        import onnx

        loaded = onnx.load(path)
    else:
        import openvino

        loaded = openvino.Core().read_model(path)
    nncf.quantize(
        loaded, nncf.Dataset(list(samples(model, count))), subset_size=count, fast_bias_correction=True
    )
    return taken


def peak_mb() -> float:
    """Return the most memory this process has held; `getrusage` would count its parent's too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("/proc/self/status has no VmHWM")


def child(what: str, model: str, count: int, path: Path) -> None:
    """Do one run and print what it took."""
    statistics_s = None
    if what == "floor":
        floor(model, count, path)
    elif what == "qcompile":
        qcompile_calibrate(model, count, path)
    elif what == "quantize":
        qcompile_quantize(model, count, path)
    elif what == "ort-quantize":
        ort_quantize(model, count, path)
    elif what.startswith("ort-"):
        ort_calibrate(what.removeprefix("ort-"), model, count, path)
    else:
        statistics_s = nncf_quantize(what.removeprefix("nncf-"), model, count, path)
    total_s = time.perf_counter() - START
    found = {"seconds": statistics_s if statistics_s is not None else total_s, "total_s": total_s}
    print(json.dumps({**found, "peak_mb": peak_mb()}))


def run(what: str, model: str, count: int, path: Path) -> dict[str, float] | None:
    """Do one run in a process of its own; None if it fails."""
    command = [sys.executable, __file__, model, "--child", what, "--samples", str(count), "--file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{what}: failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def model_file(model: str) -> Path:
    """Return the simplified ONNX file of a model, made once."""
    path = FOLDER / f"{model}.onnx"
    if not path.is_file():
        import qcompile

        print(f"export {model}", file=sys.stderr)
        raw = FOLDER / f"{model}.raw.onnx"
        qcompile.export(f"{HERE / 'models.py'}:{model}", raw, inputs=INPUTS[model])
        qcompile.simplify(raw, path)
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", choices=sorted(INPUTS))
    parser.add_argument("--samples", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[])
    parser.add_argument("--only-peers", action="store_true", help="leave qcompile calibrate out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.model, options.samples[0], options.file)
        return
    path = model_file(options.model)
    ours = [] if options.only_peers else ["qcompile"]
    names = ["floor", *ours, *options.peers]
    run("qcompile", options.model, 2, path)  # compiles the counting loop, once per machine
    print(f"{options.model}, 2 threads, samples one by one, {options.rounds} rounds")
    for count in options.samples:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                if (one := run(name, options.model, count, path)) is not None:
                    found[name].append(one)
        for name, runs in found.items():
            if len(runs) < options.rounds:
                print(f"{count:5} samples  {name:15} failed")
                continue
            ratios = [
                one["seconds"] / base["seconds"] for one, base in zip(runs, found["floor"], strict=True)
            ]
            print(
                f"{count:5} samples  {name:15} {statistics.median(one['seconds'] for one in runs):7.2f} s  "
                f"{statistics.median(ratios):6.2f}x the floor [{min(ratios):.2f}, {max(ratios):.2f}]  "
                f"{max(one['peak_mb'] for one in runs):6.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
