"""Each stage against the library underneath: the table of CONTRIBUTING.md.

    pip install -e '.[benchmarks,tensorrt-rtx]'
    python tests/performance/stages.py                        # every stage of ResNet-50 and BERT-base
    python tests/performance/stages.py --only 'export *' --rounds 5

Every run is a process of its own; its time begins before it imports anything, and its memory is the peak of
the process. Runs are interleaved; a ratio is the median over rounds of ours against theirs of the same round,
in parentheses the least and the largest. The weights are random. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

START = time.perf_counter()  # before anything heavy is imported
HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build/benchmarks/stages"
SAMPLES, CALIBRATED = 32, 128
INPUTS = {
    "resnet50": ["image:[batch,3,224,224]"],
    "bert": ["tokens:[batch,128]:int64", "mask:[batch,128]:int64"],
}
MODELS = {name: f"{HERE / 'models.py'}:{name}" for name in INPUTS}
DATA = {name: f"{HERE / 'stages.py'}:{name}" for name in INPUTS}
FEW = {name: f"{data}_few" for name, data in DATA.items()}
OURS: dict[str, Callable[[str, Path], object]] = {}
THEIRS: dict[str, Callable[[str, Path], object]] = {}
Work = Callable[[str, Path], object]


def ours(stage: str) -> Callable[[Work], Work]:
    """Register our way to do a stage: of a model, into a folder."""
    return lambda work: OURS.setdefault(stage, work)


def theirs(stage: str) -> Callable[[Work], Work]:
    """Register the library's way."""
    return lambda work: THEIRS.setdefault(stage, work)


def file(model: str, kind: str) -> Path:
    """Return a file that was made beforehand: raw.onnx, onnx, ranges or int8.onnx."""
    return FOLDER / f"{model}.{kind}"


def resnet50(count: int = CALIBRATED) -> Iterator[dict[str, Any]]:
    """Yield the samples of ResNet-50."""
    sys.path.insert(0, str(HERE))
    import samples

    return itertools.islice(samples.images(), count)


def bert(count: int = CALIBRATED) -> Iterator[dict[str, Any]]:
    """Yield the samples of BERT-base."""
    sys.path.insert(0, str(HERE))
    import samples

    return itertools.islice(samples.tokens(), count)


def resnet50_few() -> Iterator[dict[str, Any]]:
    """Yield what a quantizer is given of them."""
    return resnet50(SAMPLES)


def bert_few() -> Iterator[dict[str, Any]]:
    """Yield what a quantizer is given of them."""
    return bert(SAMPLES)


def samples_of(model: str, count: int = SAMPLES) -> Iterator[dict[str, Any]]:
    """Yield the samples without qcompile."""
    return resnet50(count) if model == "resnet50" else bert(count)


@ours("export")
def _export(model: str, folder: Path) -> None:
    import qcompile

    qcompile.export(MODELS[model], folder / "m.onnx", inputs=INPUTS[model])


@theirs("export")
def _torch_export(model: str, folder: Path) -> None:
    sys.path.insert(0, str(HERE))
    import models
    import torch

    from qcompile.model.sources.named.description import declare_torchvision_operators

    declare_torchvision_operators()  # transformers imports it, whose operators may not load
    made = getattr(models, model)()
    module = made[0] if isinstance(made, tuple) else made
    example: tuple[Any, ...] = (torch.randn(2, 3, 224, 224),)
    if model == "bert":
        example = (torch.randint(0, 1000, (2, 128)), torch.ones(2, 128, dtype=torch.int64))
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.onnx.export(
        module.eval(), example, dynamo=True, verbose=False, dynamic_shapes=tuple({0: batch} for _ in example)
    )
    program.save(str(folder / "m.onnx"))


@ours("simplify")
def _simplify(model: str, folder: Path) -> None:
    import qcompile

    qcompile.simplify(file(model, "raw.onnx"), folder / "m.onnx")


@theirs("simplify")
def _onnxsim(model: str, folder: Path) -> None:
    import onnx
    import onnxsim

    simple, right = onnxsim.simplify(str(file(model, "raw.onnx")), check_n=1)
    assert right
    onnx.save(simple, folder / "m.onnx")


@ours("calibrate")
def _calibrate(model: str, folder: Path) -> None:
    import qcompile

    qcompile.calibrate(file(model, "onnx"), DATA[model], folder / "m.ranges", samples=CALIBRATED, threads=2)


@theirs("calibrate")
def _plain_pass(model: str, _: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(file(model, "onnx"), options, providers=["CPUExecutionProvider"])
    for feeds in samples_of(model, CALIBRATED):
        session.run(None, feeds)


@ours("quantize on data")
def _quantize(model: str, folder: Path) -> None:
    import qcompile

    qcompile.quantize(file(model, "onnx"), folder / "m.onnx", ranges=file(model, "ranges"), data=FEW[model])


@ours("quantize without search")
def _unsearched(model: str, folder: Path) -> None:
    import qcompile

    ranges, data = file(model, "ranges"), FEW[model]
    qcompile.quantize(file(model, "onnx"), folder / "m.onnx", ranges=ranges, data=data, search=False)


@theirs("quantize without search")
@theirs("quantize on data")
def _nncf(model: str, folder: Path) -> None:
    import nncf
    import onnx

    data = nncf.Dataset(list(samples_of(model)))
    kind = nncf.ModelType.TRANSFORMER if model == "bert" else None
    onnx.save(
        nncf.quantize(onnx.load(file(model, "onnx")), data, subset_size=SAMPLES, model_type=kind),
        folder / "m.onnx",
    )


@ours("build for openvino on data")
def _openvino(model: str, folder: Path) -> None:
    import qcompile

    qcompile.build(
        file(model, "onnx"), folder / "m.onnx", target="openvino", precision="int8",
        ranges=file(model, "ranges"), data=FEW[model],
    )  # fmt: skip


@theirs("build for openvino on data")
def _nncf_openvino(model: str, folder: Path) -> None:
    import nncf
    import openvino

    data = nncf.Dataset(list(samples_of(model)))
    kind = nncf.ModelType.TRANSFORMER if model == "bert" else None
    loaded = openvino.Core().read_model(file(model, "onnx"))
    quantized = nncf.quantize(loaded, data, subset_size=SAMPLES, model_type=kind)
    openvino.save_model(quantized, folder / "m.xml")
    openvino.Core().compile_model(quantized, "CPU")


@ours("engine of tensorrt-rtx from ranges")
def _rtx(model: str, folder: Path) -> None:
    import qcompile

    qcompile.build(
        file(model, "onnx"), folder / "m.engine", target="tensorrt-rtx", precision="int8", gpus=["sm86"],
        ranges=file(model, "ranges"), min_shapes=[], opt_shapes=_shapes(model, 8),
    )  # fmt: skip


@theirs("engine of tensorrt-rtx from ranges")
def _rtx_alone(model: str, folder: Path) -> None:
    """Parse and build what was quantized before."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(file(model, "trt.onnx")))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for text in _shapes(model, 8):
        name, _, shape = text.partition(":")
        extents = [int(extent) for extent in shape.split("x")]
        profile.set_shape(name, [1, *extents[1:]], extents, extents)
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    (folder / "m.engine").write_bytes(builder.build_serialized_network(network, config))


def _shapes(model: str, batch: int) -> list[str]:
    tails = {"image": "3x224x224", "tokens": "128", "mask": "128"}
    names = [text.partition(":")[0] for text in INPUTS[model]]
    return [f"{name}:{batch}x{tails[name]}" for name in names]


def prepare(model: str) -> None:
    """Make the files that stages begin with, once."""
    import qcompile

    FOLDER.mkdir(parents=True, exist_ok=True)
    raw, simple, ranges = (file(model, kind) for kind in ("raw.onnx", "onnx", "ranges"))
    if not raw.is_file():
        qcompile.export(MODELS[model], raw, inputs=INPUTS[model])
    if not simple.is_file():
        qcompile.simplify(raw, simple)
    if not ranges.is_file():
        qcompile.calibrate(simple, FEW[model], ranges)
    if not file(model, "trt.onnx").is_file():
        qcompile.quantize(
            simple, file(model, "trt.onnx"), ranges=ranges, target="tensorrt", float_precision="fp16"
        )


def child(who: str, stage: str, model: str) -> None:
    """Do one run, and print its seconds and megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        (OURS if who == "ours" else THEIRS)[stage](model, Path(folder))
        seconds = time.perf_counter() - START
    status = Path("/proc/self/status").read_text()
    peak_kb = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"seconds": seconds, "mb": peak_kb / 1000}))


def run(who: str, stage: str, model: str) -> dict[str, float]:
    """Do one run in a process of its own."""
    command = [sys.executable, __file__, "--child", who, stage, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{who} {stage} {model}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure and print a row for each stage and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="*", metavar="GLOB", help="rows by 'STAGE MODEL'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    rows = [(stage, model) for model in INPUTS for stage in OURS if fnmatch(f"{stage} {model}", options.only)]
    for model in dict.fromkeys(model for _, model in rows):
        prepare(model)
    print("| stage | model | ours | library | time | peak memory |\n|---|---|---|---|---|---|", flush=True)
    for stage, model in rows:
        pairs = []
        for number in range(options.rounds):
            order = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
            found = {who: run(who, stage, model) for who in order}
            pairs.append((found["ours"], found["theirs"]))
        seconds = [statistics.median(pair[side]["seconds"] for pair in pairs) for side in (0, 1)]
        ratios = [mine["seconds"] / other["seconds"] for mine, other in pairs]
        memory = statistics.median(mine["mb"] / other["mb"] for mine, other in pairs)
        print(
            f"| {stage} | {model} | {seconds[0]:.1f} s | {seconds[1]:.1f} s | "
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}, {max(ratios):.2f}) | {memory:.2f}x |",
            flush=True,
        )


if __name__ == "__main__":
    main()
