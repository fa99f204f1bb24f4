"""Real models down the whole road to TensorRT engines, without a GPU: the table of docs/tensorrt_builds.md.

    pip install 'qcompile[benchmarks,tensorrt-rtx]'
    python benchmarks/rtx_builds.py [MODEL...] [--float-precision fp16] [--repeats 3] [--only-prepare]

Each model is exported, simplified, calibrated, quantized, and built by TensorRT-RTX in FP32, FP16 and INT8
for sm80, sm86, sm89 and sm120: one engine for the four, then one for each; batch 1 to 32, and once a fixed
batch of 1. What is made before the build is kept in build/benchmarks/rtx and used the next time: remove that
folder when the compiler has changed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qcompile
from qcompile.errors import QCompileError
from qcompile.model.onnx_file import read_weightless

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "build/benchmarks/rtx"
GPUS = ("sm80", "sm86", "sm89", "sm120")
PRECISIONS = ("fp32", "fp16", "int8")
EXTENTS = {"batch": (1, 8, 32), "length": (16, 128, 384)}
"""Name of a dynamic axis to its least, usual and largest extent."""


@dataclass(frozen=True)
class Case:
    """A model and what it takes.

    Attributes:
        function: Of `models.py`.
        inputs: As `export` takes them.
        data: Function of `samples.py`.
        dynamic: The axes that are dynamic beside those that `inputs` name, as `export` takes them.
    """

    function: str
    inputs: tuple[str, ...]
    data: str
    dynamic: tuple[str, ...] = ()


_IMAGES = ("image:[batch,3,224,224]",)
_TEXT = ("tokens:[batch,128]:int64", "mask:[batch,128]:int64")
_LENGTH = ("tokens:1=length", "mask:1=length")
CASES = {
    "ResNet-50": Case("resnet50", _IMAGES, "images"),
    "MobileNetV2": Case("mobilenetv2", _IMAGES, "images"),
    "EfficientNet-B0": Case("efficientnet_b0", _IMAGES, "images"),
    "VGG-16": Case("vgg16", _IMAGES, "images"),
    "BERT-base": Case("bert", _TEXT, "tokens"),
    "BERT-base, length too": Case("bert", _TEXT, "tokens", _LENGTH),
    "ViT-B/16": Case("vit_b16", _IMAGES, "images"),
    "U-Net": Case("unet", ("image:[batch,3,256,256]",), "large_images"),
    "LSTM": Case("lstm", ("tokens:[batch,128]:int64",), "words"),
}


@dataclass
class Row:
    """What one model in one precision came to; sizes in MB (1e6 bytes), times in seconds."""

    model: str
    precision: str
    onnx_mb: float | None = None
    engine_mb: dict[str, float] = field(default_factory=dict)
    build_s: dict[str, float] = field(default_factory=dict)
    layers: str = ""
    refused: dict[str, str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """The row of the table."""
        sizes = [self.onnx_mb, *(self.engine_mb.get(kind) for kind in ("four", "sm86", "batch 1"))]
        times = [self.build_s.get(kind) for kind in ("four", "sm86")]
        numbers = ["" if value is None else f"{value:.1f}" for value in (*sizes, *times)]
        reasons = dict.fromkeys(self.refused.values())
        refused = "; ".join(
            f"{', '.join(kind for kind, why in self.refused.items() if why == reason)}: {reason}"
            for reason in reasons
        )
        return [self.model, self.precision, *numbers, self.layers, refused or "none"]


HEADER = (
    "model", "precision", "ONNX, MB", "engine for four GPUs, MB", "for sm86, MB", "for sm86, batch 1, MB",
    "build for four, s", "for sm86, s", "layers that compute", "refused",
)  # fmt: skip


def main() -> None:
    """Prepare, build and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="; ".join(CASES))
    parser.add_argument("--float-precision", default="fp16", help="what INT8 leaves in float is computed in")
    parser.add_argument("--repeats", type=int, default=3, help="builds whose median time is told")
    parser.add_argument("--only-prepare", action="store_true", help="make the graphs and build nothing")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = options.models or list(CASES)
    for model in chosen:
        for precision in PRECISIONS:
            print(f"prepare {model}, {precision}", file=sys.stderr, flush=True)
            made = _attempt(lambda m=model, p=precision: graph(CASES[m], p, options.float_precision))
            print(f"  {made}", file=sys.stderr, flush=True)
    if options.only_prepare:
        return
    _warm_up()
    _print(HEADER)
    _print(["---"] * len(HEADER))
    for model in chosen:
        for precision in PRECISIONS:
            _print(measure(model, precision, options.float_precision, options.repeats).cells())
    print(f"TensorRT-RTX {_version()}; no engine has run on a GPU here", file=sys.stderr)


def graph(case: Case, precision: str, float_precision: str) -> Path:
    """Return the ONNX file of a model in a precision, made unless it is there."""
    name = case.function + "-length" * bool(case.dynamic)
    model, ranges = FOLDER / f"{name}.onnx", FOLDER / f"{name}.ranges"
    if not model.is_file():
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            raw = Path(folder) / "raw.onnx"
            source = f"{HERE}/models.py:{case.function}"
            qcompile.export(source, raw, inputs=case.inputs, dynamic=case.dynamic)
            qcompile.simplify(raw, model)
    if precision == "fp32":
        return model
    if not ranges.is_file():
        qcompile.calibrate(model, f"{HERE}/samples.py:{case.data}", ranges, samples=8, targets=["tensorrt"])
    made = FOLDER / f"{name}.{precision}{f'.{float_precision}' * (precision == 'int8')}.onnx"
    if not made.is_file():
        qcompile.quantize(
            model, made, target="tensorrt", precision=precision,  # type: ignore[arg-type]
            ranges=ranges, float_precision=float_precision if precision == "int8" else "fp32",
        )  # fmt: skip
    return made


def measure(model: str, precision: str, float_precision: str, repeats: int) -> Row:
    """Build one graph for all GPUs, for each alone, and with a fixed batch."""
    row = Row(model, f"int8, float_precision {float_precision}" if precision == "int8" else precision)
    case = CASES[model]
    made = _attempt(lambda: graph(case, precision, float_precision))
    if isinstance(made, str):
        row.refused["graph"] = made
        return row
    row.onnx_mb = made.stat().st_size / 1e6
    for kind, gpus, file, times in _builds(made, repeats):
        built = _attempt(lambda g=gpus, f=file, t=times: timed_build(f, precision, g, t))
        if isinstance(built, str):
            row.refused[kind] = built
            continue
        artifact, row.build_s[kind] = built
        row.engine_mb[kind] = artifact.path.stat().st_size / 1e6
        layers = artifact.manifest.proof["layers_by_precision"]
        found = ", ".join(f"{sum(kinds.values())} {name}" for name, kinds in layers.items() if kinds)
        if row.layers not in ("", found):
            row.refused[kind] = f"its layers are {found}"
        row.layers = row.layers or found
        artifact.path.unlink()
    return row


def timed_build(
    file: Path, precision: str, gpus: Sequence[str], repeats: int
) -> tuple[qcompile.Artifact, float]:
    """Build `repeats` times; return the last artifact and the median time in seconds."""
    shapes, times = profile(file), []
    for _ in range(repeats):
        start = time.perf_counter()
        artifact = qcompile.build(
            file, FOLDER / "m.engine", target="tensorrt-rtx", precision=precision, gpus=gpus, **shapes
        )
        times.append(time.perf_counter() - start)
    return artifact, statistics.median(times)


def profile(file: Path) -> dict[str, Any]:
    """Return the least, usual and largest shape of every input, as `build` takes them."""
    inputs = read_weightless(file).io.inputs
    kinds = ("min_shapes", "opt_shapes", "max_shapes")
    return {
        kind: {t.name: tuple(EXTENTS[n][index] if n in EXTENTS else n for n in t.shape) for t in inputs}
        for index, kind in enumerate(kinds)
        if any(t.dynamic_axes for t in inputs)
    }


def with_fixed_axes(file: Path, output: Path) -> Path:
    """Write a graph whose batch is 1 and whose other dynamic axes have their usual extent."""
    import onnx

    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_value = 1 if axis.dim_param == "batch" else EXTENTS[axis.dim_param][1]
    del model.graph.value_info[:]
    onnx.save(model, output)
    return output


def _builds(made: Path, repeats: int) -> Iterator[tuple[str, Sequence[str], Path, int]]:
    """Yield what is built: its kind, GPUs, graph, and how often."""
    yield "four", GPUS, made, repeats
    for gpu in GPUS:
        yield gpu, [gpu], made, repeats if gpu == "sm86" else 1
    fixed = with_fixed_axes(made, FOLDER / "fixed.onnx")
    yield "batch 1", ["sm86"], fixed, 1
    fixed.unlink()


def _attempt(work: Any) -> Any:
    """Return what the work gives, or the reason why it was refused."""
    try:
        return work()
    except QCompileError as error:
        return " ".join(error.message.replace(f"{FOLDER}/", "").split())


def _warm_up() -> None:
    """Load TensorRT-RTX before anything is timed."""
    from onnx import parser, save

    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'
    save(parser.parse_model(text), FOLDER / "warm.onnx")
    qcompile.build(FOLDER / "warm.onnx", FOLDER / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    (FOLDER / "warm.onnx").unlink()


def _version() -> str:
    import tensorrt_rtx

    return str(tensorrt_rtx.__version__)


def _print(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
