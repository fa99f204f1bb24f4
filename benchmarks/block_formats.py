"""NVFP4 and MXFP8 beside FP16, INT8 and FP8: engines for sm120, and the accuracy of the graphs.

    pip install 'qcompile[benchmarks,tensorrt-rtx]'
    python benchmarks/block_formats.py [MODEL...] [--no-engines]

Engines are TensorRT-RTX's, with FP16 for what is not quantized, batch 1 to 32 (opt 8). Accuracy is that
of the graph with FP32 for the rest, in ONNX Runtime; it has no operators for blocks, so the roundings of
NVFP4 and MXFP8 are computed by float operators (`compiler/quantize/blocks/simulate.py`). No engine has
run on a GPU here. What is exported and trained is kept in build/benchmarks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from residual_adds import (
    CALIBRATED_ON,
    CASES,
    HERE,
    Case,
    asked,
    data,
    exported,
    outputs,
    print_table,
    shapes,
)

import qcompile
from qcompile.compiler.quantize.blocks.simulate import simulated
from qcompile.model.onnx_file import load_onnx, save_onnx
from qcompile.model.output_error import output_error
from qcompile.spec.words import BLOCK_FORMATS, CALIBRATED

TEXT = "tokens:[batch,128]:int64", "mask:[batch,128]:int64"
MODELS = {name: CASES[name] for name in ("Transformer, digits", "ViT-B/16")} | {
    "BERT-base": Case(
        f"{HERE}/models.py:bert",
        TEXT,
        f"{HERE}/accuracy_methods.py:tokens",
        f"{HERE}/accuracy_methods.py:tokens",
    )
}
PRECISIONS = ("fp32", "fp16", "int8", "fp8", "nvfp4", "mxfp8")


def main() -> None:
    """Measure the models asked for, and print the table."""
    head = ["model", "precision", "ONNX, MB", "engine for sm120, MB", "layers that compute", "dB", "top-1"]
    print_table(head, asked(str(__doc__), MODELS), MODELS, measured)


def measured(name: str, case: Case, *, engines: bool) -> Iterator[list[str]]:
    """Yield a row for each precision of a model."""
    model = exported(name, case)
    expected, labels = outputs(case, model)
    right = expected.argmax(-1) if labels is None else labels
    with tempfile.TemporaryDirectory() as folder:
        ranges = Path(folder) / "ranges"
        qcompile.calibrate(
            model, data(case, case.calibration, model, stop=CALIBRATED_ON), ranges, targets=["tensorrt"]
        )
        for precision in PRECISIONS:
            rest = [
                quantized(model, Path(folder) / f"{precision}.{kind}.onnx", precision, kind, ranges)
                for kind in (("fp32", "fp16") if precision not in ("fp32", "fp16") else ("fp32",))
            ]
            cells = [name, precision, f"{rest[-1].stat().st_size / 1e6:.1f}"]
            cells += built(rest[-1], precision, case) if engines else ["", ""]
            if precision == "fp32":
                yield [*cells, "", f"{(expected.argmax(-1) == right).mean():.1%}"]
                continue
            run = rest[0]
            if precision in BLOCK_FORMATS:
                run = Path(folder) / "twin.onnx"
                save_onnx(simulated(load_onnx(rest[0])), run)
            found, _ = outputs(case, run)
            decibels = output_error(expected, found).snr_db
            yield [*cells, f"{decibels:.1f}", f"{(found.argmax(-1) == right).mean():.1%}"]


def quantized(model: Path, output: Path, precision: str, rest: str, ranges: Path) -> Path:
    """Write the graph of a precision, the rest in another; the model itself is FP32."""
    if precision == "fp32":
        return model
    made = qcompile.quantize(
        model, output, target="tensorrt", allow_loss=True, precision=precision,  # type: ignore[arg-type]
        float_precision=rest if precision != "fp16" else "fp32",  # type: ignore[arg-type]
        ranges=ranges if precision in (*CALIBRATED, "fp16") else None,
    )  # fmt: skip
    return made.path


def built(graph: Path, precision: str, case: Case) -> list[str]:
    """Cells: size of the engine for sm120 in MB, precisions of the parsed network."""
    engine = graph.with_suffix(".engine")
    artifact = qcompile.build(
        graph, engine, target="tensorrt-rtx", precision=precision, gpus=["sm120"], **shapes(case)
    )  # type: ignore[arg-type]
    layers = artifact.manifest.proof["layers_by_precision"]
    size = engine.stat().st_size / 1e6
    engine.unlink()
    assert isinstance(layers, dict)
    return [
        f"{size:.1f}",
        ", ".join(f"{sum(kinds.values())} {name}" for name, kinds in layers.items() if kinds),
    ]


if __name__ == "__main__":
    main()
