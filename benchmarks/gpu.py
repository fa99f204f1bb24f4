"""TensorRT on a GPU against PyTorch on the same GPU: the tables of docs/tensorrt.md.

    python benchmarks/gpu.py prepare            # torch and onnxruntime: ONNX of opset 17, ranges, Q/DQ graphs
    python benchmarks/gpu.py build              # tensorrt and cuda-bindings, perhaps another interpreter
    python benchmarks/gpu.py measure            # both; --tensorrt-python names the interpreter with TensorRT
    python benchmarks/gpu.py leaks

FP32, TF32, FP16, INT8 by Q/DQ, by our cache and by TensorRT's entropy calibrator, of ResNet-18 and -50,
MobileNetV2 and BERT-base, at batch 1, 8, 32 and 128, with and without CUDA graphs, against PyTorch eager
(FP32 and FP16), TorchScript and torch.compile, in interleaved rounds, each subject in a process of its own.
Two tables each: host to host, all of them from and to page-locked memory, and everything on the device.
For comparison of ratios, published for a V100 at batch 1, ResNet-50, in ms: PyTorch FP32 4.2, TorchScript
3.8, ONNX Runtime 3.5, TensorRT FP32 2.1, FP16 1.3, INT8 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "build/benchmarks/gpu"
MODELS = ("resnet18", "resnet50", "mobilenetv2", "bert")
BATCHES = (1, 8, 32, 128)
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "tf32": {"precision": "tf32"},
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8", "float_precision": "fp16"},
    "int8-ours": {"precision": "int8", "float_precision": "fp16", "calibrator": "ranges"},
    "int8-native": {"precision": "int8", "float_precision": "fp16", "calibrator": "native"},
}
TORCH: dict[str, dict[str, Any]] = {
    "PyTorch eager FP32": {"mode": "eager"},
    "PyTorch eager FP16": {"mode": "eager", "half": True},
    "TorchScript FP32": {"mode": "torchscript"},
    "torch.compile FP32": {"mode": "compile"},
}
BASELINE = "PyTorch eager FP32"
ROUNDS, BLOCK_S = 9, 0.2


def main() -> None:
    """Carry out one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["prepare", "build", "measure", "leaks"])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--tensorrt-python", default=sys.executable, help="interpreter with TensorRT")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--tactic-source", action="append", default=[], help="such as none")
    parser.add_argument("--device", default="cuda", help="of PyTorch; cpu tries the script out")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    {"prepare": prepare, "build": build, "measure": measure, "leaks": leaks}[options.step](options)


def source(model: str) -> str:
    """MODEL of a name; those with random weights need no package beside torch."""
    return f"{HERE}/gpu_models.py:{model}"


def prepare(options: argparse.Namespace) -> None:
    """Everything that needs PyTorch and ONNX Runtime."""
    import qcompile

    for name in options.models:
        text = name == "bert"
        inputs = (
            ["tokens:[batch,128]:int64", "mask:[batch,128]:int64"] if text else ["image:[batch,3,224,224]"]
        )
        model, ranges, graph = (options.folder / f"{name}{end}" for end in (".onnx", ".ranges", ".int8.onnx"))
        data = f"{HERE}/samples.py:{'tokens' if text else 'images'}"
        qcompile.export(source(name), model, inputs=inputs, opset_version=17)
        qcompile.calibrate(model, data, ranges, samples=32, targets=["tensorrt"])
        qcompile.quantize(model, graph, ranges=ranges, target="tensorrt")
        for batch in options.batches:
            np.savez(options.folder / f"{name}.{batch}.npz", **feeds(data, batch))
        print(f"{name}: prepared", flush=True)


def feeds(data: str, batch: int) -> dict[str, Any]:
    """One batch of samples."""
    file, _, name = data.rpartition(":")
    sys.path.insert(0, str(Path(file).parent))
    samples: Iterator[dict[str, Any]] = getattr(__import__(Path(file).stem), name)()
    parts = [next(samples) for _ in range(batch)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def build(options: argparse.Namespace) -> None:
    """Engines with one profile for each batch; the time of each build is written beside it."""
    import qcompile
    from qcompile.errors import QCompileError
    from qcompile.spec.tensorrt import TensorRTOptions

    for name in options.models:
        model = options.folder / f"{name}.onnx"
        tensors = {"tokens": "128", "mask": "128"} if name == "bert" else {"image": "3x224x224"}
        profiles = tuple(
            ",".join(f"{key}:{'..'.join([f'{batch}x{rest}'] * 3)}" for key, rest in tensors.items())
            for batch in options.batches
        )
        chosen = TensorRTOptions(
            profiles=profiles,
            tactic_sources=tuple(options.tactic_source),
            timing_cache=str(options.folder / "timing.cache"),
        )
        for variant in options.variants:
            more = dict(VARIANTS[variant])
            if more.get("calibrator") == "native":
                more |= {"data": str(options.folder / f"{name}.32.npz")}
                more |= {"calibration_cache": options.folder / f"{name}.native.cache"}
            elif more["precision"] == "int8":
                more |= {"ranges": options.folder / f"{name}.ranges"}
            start = time.perf_counter()
            try:
                built = qcompile.build(
                    model, engine_file(options, name, variant), target="tensorrt", tensorrt=chosen,
                    allow_fallback=True, **more,
                )  # fmt: skip
            except QCompileError as error:
                print(f"{name} {variant}: {error}", flush=True)
                continue
            proof = built.manifest.proof
            print(
                f"{name} {variant}: {time.perf_counter() - start:.1f} s, "
                f"{built.manifest.size_bytes / 1e6:.1f} MB, {proof['layers_by_precision']}, "
                f"fell back: {proof.get('fell_back')}",
                flush=True,
            )


def engine_file(options: argparse.Namespace, name: str, variant: str) -> Path:
    """Where the engine of a model and variant lies."""
    return Path(options.folder) / f"{name}.{variant}.engine"


class Process:
    """A subject in a process of its own."""

    def __init__(self, python: str, about: dict[str, Any]) -> None:
        self.child = subprocess.Popen(
            [*shlex.split(python), str(HERE / "gpu_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
        )  # fmt: skip
        self.error = self.ask(do="load", **about).get("error", "")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        return json.loads(line) if line else {"error": f"died ({self.child.wait()})"}

    def close(self) -> None:
        """End it."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(60)


@dataclass(frozen=True)
class Row:
    """What is timed: a subject, host to host or on the device."""

    process: Process
    on_device: bool


def measure(options: argparse.Namespace) -> None:
    """Two tables of each model and batch: host to host, and everything on the device."""
    for name in options.models:
        for batch in options.batches:
            subjects = {title: Process(*about) for title, about in abouts(options, name, batch).items()}
            for title, one in subjects.items():
                if one.error:
                    print(f"{name} batch {batch}: {title}: {one.error}", flush=True)
            alive = {title: one for title, one in subjects.items() if not one.error}
            for on_device in (False, True) if options.device != "cpu" else (False,):
                place = "on the device" if on_device else "host to host, in page-locked memory"
                print(f"\n{name}, batch {batch}, {place}\n", flush=True)
                print_table({title: Row(one, on_device) for title, one in alive.items()}, options.folder)
            for one in subjects.values():
                one.close()


def abouts(options: argparse.Namespace, name: str, batch: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The subjects of a table: title to interpreter and what to load."""
    given = str(options.folder / f"{name}.{batch}.npz")
    torch = {"kind": "torch", "source": source(name), "feeds": given, "device": options.device}
    subjects = {title: (sys.executable, {**torch, **about}) for title, about in TORCH.items()}
    for variant in options.variants:
        engine = engine_file(options, name, variant)
        for graph in (False, True) if engine.is_file() else ():
            title = f"TensorRT {variant}{', CUDA graph' if graph else ''}"
            about = {"kind": "engine", "engine": str(engine), "cuda_graph": graph, "feeds": given}
            subjects[title] = (options.tensorrt_python, about)
    return subjects


def print_table(rows: dict[str, Row], folder: Path) -> None:
    """Time all in turn and print their latency, speed-up, times by CUDA events, and error."""
    from qcompile.bench.statistics.launches import median
    from qcompile.bench.statistics.speedup import speedup
    from qcompile.model.output_error import output_error

    rounds = interleave(rows)
    print("| | ms | against eager FP32 | compute ms | enqueue ms | SNR dB |\n|---|---|---|---|---|---|")
    reference = outputs(rows[BASELINE].process, folder)
    for title, row in rows.items():
        ratio = speedup([rounds[BASELINE]], [rounds[title]]) if title != BASELINE else None
        told = f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else ""
        gpu = row.process.ask(do="gpu", iterations=100)
        compute, enqueue = (f"{gpu[key]:.3f}" if key in gpu else "" for key in ("compute", "enqueue"))
        snr_db = output_error(reference, outputs(row.process, folder)).snr_db
        latency_ms = median(rounds[title])
        print(f"| {title} | {latency_ms:.3f} | {told} | {compute} | {enqueue} | {snr_db:.1f} |", flush=True)


def interleave(rows: dict[str, Row]) -> dict[str, list[float]]:
    """Medians of each round in milliseconds, each row a block a round, in alternating order."""

    def durations_ns(row: Row, iterations: int) -> list[int]:
        answer = row.process.ask(do="time", iterations=iterations, on_device=row.on_device)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        found: list[int] = answer["ns"]
        return found

    iterations = {}
    for title, row in rows.items():
        for _ in range(3):
            call_ns = statistics.median(durations_ns(row, 10))
        iterations[title] = max(int(BLOCK_S * 1e9 / call_ns), 5)
    medians_ms: dict[str, list[float]] = {title: [] for title in rows}
    for number in range(ROUNDS):
        for title in list(rows)[:: 1 if number % 2 == 0 else -1]:
            medians_ms[title].append(statistics.median(durations_ns(rows[title], iterations[title])) / 1e6)
    return medians_ms


def outputs(one: Process, folder: Path) -> Any:
    """The first output of a subject."""
    path = Path(folder) / "outputs.npz"
    one.ask(do="infer", output=str(path))
    with np.load(path) as found:
        return found["0"]


def leaks(options: argparse.Namespace) -> None:
    """Free memory of the device before and after 10,000 inferences and 100 loads."""
    for name in options.models:
        for variant in options.variants:
            engine = engine_file(options, name, variant)
            for graph in (False, True) if engine.is_file() else ():
                given = str(options.folder / f"{name}.1.npz")
                about = {"kind": "engine", "engine": str(engine), "cuda_graph": graph, "feeds": given}
                one = Process(options.tensorrt_python, about)
                before = one.ask(do="memory")["free_bytes"]
                one.ask(do="time", iterations=10_000)
                between = one.ask(do="memory")["free_bytes"]
                one.ask(do="reload", times=100)
                after = one.ask(do="memory")["free_bytes"]
                print(
                    f"{name} {variant}{', CUDA graph' if graph else ''}: 10,000 inferences took "
                    f"{(before - between) / 1e6:.1f} MB, 100 loads {(between - after) / 1e6:.1f} MB",
                    flush=True,
                )
                one.close()


if __name__ == "__main__":
    main()
