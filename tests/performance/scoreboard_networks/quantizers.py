"""Who quantizes: each takes a subject and a path without a suffix, and returns the file that it made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .subject import Subject

Make = Callable[[Subject, Path], Path]


class Allowed(Exception):  # the file is there all the same
    """qcompile refused; `path` was made with `allow_loss`."""

    def __init__(self, path: Path, refusal: str) -> None:
        super().__init__(refusal)
        self.path = path


def fp32(subject: Subject, _: Path) -> Path:
    """The float model."""
    return subject.model


def ours(target: str, **options: Any) -> Make:
    """Calibrate, and quantize or build, by qcompile."""

    def make(subject: Subject, path: Path) -> Path:
        import qcompile

        samples, made = str(subject.folder / "calibration"), path.with_suffix(".onnx")
        asked = {"target": target, "data": samples, **options}
        if "mode" not in options:  # each calibrates anew: the seconds of a row are those of the whole road
            asked["ranges"] = path.with_suffix(".ranges")
            qcompile.calibrate(subject.model, samples, asked["ranges"], resume=False)
        work = qcompile.quantize
        if target == "openvino":
            work, asked["precision"] = qcompile.build, "int8"
        try:
            return work(subject.model, made, **asked).path
        except qcompile.QCompileError as error:
            refusal = f"{type(error).__name__}: {error.message}"
            try:
                path = work(subject.model, made, **asked, allow_loss=True).path
            except qcompile.QCompileError:
                raise error from None
            raise Allowed(path, refusal) from error

    return make


def ort_static(*, method: str, weighted: bool) -> Make:
    """Quantize by ONNX Runtime: uint8 activations, int8 weights per channel."""

    def make(subject: Subject, path: Path) -> Path:
        from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        ready = path.with_suffix(".pre.onnx")
        quant_pre_process(str(subject.model), str(ready), skip_symbolic_shape=True)
        extra = {"MatMulConstBOnly": True} if weighted else {}
        quantize_static(
            ready, path.with_suffix(".onnx"), _reader(subject), per_channel=True,
            weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
            calibrate_method=CalibrationMethod[method],
            op_types_to_quantize=["Conv", "MatMul", "Gemm"] if weighted else None,
            extra_options={"CalibPercentile": 99.999, **extra},
        )  # fmt: skip
        return path.with_suffix(".onnx")

    return make


def _reader(subject: Subject) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rewind()

        def get_next(self) -> Any:
            return next(self.samples, None)

        def get_first(self) -> Any:
            return next(subject.samples("calibration"))

        def rewind(self) -> None:
            self.samples = subject.samples("calibration")

    return Reader()


def ort_dynamic(subject: Subject, path: Path) -> Path:
    """Quantize dynamically by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_suffix(".onnx")
    quantize_dynamic(subject.model, made, per_channel=True, weight_type=QuantType.QInt8)
    return made


def nncf(*, onnx_graph: bool = False, smooth: bool = True) -> Make:
    """Quantize by NNCF as its guide says for each kind of model; asymmetric activations where it may."""

    def make(subject: Subject, path: Path) -> Path:
        import nncf
        import onnx
        import openvino

        samples = list(subject.samples("calibration"))
        options: dict[str, Any] = {"preset": nncf.QuantizationPreset.MIXED}
        if subject.network.transformer:
            options["model_type"] = nncf.ModelType.TRANSFORMER
        if not smooth:
            alphas = nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1)
            options["advanced_parameters"] = nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas)
        model: Any = onnx.load(subject.model) if onnx_graph else openvino.Core().read_model(subject.model)
        found = nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples), **options)
        made = path.with_suffix(".onnx" if onnx_graph else ".xml")
        if onnx_graph:
            onnx.save(found, made)
        else:
            openvino.save_model(found, made, compress_to_fp16=False)
        return made

    return make


def model_optimizer(subject: Subject, path: Path) -> Path:
    """Quantize by NVIDIA's Model-Optimizer with its defaults, floats being kept as they are."""
    from modelopt.onnx.quantization import quantize

    # It writes the model that it is given.
    made, given = path.with_suffix(".onnx"), path.with_suffix(".given.onnx")
    shutil.copyfile(subject.model, given)
    quantize(
        str(given), quantize_mode="int8", calibration_data_reader=_reader(subject),
        calibration_eps=["cpu"], high_precision_dtype="fp32", output_path=str(made),
    )  # fmt: skip
    return made


WHO: dict[str, Make] = {
    "ort/FP32": fp32,
    "ort/qcompile": ours("onnxruntime"),
    "ort/qcompile dynamic": ours("onnxruntime", mode="dynamic"),
    "ort/static": ort_static(method="MinMax", weighted=False),
    "ort/static, weighted": ort_static(method="MinMax", weighted=True),
    "ort/static, percentile": ort_static(method="Percentile", weighted=True),
    "ort/dynamic": ort_dynamic,
    "ort/NNCF": nncf(onnx_graph=True),
    "openvino/FP32": fp32,
    "openvino/qcompile": ours("openvino"),
    "openvino/NNCF": nncf(),
    "openvino/NNCF, not smoothed": nncf(smooth=False),
    "tensorrt/qcompile": ours("tensorrt"),
    "tensorrt/Model-Optimizer": model_optimizer,
}
"""Runtime and name to what makes it."""
