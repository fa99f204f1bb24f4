"""Build every INT8 of the comparison: `python examples/qat/build.py [FOLDER]`.

Three graphs, for TensorRT's placement: calibrated after training, trained on labels, trained on the teacher.
Each becomes a TensorRT-RTX engine, and a file for OpenVINO, which runs the same Q/DQ here on the processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import qcompile

HERE = Path(__file__).resolve().parent
INPUTS = ["wave:[batch,1,1024]"]
GPU = "sm89"


def graphs(folder: Path) -> dict[str, Path]:
    """Write the float ONNX file and the three INT8 graphs; return their paths by name."""
    exported = qcompile.export(f"{HERE}/model.py:build", folder / "exported.onnx", inputs=INPUTS)
    plain = qcompile.simplify(exported.path, folder / "fp32.onnx").path
    ranges = qcompile.calibrate(plain, f"{HERE}/data.py:calibration", folder / "m.ranges")
    found = {"fp32": plain, "ptq": folder / "ptq.graph.onnx"}
    qcompile.quantize(
        plain,
        found["ptq"],
        ranges=ranges.path,
        target="tensorrt",
        data=f"{HERE}/data.py:calibration",
        layers={"*": "int8"},  # as in training: also those that TensorRT computes no faster
        allow_loss=True,  # to see what it loses
    )
    for name, function in (("qat", "with_labels"), ("qat-teacher", "with_teacher")):
        found[name] = folder / f"{name}.graph.onnx"
        qcompile.export(f"{HERE}/model.py:{function}", found[name], inputs=INPUTS)
    return found


def main() -> None:
    """Build, and print what each artifact holds."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE / "out"
    folder.mkdir(parents=True, exist_ok=True)
    for name, graph in graphs(folder).items():
        precision = "fp32" if name == "fp32" else "int8"
        for target, suffix in (("openvino", ".onnx"), ("tensorrt-rtx", ".engine")):
            output = folder / f"{name}-{target}{suffix}"
            gpus = [GPU] if target == "tensorrt-rtx" else []
            built = qcompile.build(
                graph, output, target=target, precision=precision, gpus=gpus, allow_loss=True
            )
            layers = built.manifest.proof["layers_by_precision"]
            print(f"{output.name}: {output.stat().st_size / 1e3:.0f} kB, {layers}", flush=True)


if __name__ == "__main__":
    main()
