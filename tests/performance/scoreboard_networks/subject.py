"""A network with its files, and how a file of it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import NETWORKS
from .base import Sample, pinned

THREADS = 2


class Subject:
    """A network with its files: FOLDER/name/model.onnx, calibration/*.npz, evaluation/*.npz."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.network, self.folder = name, NETWORKS[name], folder / name
        self.model = self.folder / "model.onnx"
        self._reference: list[Any] = []
        if not self.model.is_file():
            self._prepare()

    @property
    def outputs(self) -> list[str]:
        """The outputs that the task reads."""
        import onnx

        first = onnx.load(self.model, load_external_data=False).graph.output[0].name
        return list(self.network.outputs or (first,))

    def samples(self, part: str) -> Iterator[Sample]:
        """Yield the samples of "calibration" or "evaluation"."""
        for path in sorted((self.folder / part).glob("*.npz")):
            with np.load(path) as file:
                yield {name: file[name] for name in file.files}

    def reference(self) -> list[Any]:
        """What FP32 returns for the samples of the evaluation."""
        self._reference = self._reference or self.run("ort", self.model)
        return self._reference

    def run(self, kind: str, path: Path) -> list[Any]:
        """Return what the task reads of each sample of the evaluation: an output, or a list of them."""
        call = runner(kind, path, self.outputs)
        found = [[np.array(one) for one in call(sample)] for sample in self.samples("evaluation")]
        return [one[0] if len(one) == 1 else one for one in found]

    def _prepare(self) -> None:
        import onnx

        import qcompile
        from qcompile.compiler.opset.fit import upgrade_opset

        for number, sample in enumerate(self.network.samples()):
            part = self.folder / ("calibration" if number < self.network.calibration else "evaluation")
            part.mkdir(parents=True, exist_ok=True)
            np.savez(part / f"{number:04}.npz", **sample)
        raw = self.folder / "raw.onnx"
        if self.network.exported:
            source = f"scoreboard_networks.exported:{self.name}"
            qcompile.export(source, raw, inputs=list(self.network.exported))
        else:
            float_model = onnx.load(pinned(self.name))
            for value in [*float_model.graph.input, *float_model.graph.output]:
                for axis, extent in enumerate(value.type.tensor_type.shape.dim):
                    if extent.dim_value < 0:
                        extent.dim_param = f"{value.name}_{axis}"  # -1 is no extent, and is refused
            onnx.save(float_model, raw)
        simple = self.folder / "simple.onnx"
        qcompile.simplify(raw, simple)
        # Scales per channel, which all of them write, begin with opset 13.
        onnx.save(upgrade_opset(onnx.load(simple), 13), self.model)


def runner(kind: str, path: Path, outputs: list[str]) -> Callable[[Sample], Any]:
    """Return a function of a sample that returns the outputs that the task reads."""
    if kind != "openvino":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = THREADS, 3
        left_out = []
        if kind == "tensorrt":  # Q/DQ round floats: no integer kernels, and no bias is rounded
            options.add_session_config_entry("session.disable_quant_qdq", "1")
            left_out = ["WeightBiasQuantization"]
        session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
        )
        return lambda sample: session.run(outputs, sample)
    import openvino

    settings = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()

    def call(sample: Sample) -> Any:
        found = request.infer(sample, share_inputs=True)
        return [found[name] for name in outputs]

    return call
