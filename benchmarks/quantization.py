"""INT8 on the CPU: qcompile against PyTorch, ONNX Runtime, OpenVINO and NNCF: docs/quantization.md.

    pip install 'qcompile[benchmarks]'
    make resnet18                                   # trains the network of the last row
    python benchmarks/quantization.py               # all rows
    python benchmarks/quantization.py bert --rounds 20

Every artifact runs in a process of its own; rounds are interleaved in balanced order. A ratio is the median
over rounds of two blocks of the same round, with its 99% interval. The signal-to-noise ratio is that of the
outputs against the float model, on samples that calibration has not seen. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qcompile

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDER = ROOT / "build/benchmarks/quantization"
CALIBRATION, EVALUATION = 32, 16  # samples
BLOCK_MS = 300.0


@dataclass(frozen=True)
class Row:
    """A model, and how it is called."""

    model: str
    batch: int
    threads: int
    inputs: tuple[str, ...]


IMAGE, SMALL = ("image:[batch,3,224,224]",), ("image:[batch,3,32,32]",)
TEXT = ("tokens:[batch,128]:int64", "mask:[batch,128]:int64")
ROWS = {
    "resnet50-b8": Row("resnet50", 8, 2, IMAGE),
    "resnet50-b1": Row("resnet50", 1, 1, IMAGE),
    "mobilenetv2": Row("mobilenetv2", 1, 2, IMAGE),
    "bert": Row("bert", 1, 2, TEXT),
    "resnet18": Row("resnet18", 128, 2, SMALL),
}


def source(row: Row) -> str:
    """Return the spelling of a row's model."""
    if row.model == "resnet18":
        return f"{ROOT}/benchmarks/digits_resnet18/model.py:build"
    return f"{HERE}/models.py:{row.model}"


def data(row: Row) -> str:
    """Return the spelling of a row's samples."""
    if row.model == "resnet18":
        return f"{ROOT}/benchmarks/digits_resnet18/data.py:calibration"
    return f"{HERE}/samples.py:{'tokens' if row.model == 'bert' else 'images'}"


def samples(row: Row, *, unseen: bool = False) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield samples one by one; the model must have been exported.

    Args:
        row: Whose.
        unseen: Those that are not calibrated on: the examples have others, synthetic ones come later.
    """
    from qcompile.data.batches import Data
    from qcompile.model.onnx_file import read_weightless

    inputs = read_weightless((FOLDER / row.model).with_suffix(".onnx")).io.inputs
    spec = data(row).replace(":calibration", ":evaluation") if unseen else data(row)
    skipped = CALIBRATION if unseen and spec == data(row) else 0
    batches = Data(spec, inputs, batch_size=1)  # a function's own batches stay as they are
    single = (one for batch in batches for one in (batch.split() if batch.can_be_split() else [batch]))
    for one in itertools.islice(single, skipped, None):
        yield dict(one.feeds)


def evaluation(row: Row) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return samples that calibration has not seen."""
    return list(itertools.islice(samples(row, unseen=True), EVALUATION))


def prepare(row: Row) -> dict[str, tuple[str, Path | str]]:
    """Make every artifact once; return its name to how it is run and what."""

    base = FOLDER / row.model
    model, ranges = base.with_suffix(".onnx"), base.with_suffix(".ranges")
    if not model.is_file():
        print(f"export {row.model}", file=sys.stderr)
        raw = base.with_suffix(".raw.onnx")
        qcompile.export(source(row), raw, inputs=row.inputs)
        qcompile.simplify(raw, model)
    if not ranges.is_file():
        qcompile.calibrate(model, data(row), ranges, samples=CALIBRATION)
    made: dict[str, tuple[str, Path | str]] = {
        "PyTorch eager": ("torch", source(row)),
        "ONNX Runtime FP32": ("ort", model),
        "ONNX Runtime static": ("ort", _once(base, "ort.onnx", lambda path: ort_static(row, model, path))),
        "OpenVINO, ORT's QDQ": ("openvino", base.with_suffix(".ort.onnx")),
        "OpenVINO + NNCF": ("openvino", _once(base, "nncf.xml", lambda path: nncf(row, model, path))),
    }
    if row.model == "bert":
        dynamic = _once(base, "ort-dynamic.onnx", lambda path: ort_dynamic(model, path))
        made["ONNX Runtime dynamic"] = ("ort", dynamic)
    for target in ("onnxruntime", "openvino"):
        path = _once(base, f"{target}.onnx", lambda path, t=target: ours(row, model, ranges, t, path))
        made[f"qcompile, {target}"] = ("qcompile", path)
    return made


def _once(base: Path, suffix: str, make: Callable[[Path], object]) -> Path:
    path = base.with_suffix(f".{suffix}")
    if not path.is_file():
        print(f"make {path.name}", file=sys.stderr)
        make(path)
    return path


def ours(row: Row, model: Path, ranges: Path, target: str, path: Path) -> None:
    """Quantize and build by qcompile."""

    graph = path.with_suffix(".graph.onnx")
    qcompile.quantize(model, graph, ranges=ranges, target=target, data=data(row))  # type: ignore[arg-type]
    qcompile.build(graph, path, target=target, precision="int8", threads=row.threads)


def ort_static(row: Row, model: Path, path: Path) -> None:
    """Quantize by ONNX Runtime: uint8 activations, int8 weights per channel, min and max."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.iterator = itertools.islice(samples(row), CALIBRATION)

        def get_next(self) -> Any:
            return next(self.iterator, None)

    ready = path.with_suffix(".pre.onnx")
    quant_pre_process(str(model), str(ready))
    quantize_static(
        ready, path, Reader(), per_channel=True,
        weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
    )  # fmt: skip


def ort_dynamic(model: Path, path: Path) -> None:
    """Quantize dynamically by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8)


def nncf(row: Row, model: Path, path: Path) -> None:
    """Quantize by NNCF for OpenVINO, as its guide says for each kind of model."""
    import nncf
    import openvino

    kind = {"model_type": nncf.ModelType.TRANSFORMER} if row.model == "bert" else {}
    found = nncf.quantize(
        openvino.Core().read_model(model),
        nncf.Dataset(list(itertools.islice(samples(row), CALIBRATION))),
        subset_size=CALIBRATION,
        **kind,
    )
    openvino.save_model(found, path, compress_to_fp16=False)


def runner(kind: str, what: str, threads: int) -> Callable[[dict[str, Any]], Callable[[], Any]]:
    """Return a function of feeds that returns what runs once."""
    if kind == "torch":
        import torch

        from qcompile.model.load import load_torch
        from qcompile.model.source import parse_source

        torch.set_num_threads(threads)
        module = load_torch(parse_source(what)).module

        def eager(feeds: dict[str, Any]) -> Callable[[], Any]:
            tensors = [torch.from_numpy(array) for array in feeds.values()]

            def run() -> Any:
                with torch.inference_mode():
                    return [module(*tensors).numpy()]

            return run

        return eager
    if kind == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(what, options, providers=["CPUExecutionProvider"])
        return lambda feeds: lambda: session.run(None, feeds)
    if kind == "openvino":
        import openvino

        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = "f32"
        compiled = openvino.Core().compile_model(what, "CPU", settings)
        request = compiled.create_infer_request()
        return lambda feeds: lambda: list(request.infer(feeds, share_inputs=True).values())

    loaded = qcompile.load(what, threads=threads)
    names = [tensor.name for tensor in loaded.io.outputs]

    def ready(feeds: dict[str, Any]) -> Callable[[], Any]:
        run = loaded.prepare(feeds)

        def once() -> Any:
            found = run()
            return found if isinstance(found, list) else [found[name] for name in names]

        return once

    return ready


def child(name: str, kind: str, what: str) -> None:
    """Serve: the file of the outputs first, then the median latency of a block for every line."""
    row = ROWS[name]
    make = runner(kind, what, row.threads)
    outputs = [np.asarray(make(feeds)()[0]).copy() for feeds in evaluation(row)]
    some = list(itertools.islice(samples(row, unseen=True), row.batch))
    run = make({key: np.concatenate([one[key] for one in some]) for key in some[0]})
    for _ in range(5):
        run()
    path = FOLDER / f"{name}.{kind}.{Path(what).name}.npy"
    np.save(path, np.concatenate(outputs))
    print(path, flush=True)
    for _ in sys.stdin:
        run()
        times, end = [], time.perf_counter() + BLOCK_MS / 1e3
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        print(statistics.median(times), flush=True)


class Child:
    """One artifact in its process."""

    def __init__(self, name: str, kind: str, what: str) -> None:
        command = [sys.executable, __file__, name, "--child", kind, what]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.outputs = np.load(self._line())

    def block(self) -> float:
        """Return the median latency of one block, in milliseconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the process ended")
        return line


def measure(name: str, rounds: int) -> None:
    """Measure one row and print it."""
    from qcompile.bench.statistics import speedup
    from qcompile.model.judgement import output_error

    row = ROWS[name]
    made = prepare(row)
    children = {title: Child(name, kind, str(what)) for title, (kind, what) in made.items()}
    times: dict[str, list[float]] = {title: [] for title in children}
    for number in range(rounds):
        for title in list(children) if number % 2 == 0 else reversed(list(children)):
            times[title].append(children[title].block())
    reference = children["ONNX Runtime FP32"].outputs
    print(f"\n{name}: batch {row.batch}, {row.threads} threads, {rounds} rounds")
    for title, found in times.items():
        ratio = speedup([times["PyTorch eager"]], [found])
        snr = output_error(reference, children[title].outputs).snr_db
        print(
            f"  {title:24} {statistics.median(found):8.2f} ms  {ratio.value:5.2f}x eager "
            f"[{ratio.low:.2f}, {ratio.high:.2f}]  {snr:5.1f} dB"
        )
    others = [title for title in times if not title.startswith("qcompile")]
    own = [title for title in others if title.startswith("ONNX Runtime")]
    ranked = {title: statistics.median(found) for title, found in times.items()}
    for ours_title, rivals in (("qcompile, openvino", others), ("qcompile, onnxruntime", own)):
        rival = min(rivals, key=lambda title: ranked[title])
        ratio = speedup([times[rival]], [times[ours_title]])
        print(f"  {ours_title} against {rival}: {ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]")
    for one in children.values():
        one.close()


def main() -> None:
    """Measure the rows that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.rows[0], *options.child)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in options.rows or ROWS:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
